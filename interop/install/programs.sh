# Programs of an ordinary user ($1), who calls urxe so ($2): its own, and stock ones.
user=$1
urxe=$2

as_user() {
    su - "$user" -c "$1"
}

# Runs what must end well, and shows what it said last. A pipe would take the exit status from it.
last_of() {
    as_user "$1" >/tmp/said 2>&1 || { cat /tmp/said; exit 1; }
    tail -n 1 /tmp/said
}

last_of "$urxe demo"
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
last_of "$urxe doctor"
grep -q 'Verbs programs can run' /tmp/said
