# What a package has beside programs: manual pages, completions, units, and an own user.
for page in urxe urxe-run urxed; do
    gzip -t "/usr/share/man/man1/$page.1.gz"
done
bash -c '. /usr/share/bash-completion/completions/urxe && complete -p urxe'
for file in lib/systemd/system/urxed.service lib/systemd/system/urxed.socket \
    lib/systemd/user/urxed.service share/doc/urxe/copyright share/urxe/agent/agent.c; do
    test -f "/usr/$file"
done
test -f /etc/default/urxed
test -f /etc/urxe/urxed.toml
getent passwd urxe
getent group urxe
