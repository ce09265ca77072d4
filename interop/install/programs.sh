# Programs of an ordinary user ($1), who calls urxe so ($2): its own, and stock ones.
user=$1
urxe=$2

as_user() {
    su - "$user" -c "$1"
}

as_user "$urxe demo" 2>&1 | tail -n 1
as_user "$urxe run ib_write_bw -n 200" >/dev/null &
tries=0
# The server says nowhere that it waits.
until as_user "$urxe run ib_write_bw -n 200 localhost" >/tmp/client 2>&1; do
    tries=$((tries + 1))
    if [ $tries = 50 ]; then
        cat /tmp/client
        exit 1
    fi
    sleep 0.2
done
wait $!
grep -A 1 '#bytes' /tmp/client
as_user "$urxe doctor" 2>&1 | tail -n 1
