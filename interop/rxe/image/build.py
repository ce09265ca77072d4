"""Builds what QEMU boots: a kernel of Debian's and one archive with the whole root file system.

Packages are taken apart, not installed: nothing here needs root, and no package's scripts run.
"""

import contextlib
import fcntl
import hashlib
import lzma
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))
import debian  # noqa: E402
from image import cpio  # noqa: E402

CACHE = debian.CACHE / 'rxe-guest'
# Each is the newest kernel of a suite; the programs are all of Debian 12, as its rdma-core is.
KERNELS = {'6.1': 'bookworm', '6.12': 'bookworm-backports'}
PROGRAMS = ['bash', 'coreutils', 'dash', 'ethtool', 'findutils', 'grep', 'hostname',
            'ibverbs-providers', 'ibverbs-utils', 'iperf3', 'iproute2', 'iputils-ping', 'kmod',
            'libc-bin', 'mawk', 'mount', 'perftest', 'procps', 'python3-pyverbs', 'qperf',
            'rdma-core', 'rdmacm-utils', 'sed', 'strace', 'tcpdump', 'util-linux']
UNWANTED = re.compile('usr/share/(doc|man|locale|info|perl|bash-completion|zoneinfo|i18n)/')
MODULES = re.compile('kernel/(arch|crypto|lib|net|drivers/(block|char|infiniband|virtio)'
                     '|fs/(9p|configfs|fscache|netfs))/|kernel/drivers/net/([^/]*|bonding/.*)$'
                     '|modules[.](order|builtin)')
NOT_MODULES = re.compile('drivers/infiniband/hw/|net/(wireless|mac80211|bluetooth)/')
NEEDED = {'apt-get': 'apt', 'dpkg-deb': 'dpkg', 'depmod': 'kmod',
          'zstd': 'zstd', debian.KEYS: 'debian-archive-keyring'}


def lacks(programs):
    """The packages that have to be installed for these programs (a dict: program to package)."""
    found = lambda name: pathlib.Path(name).exists() if name[0] == '/' else shutil.which(name)
    return sorted({package for name, package in programs.items() if not found(name)})


def image(kernel):
    """The files (kernel, root file system) of a guest; builds them if need be."""
    if kernel not in KERNELS:
        raise SystemExit(f'no kernel {kernel}: there are {", ".join(KERNELS)}')
    CACHE.mkdir(parents=True, exist_ok=True)
    vmlinux, initrd = CACHE / f'vmlinux-{kernel}', CACHE / f'initrd-{kernel}'
    with open(CACHE / 'lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        programs, modules = CACHE / 'programs.cpio', CACHE / f'modules-{kernel}.cpio'
        with _built(programs, __file__, cpio.__file__) as part:
            if part:
                _programs(part)
        with _built(modules, __file__, cpio.__file__) as part:
            if part:
                _kernel(kernel, vmlinux, part)
        with _built(initrd, programs, modules, HERE / 'init', HERE / 'agent') as part:
            if part:
                _join(part, programs, modules)
    return vmlinux, initrd


@contextlib.contextmanager
def _built(path, *sources):
    """Gives the name under which a file is to be written, or None if it is up to date."""
    stamp, digest = path.with_name(path.name + '.made-from'), hashlib.sha256()
    for source in map(pathlib.Path, sources):
        made_from = source.with_name(source.name + '.made-from')
        digest.update((made_from if made_from.exists() else source).read_bytes())
    if path.exists() and stamp.exists() and stamp.read_text() == digest.hexdigest():
        yield None
        return
    part = path.with_name(path.name + '.part')
    begin = time.monotonic()
    print(f'building {path.name} ...', file=sys.stderr, flush=True)
    yield part
    part.rename(path)
    stamp.write_text(digest.hexdigest())
    size, seconds = path.stat().st_size / 1e6, time.monotonic() - begin
    print(f'built {path.name}: {size:.0f} MB, {seconds:.0f} s', file=sys.stderr, flush=True)


def _need():
    missing = lacks(NEEDED)
    if missing:
        debian.cannot(f'the guest cannot be built: apt-get install {" ".join(missing)}')


@contextlib.contextmanager
def _content(deb):
    """The files of a package, as a tar file that is read once from front to end."""
    process = subprocess.Popen(['dpkg-deb', '--fsys-tarfile', deb], stdout=subprocess.PIPE)
    with process, tarfile.open(fileobj=process.stdout, mode='r|') as tar:
        yield tar
    if process.returncode:
        raise SystemExit(f'{deb}: dpkg-deb ended with {process.returncode}')


def _programs(part):
    _need()
    debs = debian.Release('bookworm', CACHE).fetch(PROGRAMS, with_dependencies=True)
    with open(part, 'wb') as file, cpio.Archive(file) as archive:
        archive.merge_usr()
        for deb in debs:
            with _content(deb) as tar:
                archive.tar(tar, lambda name: not UNWANTED.match(name))


def _kernel(kernel, vmlinux, part):
    """Writes the kernel, and the archive of its modules."""
    _need()
    release = debian.Release(KERNELS[kernel], CACHE)
    package = next(name for name in release.depends('linux-image-amd64') if 'linux-image' in name)
    [deb] = release.fetch([package])
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        root = pathlib.Path(folder)
        with _content(deb) as tar:
            for member in tar:
                _kernel_file(member, tar, root, vmlinux)
        [version] = (root / 'lib/modules').iterdir()
        subprocess.run(['depmod', '-b', root, version.name], check=True)
        with open(part, 'wb') as file, cpio.Archive(file) as archive:
            for path in sorted(root.rglob('*')):
                if path.is_file():
                    archive.file_of(path, f'usr/{path.relative_to(root)}')
    deb.unlink()


def _kernel_file(member, tar, root, vmlinux):
    name = member.name.removeprefix('./').removeprefix('usr/')
    if name.startswith('boot/vmlinuz-'):
        vmlinux.write_bytes(_uncompressed(tar.extractfile(member).read()))
    elif (member.isfile() and name.startswith('lib/modules/') and MODULES.search(name)
          and not NOT_MODULES.search(name)):
        data = tar.extractfile(member).read()
        if name.endswith('.xz'):
            name, data = name.removesuffix('.xz'), lzma.decompress(data)
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _uncompressed(vmlinuz):
    """The ELF file within: QEMU starts it as it is, and spares an emulated CPU the unpacking."""
    for magic, decompress in (b'\xfd7zXZ\0', _xz), (b'\x28\xb5\x2f\xfd', _zstd):
        at = vmlinuz.find(magic)
        data = decompress(vmlinuz[at:]) if at >= 0 else b''
        if data.startswith(b'\x7fELF'):
            return data
    raise SystemExit('the kernel is compressed in a way that is not known here')


def _xz(data):
    return lzma.LZMADecompressor().decompress(data)


def _zstd(data):
    # It complains of what follows the compressed kernel.
    return subprocess.run(['zstd', '-dcq'], input=data, capture_output=True).stdout


def _join(part, *archives):
    """One archive of several: the kernel takes them one after another."""
    with open(part, 'wb') as file:
        for archive in archives:
            with open(archive, 'rb') as source:
                shutil.copyfileobj(source, file)
        with cpio.Archive(file) as own:
            for name in 'init', 'agent':
                own.file_of(HERE / name, name)
