# Programs of musl, in a root that has nothing of glibc (/musl); then beside a daemon, programs and a
# `urxe` of glibc.
if find /musl -name 'libc.so.6' -o -name 'ld-linux*' | grep .; then
    echo 'is of glibc'
    exit 1
fi
export URXE_SOCKET=
mkdir -p /run/urxe
chown alice /run/urxe
mount --rbind /dev /musl/dev
mount --bind /proc /musl/proc
mount --bind /run/urxe /musl/run/urxe

# Runs a command as alice, whose name is not known there, in the root of musl.
alice=$(id -u alice):$(id -g alice)
musl() {
    env -i PATH=/usr/bin HOME=/tmp URXE_SOCKET="$URXE_SOCKET" \
        /usr/sbin/chroot --userspec="$alice" --groups= /musl "$@"
}

# Runs a command as alice in the Debian around it.
glibc() {
    env -i PATH=/usr/bin:/home/alice HOME=/home/alice URXE_SOCKET="$URXE_SOCKET" \
        setpriv --reuid=alice --regid=alice --clear-groups "$@"
}

# Runs a server ($2), and its client ($3) as soon as there is one to meet; both must end well.
pair() {
    $2 >/tmp/server 2>&1 &
    server=$!
    tries=0
    until $3 >/tmp/client 2>&1; do
        tries=$((tries + 1))
        if [ $tries = 50 ]; then
            cat /tmp/client /tmp/server
            exit 1
        fi
        sleep 0.2
    done
    wait $server || { cat /tmp/server; exit 1; }
    echo "$1: works"
}

# Runs what must be refused, and says with what words.
refuses() {
    if "$@" >/tmp/said 2>&1; then
        echo "$*: expected to be refused"
        exit 1
    fi
    cat /tmp/said
}

# Runs what must end well, and shows what it said last. A pipe would take the exit status from it.
last_of() {
    "$@" >/tmp/said 2>&1 || { cat /tmp/said; exit 1; }
    tail -n 1 /tmp/said
}

last_of musl urxe demo
musl urxe run -- ibv_devinfo 2>/dev/null | grep urxe0
last_of musl urxe doctor
grep -q 'Verbs programs can run' /tmp/said
at1='musl urxe run --addr 127.0.0.1 --'
at2='musl urxe run --addr 127.0.0.2 --'
pair ibv_rc_pingpong "$at1 ibv_rc_pingpong -g 0 -c" "$at2 ibv_rc_pingpong -g 0 -c 127.0.0.1"
pair ibv_ud_pingpong "$at1 ibv_ud_pingpong -g 0 -c" "$at2 ibv_ud_pingpong -g 0 -c 127.0.0.1"
pair rping "$at1 rping -s -a 127.0.0.1 -C 10 -V" "$at2 rping -c -a 127.0.0.1 -C 10 -V"
pair 'ibv_rc_pingpong, the data path in the program' \
    'musl urxe run --in-process --addr 127.0.0.1 -- ibv_rc_pingpong -g 0 -c' \
    "$at2 ibv_rc_pingpong -g 0 -c 127.0.0.1"
pair rstream "$at1 rstream -b 127.0.0.1 -S 4096 -C 100" "$at2 rstream -s 127.0.0.1 -S 4096 -C 100"

URXE_SOCKET=/run/urxe/urxed.sock
glibc urxe daemon --addr 127.0.0.3 --addr 127.0.0.4 --socket $URXE_SOCKET 2>/tmp/urxed.log &
daemon=$!
tries=0
until musl urxe devinfo >/tmp/devinfo 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 50 ] || { cat /tmp/devinfo /tmp/urxed.log; exit 1; }
    sleep 0.1
done
ping='ibv_rc_pingpong -g 0 -c'
pair 'musl serves, glibc asks, at a daemon of glibc' \
    "musl urxe run -- $ping -d urxe0" "glibc urxe run -- $ping -d urxe1 127.0.0.1"
pair 'glibc serves, musl asks, at a daemon of glibc' \
    "glibc urxe run -- $ping -d urxe0" "musl urxe run -- $ping -d urxe1 127.0.0.1"
pair 'ucmatose of musl asks that of glibc' \
    'glibc urxe run -- ucmatose -b 127.0.0.3' 'musl urxe run -- ucmatose -s 127.0.0.3'
pair 'two static programs of urxe-verbs' 'musl ping_pong urxe0' 'musl ping_pong urxe1 127.0.0.1'
kill $daemon
wait $daemon || true

cp /bin/true /musl/usr/bin/of-glibc
refuses musl urxe run -- of-glibc | grep 'is linked with glibc (/lib64/ld-linux'
refuses glibc urxe run -- /musl/usr/bin/ibv_devinfo | grep 'is linked with musl (/lib/ld-musl'
refuses musl urxe run -- ping_pong | grep 'is statically linked'
