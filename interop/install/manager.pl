# Plays systemd for a service with a socket, where none runs: listens, starts the command with that
# socket, hears what it tells, reloads and restarts it.
#
#     perl manager.pl SOCKET USER STATE COMMAND...
#
# HUP: `systemctl reload`, USR1: `systemctl restart`, USR2: `systemctl kill -s USR2`, TERM: `systemctl
# stop` of service and socket.
# What happens goes into the file STATE, a line each: `started PID`, what it tells (`READY=1` ...),
# `ended STATUS`.
use strict;
use warnings;
use POSIX ();
use Socket;

my ($path, $user, $state, @command) = @ARGV;
my %asked;
$SIG{$_} = sub { $asked{$_[0]} = 1 } for qw(HUP USR1 USR2 TERM);

sub note {
    open my $file, '>>', $state or die "$state: $!\n";
    print $file "$_[0]\n";
    close $file;
}

my $listener;
{
    # It is passed on.
    local $^F = 255;
    socket $listener, AF_UNIX, SOCK_SEQPACKET, 0 or die "socket: $!\n";
}
# SocketUser, SocketGroup and SocketMode.
my (undef, undef, $uid, $gid) = getpwnam $user or die "no user $user\n";
umask 0177;
bind $listener, pack_sockaddr_un($path) or die "$path: $!\n";
chown $uid, $gid, $path or die "$path: $!\n";
chmod 0660, $path or die "$path: $!\n";
listen $listener, 128 or die "$path: $!\n";
socket my $told, AF_UNIX, SOCK_DGRAM, 0 or die "socket: $!\n";
bind $told, pack_sockaddr_un("$state.notify") or die "$state.notify: $!\n";
chmod 0666, "$state.notify";
umask 022;

sub start {
    my $pid = fork // die "fork: $!\n";
    if (!$pid) {
        POSIX::dup2(fileno $listener, 3) if fileno $listener != 3;
        @ENV{qw(LISTEN_PID LISTEN_FDS NOTIFY_SOCKET)} = ($$, 1, "$state.notify");
        exec @command or die "$command[0]: $!\n";
    }
    note("started $pid");
    return $pid;
}

my $pid = start();
my $restarts = 0;
while (1) {
    for my $signal (qw(HUP USR2)) {
        kill $signal, $pid if delete $asked{$signal};
    }
    if (delete $asked{USR1}) {
        $restarts = 1;
        kill 'TERM', $pid;
    }
    kill 'TERM', $pid if $asked{TERM};
    my $ready = '';
    vec($ready, fileno $told, 1) = 1;
    if (select($ready, undef, undef, 0.1) > 0 and defined recv $told, my $message, 4096, 0) {
        note($_) for split /\n/, $message;
    }
    next if waitpid($pid, POSIX::WNOHANG()) != $pid;
    note('ended ' . ($? >> 8 || $? & 127));
    last if $asked{TERM};
    $pid = start() if $restarts;
    $restarts = 0;
}
unlink $path, "$state.notify";
