"""urxe and rdma-core, built for musl with Debian's musl-gcc: what Alpine's packages are there.

All is kept in target/interop/install/musl. rdma-core and libnl are those of a Debian release, as
they were published, without a patch.
"""

import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import urllib.error
import urllib.request

import cargo
import debian

CACHE = cargo.target_directory() / 'interop' / 'install' / 'musl'
TARGET = f'{platform.machine()}-unknown-linux-musl'

# Programs and the Debian packages that have them.
TOOLS = {'musl-gcc': 'musl-tools', 'cmake': 'cmake', 'ninja': 'ninja-build', 'make': 'make',
         'pkg-config': 'pkg-config', 'flex': 'flex', 'bison': 'bison'}

# Path in Debian's pool, and SHA-256.
LIBNL = ('libn/libnl3/libnl3_3.7.0.orig.tar.gz',
         '9fe43ccbeeea72c653bdcf8c93332583135cda46a79507bfd0a483bb57f65939')
RDMA_CORE = ('r/rdma-core/rdma-core_56.1.orig.tar.gz',
             '63ce7f2baa7242c2dbc76375dac957c420187dd27f8c5e148efc07971ee522a8')

PROGRAMS = ['ibv_devinfo', 'ibv_rc_pingpong', 'ibv_ud_pingpong', 'rping', 'rstream', 'ucmatose']


class Lacking(Exception):
    """Something that is not on this machine, or cannot be fetched."""


def lacks():
    """Why nothing can be built here, if so."""
    missing = sorted(package for program, package in TOOLS.items() if not shutil.which(program))
    if missing:
        return f'needs {" ".join(missing)}: apt-get install {" ".join(missing)}'
    if not unwinder().exists():
        return f'Rust has no standard library for musl here: rustup target add {TARGET}'
    return None


def run(*command, folder, env=None):
    """Runs a command, what it prints going where ours goes."""
    print(f'+ {" ".join(str(word) for word in command)}', flush=True)
    done = subprocess.run(command, cwd=folder, env=os.environ | (env or {}),
                          stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f'{command[0]} in {folder}: exit {done.returncode}')


def unwinder():
    """Rust's own, for programs that are linked with musl statically."""
    command = ['rustc', '--print', 'sysroot']
    found = subprocess.run(command, cwd=cargo.ROOT, capture_output=True, text=True).stdout.strip()
    return pathlib.Path(found) / 'lib/rustlib' / TARGET / 'lib/self-contained/libunwind.a'


def urxe():
    """Builds `urxe`, which carries the shim, as packaging/container/README.md says; returns it."""
    # Alpine has libgcc_s.so.1; Debian's is linked with glibc.
    libraries = CACHE / 'unwinder'
    libraries.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(unwinder(), libraries / 'libgcc_s.a')
    of_target = f'CARGO_TARGET_{TARGET.replace("-", "_").upper()}'
    env = {f'{of_target}_LINKER': 'musl-gcc',
           f'{of_target}_RUSTFLAGS': f'-C target-feature=-crt-static -L native={libraries}'}
    run('cargo', 'build', '--release', '--locked', '--target', TARGET, '--package', 'urxe-tools',
        folder=cargo.ROOT, env=env)
    return cargo.target_directory() / TARGET / 'release/urxe'


def static_example():
    """Builds an example of `urxe-verbs` as Rust links programs for musl: statically."""
    folder = CACHE / 'static'
    run('cargo', 'build', '--release', '--locked', '--target', TARGET, '--package', 'urxe-verbs',
        '--example', 'ping_pong', '--target-dir', folder, folder=cargo.ROOT)
    return folder / TARGET / 'release/examples/ping_pong'


def source(path, digest):
    """Fetches a tarball of Debian's and unpacks it; returns the folder."""
    tarball = CACHE / pathlib.Path(path).name
    if not tarball.exists():
        address = f'{debian.mirror().rstrip("/")}/pool/main/{path}'
        print(f'+ fetch {address}', flush=True)
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                data = answer.read()
        except (urllib.error.URLError, OSError) as error:
            raise Lacking(f'{address}: {error}') from error
        found = hashlib.sha256(data).hexdigest()
        if found != digest:
            raise Lacking(f'{address}: its SHA-256 is {found}, expected {digest}')
        tarball.write_bytes(data)
    folder = CACHE / pathlib.Path(path).name.removesuffix('.orig.tar.gz')
    if not folder.exists():
        new = CACHE / 'new'
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        subprocess.run(['tar', '-C', new, '--strip-components=1', '-xf', tarball], check=True)
        new.rename(folder)
    return folder


def kernel_headers():
    """The kernel's headers, in a folder without glibc's."""
    folder = CACHE / 'headers'
    if not folder.exists():
        new = CACHE / 'headers.new'
        shutil.rmtree(new, ignore_errors=True)
        for name in 'linux', 'asm-generic':
            shutil.copytree(f'/usr/include/{name}', new / name)
        asm = pathlib.Path(f'/usr/include/{platform.machine()}-linux-gnu/asm')
        shutil.copytree(asm, new / 'asm')
        new.rename(folder)
    return folder


def rdma_core():
    """Builds libnl and rdma-core; returns the folders of programs and of libraries."""
    CACHE.mkdir(parents=True, exist_ok=True)
    libnl, sources = source(*LIBNL), source(*RDMA_CORE)
    flags = f'-O2 -w -idirafter {kernel_headers()}'
    prefix, jobs = CACHE / 'libnl', f'-j{os.cpu_count()}'
    if not (prefix / 'lib/pkgconfig/libnl-route-3.0.pc').exists():
        run('./configure', '--quiet', '--disable-cli', '--disable-static', f'--prefix={prefix}',
            f'--host={platform.machine()}-linux-musl', 'CC=musl-gcc', f'CFLAGS={flags}',
            folder=libnl)
        # Its programs and manual pages are not needed.
        libraries = [f'lib/libnl{name}-3.la' for name in ('', '-genl', '-idiag', '-nf', '-route',
                                                          '-xfrm')]
        run('make', '--quiet', jobs, *libraries, folder=libnl)
        run('make', '--quiet', 'install-libLTLIBRARIES', 'install-data', folder=libnl)
    build = CACHE / 'rdma-core'
    build.mkdir(exist_ok=True)
    if not (build / 'build.ninja').exists():
        # Where things lie in the root that it goes to is where Alpine's package has them.
        run('cmake', '-GNinja', '-Wno-dev', '-DCMAKE_C_COMPILER=musl-gcc',
            f'-DCMAKE_C_FLAGS={flags}', '-DCMAKE_BUILD_TYPE=Release', '-DCMAKE_INSTALL_PREFIX=/usr',
            '-DCMAKE_INSTALL_SYSCONFDIR=/etc', '-DCMAKE_INSTALL_LIBDIR=lib', '-DNO_PYVERBS=1',
            '-DNO_MAN_PAGES=1', sources, folder=build,
            env={'PKG_CONFIG_LIBDIR': str(prefix / 'lib/pkgconfig')})
    programs = [f'bin/{name}' for name in PROGRAMS]
    run('ninja', *programs, 'lib/librxe-rdmav34.so', folder=build)
    return build


def into(root):
    """Fills a root in which nothing is linked with glibc, beside the kernel's `/proc` and `/dev`."""
    build, carrier, example = rdma_core(), urxe(), static_example()
    for name in ('dev', 'etc/libibverbs.d', 'lib', 'proc', 'run/urxe', 'tmp', 'usr/bin',
                 'usr/lib/libibverbs'):
        (root / name).mkdir(parents=True)
    (root / 'tmp').chmod(0o1777)
    loader = pathlib.Path(f'/lib/ld-musl-{platform.machine()}.so.1')
    shutil.copy(loader, root / 'lib' / loader.name)
    (root / 'etc/libibverbs.d/rxe.driver').write_text('driver rxe\n')
    (root / 'etc/hosts').write_text('127.0.0.1 localhost\n')
    for pattern, folder in {'libnl-3.so.*': CACHE / 'libnl/lib',
                            'libnl-route-3.so.*': CACHE / 'libnl/lib',
                            'libibverbs.so.*': build / 'lib',
                            'librdmacm.so.*': build / 'lib'}.items():
        for library in folder.glob(pattern):
            shutil.copy(library, root / 'usr/lib' / library.name)
    shutil.copy(build / 'lib/librxe-rdmav34.so', root / 'usr/lib/libibverbs')
    for program in [*(build / 'bin' / name for name in PROGRAMS), carrier, example]:
        shutil.copy(program, root / 'usr/bin')
