"""Packages of a Debian release, unpacked into a folder of ours.

apt does the work, with a state of its own below the cache folder: the system's sources, lists and
installed packages are neither read nor changed, and nothing needs root. Signatures are checked
with the keys of the installed package debian-archive-keyring.
"""

import pathlib
import shutil
import subprocess
import sys

import cargo

CACHE = cargo.target_directory() / 'interop'
KEYS = '/usr/share/keyrings/debian-archive-keyring.gpg'
# Exit status of a script whose work cannot be done on this machine. One that is broken ends with
# another, that of an exception for example, and is a failure.
CANNOT = 77


def cannot(why):
    """Ends the script, with why its work cannot be done here."""
    print(why, file=sys.stderr)
    sys.exit(CANNOT)


def mirror():
    """The mirror that this machine's apt is configured with, or Debian's own."""
    command = ['apt-get', 'indextargets', '--format', '$(SITE) $(REPO_URI)']
    out = subprocess.run(command, capture_output=True, text=True).stdout
    for line in out.splitlines():
        uri = line.split()[-1]
        if uri.rstrip('/').endswith('/debian'):
            return uri
    return 'http://deb.debian.org/debian'


class Release:
    """One Debian release, for example `Release('trixie')`."""

    def __init__(self, suite, cache=CACHE):
        self.suite = suite
        self.folder = pathlib.Path(cache) / suite
        self.apt = self.folder / 'apt'
        self.root = self.folder / 'root'

    def _run(self, *command):
        options = {
            'Dir::State': self.apt / 'state',
            'Dir::State::status': self.apt / 'status',
            'Dir::Cache': self.apt / 'cache',
            'Dir::Etc': self.apt / 'etc',
            'Dir::Log': self.apt / 'log',
            'Acquire::Languages': 'none',
            'APT::Sandbox::User': '',
            'APT::Update::Post-Invoke::': 'true',
            'APT::Install-Recommends': 'false',
        }
        flags = [f'-o{key}={value}' for key, value in options.items()]
        done = subprocess.run([*command[:1], '-q', *flags, *command[1:]],
                              capture_output=True, text=True, cwd=self.folder)
        if done.returncode:
            cannot(f'{" ".join(command)} ({self.suite}): exit {done.returncode}\n'
                   f'{done.stdout}{done.stderr}'.rstrip())
        return done.stdout

    def _update(self):
        """Gives apt its state, once."""
        for program in 'apt-get', 'dpkg-deb':
            if not shutil.which(program):
                cannot(f'{program} is not installed: packages of Debian cannot be fetched')
        if (self.apt / 'updated').exists():
            return
        shutil.rmtree(self.apt, ignore_errors=True)
        for part in 'state/lists/partial', 'cache/archives/partial', 'etc', 'log':
            (self.apt / part).mkdir(parents=True)
        (self.apt / 'status').touch()
        (self.apt / 'etc' / 'sources.list').write_text(
            f'deb [signed-by={KEYS}] {mirror()} {self.suite} main\n')
        self._run('apt-get', 'update')
        (self.apt / 'updated').touch()

    def depends(self, package):
        """The names of the packages that a package needs directly."""
        self._update()
        out = self._run('apt-cache', 'depends', '--important', package)
        return [line.split()[1] for line in out.splitlines() if 'Depends: ' in line]

    def fetch(self, packages, with_dependencies=False):
        """Downloads packages (`name` or `name=version`), and returns their files.

        With dependencies these are all that they need, libc6 included.
        """
        self._update()
        archives = self.apt / 'cache' / 'archives'
        if with_dependencies:
            self._run('apt-get', 'install', '--yes', '--download-only', *packages)
            return sorted(archives.glob('*.deb'))
        self._run('apt-get', 'download', *packages)
        names = [package.split('=')[0] for package in packages]
        return [deb for name in names for deb in self.folder.glob(f'{name}_*.deb')]

    def unpack(self, packages, with_dependencies=False):
        """Fetches packages, unpacks them into `root`, and returns that folder."""
        wanted = self.folder / 'unpacked'
        stamp = f'{sorted(packages)} {with_dependencies}\n'
        if wanted.exists() and stamp in wanted.read_text():
            return self.root
        debs = self.fetch(packages, with_dependencies)
        self.root.mkdir(exist_ok=True)
        for deb in debs:
            subprocess.run(['dpkg-deb', '--extract', deb, self.root], check=True)
            deb.unlink()
        with wanted.open('a') as file:
            file.write(stamp)
        return self.root
