# The system's service as its unit starts it, since no systemd runs here: its user, its rights, its
# options; for two users of its group at once, and not for a third.
unit=/usr/lib/systemd/system/urxed.service
value() {
    sed -n "s/^$1=//p" "$unit" | head -n 1
}

: >/tmp/urxed.log
install -d -o urxe -g urxe -m 755 /run/urxe
URXED_OPTIONS=
. /etc/default/urxed
rights=$(value AmbientCapabilities | tr 'A-Z ' 'a-z,' | sed 's/cap_/+/g')
command=$(value ExecStart | sed 's/\$URXED_OPTIONS//')
setpriv --reuid="$(value User)" --regid="$(value Group)" --clear-groups \
    --bounding-set="-all,$rights" --inh-caps="-all,$rights" --ambient-caps="-all,$rights" \
    --no-new-privs $command $URXED_OPTIONS 2>/tmp/urxed.log &
daemon=$!
tries=0
until grep -q ready /tmp/urxed.log; do
    tries=$((tries + 1))
    [ $tries -lt 50 ] || { cat /tmp/urxed.log; exit 1; }
    sleep 0.1
done
# As SocketMode and SocketGroup of urxed.socket.
[ "$(stat -c '%U:%G %a' /run/urxe/urxed.sock)" = 'urxe:urxe 660' ]

adduser --quiet alice urxe
adduser --quiet bob urxe
at=/run/urxe/urxed.sock
su - alice -c "urxe run --daemon $at -- ib_write_bw -n 5000" >/dev/null &
server=$!
tries=0
until su - bob -c "urxe run --daemon $at -- ib_write_bw -n 5000 localhost" >/tmp/client 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 50 ] || { cat /tmp/client /tmp/urxed.log; exit 1; }
    sleep 0.2
done
wait $server
grep -A 1 '#bytes' /tmp/client
if su - carol -c "urxe run --daemon $at -- true" 2>/tmp/carol; then
    echo 'carol is not in the group, and was served'
    exit 1
fi
grep 'is not for this user' /tmp/carol
# Each has been served by a process of that user, which stays for a while.
workers=$(ps -o user= -C urxed-worker | sort | tr '\n' ' ')
[ "$workers" = 'alice bob ' ] || { echo "workers of: $workers"; exit 1; }
kill $daemon
wait $daemon
[ ! -e $at ]
cat /tmp/urxed.log
