"""The devices that `urxe conform` is tried on, and the programs that wait on them."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from command import GuestError
from guest import Guest
from image.build import KERNELS

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
NAMES = ['urxe', *(f'rxe-{kernel}' for kernel in KERNELS)]
# In the guest: where programs are asked for, and where the agent listens.
REMOTE_PORT, AGENT_PORT = 7470, 7471
SERVER_PORT = 20_000
# For the connection manager; that of udaddy cannot be chosen.
CM_PORT, DATAGRAM_PORT = 7472, 7174
# Who accepts connections: a stock program, which some checks make end; and where there is a program
# of ours anyway, one that uses what stock ones do not.
ACCEPTING = {'servers': f'rping -s -P -p {CM_PORT}',
             'agent': f'python3 "$0/listener.py" {CM_PORT}'}
# Takes so many callers and no more.
DATAGRAMS = 'udaddy -c 1000'
CM_WORDS = ['--cm', CM_PORT, '--cm-datagrams', DATAGRAM_PORT]
# On which the largest path MTU fits.
LINK_MTU = 9000
# Of librdmacm-dev, without which the agent does not use the connection manager.
RDMA_CM = pathlib.Path('/usr/include/rdma/rdma_cma.h')
STARTING = 60
# Of a kernel that has come to harm, in what it says.
SIGNS = 'BUG:', 'Oops:', 'WARNING:', 'Kernel panic', 'general protection', 'RIP:', 'refcount'


class Failed(Exception):
    """A device that could not be prepared, or a tester that did not come to an end."""


class Stopped(Failed):
    """A device that is gone."""

    def __str__(self):
        return f'the device has stopped; {super().__str__()}'


@contextlib.contextmanager
def process(command, **keywords):
    """A program of ours that runs until it is left."""
    child = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                             start_new_session=True, **keywords)
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def agent(folder):
    """The program that does what it is told, built here."""
    program = folder / 'agent'
    sources = [ROOT / 'interop/agent' / name for name in ('agent.c', 'json.c')]
    libraries = ['-libverbs']
    if RDMA_CM.exists():
        # It connects by the connection manager too.
        sources.append(sources[0].with_name('cm.c'))
        libraries += ['-lrdmacm', '-DRDMACM']
    subprocess.run(['cc', '-O2', '-o', program, *sources, *libraries], check=True)
    return program


def listeners(by):
    """The shell script that has programs wait for the connection manager's requests."""
    loops = [f'while sleep 0.1; do {program}; done >/dev/null 2>&1 &'
             for program in (ACCEPTING[by], DATAGRAMS)]
    return ' '.join([*loops, 'wait'])


def prepare_listener(folder):
    """Puts the program that accepts connections, and what it needs, into a folder."""
    for program in HERE / 'listener.py', ROOT / 'interop/peer/cm.py':
        shutil.copy(program, folder)


class Urxe:
    """A urxed on a loopback address."""

    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        # Others on this machine have addresses of their own.
        self.addr, self.tester = (f'127.78.{os.getpid() % 250}.{number}' for number in (2, 3))
        self.socket = folder / 'urxed.sock'
        prepare_listener(folder)
        self.host = []

    def __enter__(self):
        reader, writer = os.pipe()
        self.stack = contextlib.ExitStack()
        command = [self.args.bin / 'urxed', '--addr', self.addr, '--socket', self.socket,
                   '--ready-fd', writer]
        log = self.stack.enter_context(open(self.folder / 'urxed.log', 'wb'))
        self.daemon = self.stack.enter_context(process(command, pass_fds=[writer], stderr=log))
        os.close(writer)
        with open(reader) as ready:
            if not ready.readline():
                self.stack.close()
                raise Failed(f'urxed: {(self.folder / "urxed.log").read_text()}')
        return self

    def __exit__(self, *_):
        self.stack.close()

    def run(self):
        return [self.args.bin / 'urxe', 'run', '--daemon', self.socket, '--']

    def servers(self):
        return contextlib.nullcontext(
            ['--run', ' '.join(map(str, self.run())), '--port', str(SERVER_PORT)])

    @contextlib.contextmanager
    def listeners(self, by):
        with process([*self.run(), 'sh', '-c', listeners(by), self.folder]):
            yield CM_WORDS

    @contextlib.contextmanager
    def agent(self):
        with process([*self.run(), agent(self.folder), '--listen', AGENT_PORT],
                     stdout=subprocess.PIPE) as child:
            if not child.stdout.readline():
                raise Failed('the agent does not start')
            yield ['--agent', f'{self.addr}:{AGENT_PORT}']
        child.stdout.close()

    def is_there(self):
        return self.daemon.poll() is None

    def last_words(self):
        return (self.folder / 'urxed.log').read_text(errors='replace')


class Rxe:
    """The guest with kernel rxe."""

    addr, tester = '10.77.0.2', '10.77.0.1'

    def __init__(self, kernel, number):
        """`number` tells guests with the same kernel apart."""
        name = f'conform-{kernel}-{os.getpid()}-{number}'
        self.guest = Guest(kernel=kernel, name=name, mtu=LINK_MTU)

    def __enter__(self):
        guest = self.guest.__enter__()
        self.host = guest.host
        shutil.copy(HERE / 'remote.py', guest.share)
        prepare_listener(guest.share)
        agent(guest.share)
        self._begin(f'python3 /share/remote.py --serve {REMOTE_PORT}')
        return self

    def __exit__(self, *_):
        self.guest.__exit__()

    def _begin(self, script):
        """Starts what says in a line that it is ready."""
        program = self.guest.start(script)
        end = time.monotonic() + STARTING
        while not program.read(0.05):
            if b'\n' in program.output:
                return program
            if time.monotonic() > end:
                break
        raise Failed(f'in the guest: {script}: {program.text}')

    def servers(self):
        remote = ' '.join([sys.executable, str(HERE / 'remote.py'), self.addr, str(REMOTE_PORT)])
        return contextlib.nullcontext(['--run', remote, '--port', str(SERVER_PORT),
                                       '--device', 'rxe0', '--gid-index', '1'])

    @contextlib.contextmanager
    def listeners(self, by):
        with self._ended(self.guest.start(f"sh -c '{listeners(by)}' /share")):
            yield CM_WORDS

    @contextlib.contextmanager
    def agent(self):
        with self._ended(self._begin(f'/share/agent --device rxe0 --listen {AGENT_PORT}')):
            yield ['--agent', f'{self.addr}:{AGENT_PORT}']

    @contextlib.contextmanager
    def _ended(self, program):
        """Ends a program of the guest when it is left, if the guest is still there."""
        try:
            yield
        finally:
            if self.is_there():
                program.kill()

    def is_there(self):
        try:
            os.kill(self.guest.pid(), 0)
        except (OSError, ValueError):
            return False
        return True

    def last_words(self):
        """What the kernel says, if it has come to harm."""
        try:
            _, text = self.guest.run('dmesg | tail -200', 20)
        except (GuestError, OSError):
            text = (self.guest.folder / 'console.log').read_text(errors='replace')
        return '\n'.join(line for line in text.splitlines()
                         if any(sign in line for sign in SIGNS))
