# Where the carried library can go, if not where it usually goes.
try() {
    # `|| true`: what it says is looked at.
    su - alice -c "$1 /home/alice/urxe run -- sh -c 'echo \$LD_PRELOAD'" 2>&1 |
        grep -v 'started a daemon' || true
}

expect() {
    case $2 in
    *"$1"*) ;;
    *)
        echo "expected $1, and not: $2"
        exit 1
        ;;
    esac
}

alice=$(id -u alice)
# Another user was there first: what is in that folder is not loaded.
rm -rf "/tmp/urxe-$alice"
mkdir -m 777 "/tmp/urxe-$alice"
chown bob "/tmp/urxe-$alice"
expect "/dev/shm/urxe-$alice/liburxe_shim-" "$(try URXE_SOCKET=/home/alice/s)"
# Nothing may be executed from there, nor from /tmp, and the home is read-only.
rm -rf "/tmp/urxe-$alice"
mount -t tmpfs -o noexec,mode=1777 none /dev/shm
mount -t tmpfs -o noexec,mode=1777 none /tmp
mount --bind /home/alice /home/alice
mount -o remount,bind,ro /home/alice
said=$(try '')
echo "$said"
for part in /tmp/ /dev/shm/ noexec 'Read-only file system' TMPDIR; do
    expect "$part" "$said"
done
# As the sentence says.
install -d -o alice -m 700 /var/tmp/alice
expect "/var/tmp/alice/urxe-$alice/liburxe_shim-" "$(try TMPDIR=/var/tmp/alice)"
