# Installed by a user in the home folder, used, and taken away.
cat >/tmp/as-alice <<'TEXT'
set -eu
cd
tar xf urxe.tar.gz
mkdir .local
urxe-*/install --user
# Over it, as a newer version that has a file less.
echo share/urxe/of-an-older-version >>.local/share/urxe/installed
touch .local/share/urxe/of-an-older-version
urxe-*/install --user
if [ -e .local/share/urxe/of-an-older-version ]; then
    echo 'a file of an older version is still there'
    exit 1
fi
rm -r urxe-*/
.local/bin/urxe run -- true
test -f .local/share/man/man1/urxe-run.1.gz
grep "ExecStart=$HOME/.local/bin/urxed" .local/share/urxe/service/user/urxed.service
TEXT
su - alice -c 'sh /tmp/as-alice'
sh /root/programs.sh alice .local/bin/urxe
cat >/tmp/as-alice <<'TEXT'
set -eu
cd
tar xf urxe.tar.gz
urxe-*/install --user --uninstall
if find .local -mindepth 1 | grep .; then
    echo 'is still there'
    exit 1
fi
if urxe-*/install --prefix /usr/local 2>said; then
    exit 1
fi
cat said
TEXT
su - alice -c 'sh /tmp/as-alice'
