# As a job of a CI service has it: packaging/ci/install with the binary, then a program in another
# shell, and one more job on the same runner.
export PATH=/usr/local/bin:$PATH GITHUB_ENV=/tmp/env GITHUB_OUTPUT=/tmp/output RUNNER_TEMP=/tmp/runner
mkdir $RUNNER_TEMP
address=127.91.4.7
for job in first second; do
    /root/ci/install /home/alice/urxe $address >/tmp/said 2>/tmp/log || { cat /tmp/log; exit 1; }
    tail -n 1 /tmp/said | grep -q '^export URXE_SOCKET='
done
export "$(tail -n 1 $GITHUB_ENV)"
urxe devinfo | grep -q "$address"
urxe run --explain -- bash -eo pipefail -c '
    ib_write_bw -n 500 >/dev/null &
    server=$!
    tries=0
    until ib_write_bw -n 500 localhost >/tmp/client; do
        tries=$((tries + 1))
        [ $tries -lt 50 ]
        sleep 0.2
    done
    wait $server
' 2>/tmp/log || { cat /tmp/log; exit 1; }
grep -A 1 '#bytes' /tmp/client
