#!/usr/bin/env python3
"""A machine with the kernel's rdma_rxe, in QEMU, on a wire of its own.

    interop/rxe/guest.py run 'rdma link'          boots, runs one command in the guest, ends
    interop/rxe/guest.py run --kernel 6.12        the same with commands from the standard input
    interop/rxe/guest.py build                    only builds what is missing

Host: network namespace rxe-NAME, tap0, 10.77.0.1 and fd77::1. Guest: eth0, 10.77.0.2 and fd77::2,
RDMA device rxe0 with GID 1 (IPv4) and GID 2 (IPv6). Needs root.
"""

import argparse
import functools
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from command import Command, GuestError  # noqa: E402
from image import build  # noqa: E402

NEEDED = {'qemu-system-x86_64': 'qemu-system-x86', 'ip': 'iproute2'}
# How many commands may run in the guest at the same time.
PORTS = 12
MEMORY = '1536M'
BOOT_SECONDS = 180
# Within which a kernel ends that finds nothing to start, in KVM: it takes one.
KVM_SECONDS = 10
# These are slower emulated than what the kernel does without them (string copies, CRC).
SLOW = 'la57=off,pclmulqdq=off,erms=off,fsrm=off'
EMULATED = ['-accel', 'tcg,thread=multi', '-cpu', f'max,{SLOW}']
VIRTUAL = ['-accel', 'kvm', '-cpu', 'host']
KERNEL = ('console=ttyS0 quiet panic=-1 mitigations=off nokaslr init_on_alloc=0 tsc=reliable'
          ' audit=0 apparmor=0 random.trust_cpu=on nowatchdog net.ifnames=0'
          ' rcupdate.rcu_expedited=1')

# Ends the guest, its namespace and all that runs there when the standard input ends, which it does
# however the program that made the guest ends.
KEEPER = '''
trap : HUP INT TERM
ip netns exec $0 "$@" >$FOLDER/qemu.log 2>&1 &
cat
for signal in TERM TERM KILL KILL; do
    for pid in $(ip netns pids $0); do kill -$signal $pid; done
    for i in 1 2 3 4 5; do [ "$(ip netns pids $0)" ] && sleep 0.1; done
done
ip netns delete $0
rm -r $FOLDER
'''


class Guest:
    """Boots when entered, ends when left.

    `name` tells guests of one machine apart; `for_speed` is for measuring: the guest goes before
    everything else on this machine, and its idle processors do not sleep.
    """

    def __init__(self, kernel='6.1', name='guest', mtu=1500, for_speed=False):
        self.kernel, self.name, self.mtu, self.for_speed = kernel, name, mtu, for_speed
        self.netns = f'rxe-{name}'
        # What runs a command on our side of the wire.
        self.host = ['ip', 'netns', 'exec', self.netns]
        # The ways into the guest: all of them, and those that no command uses.
        self.ports, self.free = [], []

    def run(self, script, timeout=60):
        """Runs a bash script in the guest: (exit status, output and error output)."""
        return self.start(script).wait(timeout)

    def start(self, script):
        """Starts a bash script in the guest."""
        return Command(self, script)

    def log(self):
        """The last that QEMU and the guest's kernel said."""
        logs = [self.folder / name for name in ('qemu.log', 'console.log')]
        text = ''.join(log.read_text(errors='replace') for log in logs if log.exists())
        return '\n'.join(text.splitlines()[-30:])

    def die(self):
        """Ends QEMU at once, like a power failure; the namespace stays."""
        os.kill(self.pid(), signal.SIGKILL)

    def pid(self):
        """QEMU's."""
        return int((self.folder / 'pid').read_text())

    def __enter__(self):
        if os.geteuid():
            raise SystemExit('the guest needs root, for a network namespace and a tap')
        missing = build.lacks(NEEDED)
        if missing:
            raise SystemExit(f'the guest cannot boot: apt-get install {" ".join(missing)}')
        vmlinux, initrd = build.image(self.kernel)
        self._make_namespace()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f'{self.netns}-'))
        # Both sides read and write here; in the guest it is /share.
        self.share = self.folder / 'share'
        self.share.mkdir()
        self.keeper = subprocess.Popen(
            ['sh', '-c', KEEPER, self.netns, *self._qemu(vmlinux, initrd)], stdin=subprocess.PIPE,
            env={**os.environ, 'FOLDER': str(self.folder)}, start_new_session=True)
        try:
            self._boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for port in self.ports:
            port.close()
        self.keeper.stdin.close()
        self.keeper.wait()

    def _make_namespace(self):
        # One in which nothing runs is of a keeper that was killed, too.
        if run_ip('netns', 'pids', self.netns, check=False):
            raise GuestError(f'a guest named {self.name} runs already')
        run_ip('netns', 'delete', self.netns, check=False)
        run_ip('netns', 'add', self.netns)
        for command in ('link set lo up',
                        'tuntap add tap0 mode tap',
                        'link set tap0 address 02:77:00:00:00:01',
                        f'link set tap0 mtu {self.mtu} up',
                        'address add 10.77.0.1/24 dev tap0',
                        'address add fd77::1/64 dev tap0 nodad'):
            run_ip('-n', self.netns, *command.split())

    def _qemu(self, vmlinux, initrd):
        settings = {'kernel': self.kernel, 'mtu': self.mtu, 'ports': PORTS}
        words = ' '.join(f'guest.{key}={value}' for key, value in settings.items())
        if self.for_speed:
            # To wake an emulated processor takes 100 times as long as it should.
            words += ' idle=poll'
        command = [
            'qemu-system-x86_64', '-nodefaults', '-no-user-config', '-display', 'none',
            '-no-reboot', '-machine', 'q35', *(VIRTUAL if has_kvm(vmlinux) else EMULATED), '-smp', '2',
            '-m', MEMORY, '-kernel', vmlinux, '-initrd', initrd,
            '-append', f'{KERNEL} {words}', '-pidfile', self.folder / 'pid',
            '-serial', f'file:{self.folder}/console.log',
            '-device', 'virtio-rng-pci',
            '-netdev', 'tap,id=net,ifname=tap0,script=no,downscript=no',
            '-device', 'virtio-net-pci,netdev=net,mac=02:77:00:00:00:02,romfile=',
            '-virtfs', f'local,path={self.share},mount_tag=share,security_model=none,'
                       'multidevs=remap',
            '-device', f'virtio-serial-pci,max_ports={PORTS + 1}']
        for number in range(PORTS):
            command += [
                '-chardev', f'socket,id=c{number},path={self.folder}/{number},server=on,wait=off',
                '-device', f'virtserialport,chardev=c{number},nr={number + 1}']
        return command

    def _boot(self):
        begin = time.monotonic()
        print(f'booting kernel {self.kernel} ...', file=sys.stderr, flush=True)
        while len(self.ports) < PORTS:
            port = socket.socket(socket.AF_UNIX)
            try:
                port.connect(str(self.folder / str(len(self.ports))))
                self.ports.append(port)
            except OSError:
                if time.monotonic() > begin + 10:
                    raise GuestError(f'QEMU does not start\n{self.log()}') from None
                time.sleep(0.05)
        if self.for_speed:
            # Where sessions are groups to the scheduler, `nice` says nothing between them.
            autogroup = pathlib.Path(f'/proc/{self.pid()}/autogroup')
            if autogroup.exists():
                autogroup.write_text('-15')
        self.free = list(self.ports)
        first = Command(self, 'rdma link show rxe0/1')
        if not first.read(BOOT_SECONDS):
            raise GuestError(f'the guest does not boot\n{self.log()}')
        if first.status:
            raise GuestError(f'the guest has no rxe0\n{first.text}{self.log()}')
        seconds = time.monotonic() - begin
        print(f'guest {self.name} is up, {seconds:.1f} s: kernel {self.kernel}, '
              f'ip netns exec {self.netns}', file=sys.stderr, flush=True)


def run_ip(*command, check=True):
    done = subprocess.run(['ip', *command], capture_output=True, text=True)
    if check and done.returncode:
        raise GuestError(f'ip {" ".join(command)}: {done.stderr.strip()}')
    return done.stdout


@functools.cache
def has_kvm(vmlinux):
    """Whether KVM does what it should: within other virtual machines it may only seem to.

    A kernel that finds no root file system ends at once; where KVM is itself emulated, it is
    slower than QEMU's own emulation by far, or comes upon what it cannot do.
    """
    if not os.access('/dev/kvm', os.R_OK | os.W_OK):
        return False
    probe = ['qemu-system-x86_64', '-nodefaults', '-no-user-config', '-display', 'none',
             '-no-reboot', '-machine', 'q35', *VIRTUAL, '-m', '256M', '-kernel', vmlinux,
             '-append', 'quiet panic=-1']
    try:
        done = subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=KVM_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def options():
    text, _, rest = __doc__.partition('\n\n')
    parser = argparse.ArgumentParser(
        description=text, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest='task', required=True)
    for task, about in ('build', 'build what is missing'), ('run', 'boot, run commands, end'):
        sub = commands.add_parser(task, help=about)
        sub.add_argument('--kernel', default='6.1', choices=build.KERNELS)
    sub.add_argument('--name', default='guest', help='distinguishes guests of one machine')
    sub.add_argument('--mtu', type=int, default=1500)
    sub.add_argument('--timeout', type=float, default=3600, metavar='SECONDS')
    sub.add_argument('command', nargs='*', help='a bash script; without one, each line of the '
                                                'standard input is one')
    return parser.parse_args()


def main():
    args = options()
    if args.task == 'build':
        build.image(args.kernel)
        return 0
    status = 0
    with Guest(args.kernel, args.name, args.mtu) as guest:
        print(f'the guest\'s /share is {guest.share}', file=sys.stderr)
        for script in [' '.join(args.command)] if args.command else sys.stdin:
            status, _ = guest.start(script).wait(args.timeout, echo=sys.stdout.buffer)
    return status


if __name__ == '__main__':
    try:
        sys.exit(main())
    except GuestError as error:
        sys.exit(f'{error}')
    except KeyboardInterrupt:
        sys.exit(130)
