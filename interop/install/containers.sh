# A daemon and two programs in a container each: nothing of each other's but the network and the
# folder of the socket.
mkdir -p /run/urxe
chown alice /run/urxe
: >/tmp/urxed.log

# Runs a command as alice in a container of its own.
container() {
    unshare --mount --propagation unchanged --pid --ipc --uts --fork --kill-child sh -ec '
        mount -t proc none /proc
        mount -t tmpfs -o mode=1777 none /tmp
        mount -t tmpfs -o mode=1777 none /dev/shm
        exec setpriv --reuid=alice --regid=alice --clear-groups --no-new-privs \
            --inh-caps=-all --bounding-set=-all "$@"
    ' sh env -i PATH="$PATH" HOME=/home/alice "$@"
}

at=/run/urxe/urxed.sock
container /home/alice/urxe daemon --addr 127.0.0.1 --socket $at 2>/tmp/urxed.log &
daemon=$!
tries=0
until container env URXE_SOCKET=$at /home/alice/urxe devinfo >/tmp/devinfo 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 50 ] || { cat /tmp/devinfo /tmp/urxed.log; exit 1; }
    sleep 0.1
done
container /home/alice/urxe run --daemon $at -- ib_write_bw -n 2000 >/tmp/server 2>&1 &
server=$!
tries=0
until container /home/alice/urxe run --daemon $at -- ib_write_bw -n 2000 localhost \
    >/tmp/client 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 50 ] || { cat /tmp/client /tmp/server /tmp/urxed.log; exit 1; }
    sleep 0.2
done
wait $server
grep -A 1 '#bytes' /tmp/client
kill $daemon
wait $daemon || true
