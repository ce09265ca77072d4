# The system's service as its units start it, since no systemd runs here: its socket, its user, its
# rights, its options; for two users of its group at once, and not for a third. Then it is reloaded,
# and restarted under traffic: with time to drain, and with too little.
unit=/usr/lib/systemd/system/urxed.service
at=/run/urxe/urxed.sock
value() {
    sed -n "s/^$1=//p" "$unit" | head -n 1
}

fail() {
    echo "$1"
    cat /tmp/urxed.log /tmp/state /tmp/server /tmp/client 2>/dev/null
    exit 1
}

# Waits until a command succeeds.
until_so() {
    tries=0
    until eval "$1"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "it never came to be: $1"
        sleep 0.1
    done
}

# Whether so many lines of the state begin so.
told() {
    [ "$(grep -c "^$2" /tmp/state)" -ge "$1" ]
}

: >/tmp/urxed.log
: >/tmp/state
install -d -o urxe -g urxe -m 755 /run/urxe
URXED_OPTIONS=
. /etc/default/urxed
rights=$(value AmbientCapabilities | tr 'A-Z ' 'a-z,' | sed 's/cap_/+/g')
command=$(value ExecStart | sed 's/\$URXED_OPTIONS//')
perl /root/manager.pl $at "$(value User)" /tmp/state \
    setpriv --reuid="$(value User)" --regid="$(value Group)" --clear-groups \
    --bounding-set="-all,$rights" --inh-caps="-all,$rights" --ambient-caps="-all,$rights" \
    --no-new-privs $command $URXED_OPTIONS 2>/tmp/urxed.log &
manager=$!
until_so 'told 1 READY=1'
[ "$(stat -c '%U:%G %a' $at)" = 'urxe:urxe 660' ]

adduser --quiet alice urxe
adduser --quiet bob urxe

# Programs of both users, one of which serves the other.
serve() {
    su - alice -c "urxe run --daemon $at -- ib_write_bw $1" >/tmp/server 2>&1 &
    server=$!
}
ask() {
    su - bob -c "urxe run --daemon $at -- ib_write_bw $1 localhost" >/tmp/client 2>&1
}
write() {
    serve '-n 5000'
    until_so "ask '-n 5000'"
    wait $server
    grep -A 1 '#bytes' /tmp/client
}
# Traffic for so many seconds, until it flows.
flow() {
    serve "-D $1"
    # The first ones may find nobody who listens.
    (until ask "-D $1" || grep -q 'urxed of' /tmp/client; do sleep 0.2; done; tail -n 1 /tmp/client) &
    client=$!
    until_so "[ \"\$(URXE_SOCKET=$at urxe res qp | grep -c 'RT[RS]')\" -ge 2 ]"
}

write
if su - carol -c "urxe run --daemon $at -- true" 2>/tmp/carol; then
    fail 'carol is not in the group, and was served'
fi
grep 'is not for this user' /tmp/carol
# Each has been served by a process of that user, which stays for a while.
workers=$(ps -o user= -C urxed-worker | sort | tr '\n' ' ')
[ "$workers" = 'alice bob ' ] || fail "workers of: $workers"

echo 'reload:'
# Never what it has without being told, which is less than processors, and 32 at most.
processors=$(nproc)
slots=$((processors < 32 ? processors + 1 : 33))
printf 'drain = 60\nslots = %s\n' $slots >>/etc/urxe/urxed.toml
kill -HUP $manager
until_so 'told 1 RELOADING=1 && told 1 MONOTONIC_USEC= && told 2 READY=1'
grep 'drain is 60 now' /tmp/urxed.log
grep "slots $slots needs a restart" /tmp/urxed.log
echo 'drain = 61' >>/etc/urxe/urxed.toml
kill -HUP $manager
until_so 'told 3 READY=1'
grep 'all stays as it was' /tmp/urxed.log
sed -i '/^drain = 61/d' /etc/urxe/urxed.toml

echo 'upgrade, under traffic:'
flow '6 -b'
daemon=$(sed -n 's/^started //p' /tmp/state)
# Those of the two users whose programs have traffic; root's, who has asked, rests soon.
workers() {
    ps -o user=,pid= -C urxed-worker | grep -E '^(alice|bob) ' | sort | tr -s '\n ' ' '
}
before=$(workers)
# As a package does.
cp -p /usr/bin/urxed /usr/bin/urxed.new
mv /usr/bin/urxed.new /usr/bin/urxed
readlink /proc/$daemon/exe | grep deleted
kill -USR2 $manager
until_so 'told 3 RELOADING=1 && told 4 READY=1'
grep 'upgraded to' /tmp/urxed.log
[ "$(readlink /proc/$daemon/exe)" = /usr/bin/urxed ] || fail 'it is still the old program'
wait $server || fail 'the server noticed something'
wait $client
grep -A 1 '#bytes' /tmp/client || fail 'the client noticed something'
after=$(workers)
[ "$after" = "$before" ] || fail "workers: $before, and now $after"
write

echo 'restart, with time for what runs:'
flow 12
kill -USR1 $manager
until_so 'grep ending, /tmp/urxed.log'
# A program that comes now waits for the next daemon; who only asks is told what keeps it.
su - alice -c "urxe run --daemon $at -- true" >/tmp/next 2>&1 &
next=$!
su - alice -c "URXE_SOCKET=$at urxe devinfo" >/tmp/asked 2>&1 && fail 'a daemon that ends answered'
grep 'about to end' /tmp/asked || fail "$(cat /tmp/asked)"
wait $server || fail 'the server was not given its time'
wait $client
grep -A 1 '#bytes' /tmp/client || fail 'the client was not given its time'
until_so "told 2 started && told 5 READY=1 && told 1 'ended 0'"
wait $next || fail 'who came meanwhile was not served'
write

echo 'restart, with too little time:'
sed -i 's/^drain = .*/drain = 1/' /etc/urxe/urxed.toml
kill -HUP $manager
until_so 'told 6 READY=1'
# Both write: who neither posts nor polls, as the server of one direction, is told nothing.
flow '600 -b'
kill -USR1 $manager
if wait $server; then fail 'the server noticed nothing'; fi
wait $client
for program in server client; do
    grep 'outstanding work requests complete with IBV_WC_WR_FLUSH_ERR' /tmp/$program ||
        fail "the $program was told nothing"
done
until_so "told 3 started && told 7 READY=1 && told 2 'ended 0'"
write

kill $manager
wait $manager
[ ! -e $at ]
told 3 'ended 0' || fail 'it did not end by itself'
cat /tmp/urxed.log
