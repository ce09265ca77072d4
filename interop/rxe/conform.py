"""`urxe conform` asks urxe and kernel rxe what they do, in every way that there is.

A way is what the device is used by (stock servers, or the agent of interop/agent) and what the
tester sends through (`udp`, or `raw`, which needs root). What is known of a device stands in
src/conform/known: nothing else may be wrong, and all of it must still be so.
"""

import collections
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from command import GuestError
from guest import Guest
from image.build import KERNELS

ROOT = pathlib.Path(__file__).resolve().parents[2]
KNOWN = ROOT / 'src/conform/known'
HERE = pathlib.Path(__file__).resolve().parent
DEVICES = ['urxe', *(f'rxe-{kernel}' for kernel in KERNELS)]
BACKENDS = ['udp', 'raw']
WAYS = ['servers', 'agent']
# In the guest: where programs are asked for, and where the agent listens.
REMOTE_PORT, AGENT_PORT = 7470, 7471
SERVER_PORT = 20_000
# On which the largest path MTU fits.
LINK_MTU = 9000
# More than all checks take on one way, in seconds.
TIMEOUT = 900
STARTING = 15
# Of a kernel that has come to harm, in what it says.
SIGNS = 'BUG:', 'Oops:', 'WARNING:', 'Kernel panic', 'general protection', 'RIP:', 'refcount'

Way = collections.namedtuple('Way', 'device by backend')


def options(parser):
    parser.add_argument('--full', action='store_true',
                        help='every way to both kernels; without it, one of each kind and one '
                             'kernel')
    parser.add_argument('--device', choices=DEVICES, help='only this one')
    parser.add_argument('--way', default='', metavar='TEXT',
                        help='only ways with this text, such as "agent" or "servers raw"')
    parser.add_argument('--only', action='append', default=[], metavar='NAME',
                        help='as that of `urxe conform`: an area, a check or a rule')
    parser.add_argument('--report', type=pathlib.Path, metavar='FOLDER',
                        help='keep the reports (JSON, HTML) and the packets of what is wrong')


def ways(args):
    """Those that are wanted, in the order in which they are gone."""
    found = []
    for device in DEVICES if args.full or args.device else DEVICES[:2]:
        if args.device not in (None, device):
            continue
        every = [Way(device, by, backend) for by in WAYS for backend in BACKENDS]
        # Short: every server and the agent once, each back-end once.
        short = [every[0], every[3]]
        found += every if args.full else short
    return [way for way in found if args.way in f'{way.by} {way.backend}']


class Failed(Exception):
    """A device that could not be prepared, or a tester that did not come to an end."""


class Stopped(Failed):
    """A device that is gone."""

    def __str__(self):
        return f'the device has stopped; {super().__str__()}'


@contextlib.contextmanager
def process(command, ready=None, **keywords):
    """A program of ours that runs until it is left; `ready` says whether it is."""
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
    sources = ROOT / 'interop/agent'
    subprocess.run(['cc', '-O2', '-o', program, sources / 'agent.c', sources / 'json.c',
                    '-libverbs'], check=True)
    return program


def last_check(log):
    lines = [line for line in log.read_text(errors='replace').splitlines() if line.strip()]
    return f'the last that was said is: {lines[-1] if lines else "nothing"}'


class Urxe:
    """A urxed on a loopback address."""

    ADDR, TESTER = '127.0.0.2', '127.0.0.3'

    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.socket = folder / 'urxed.sock'
        self.host = []

    def __enter__(self):
        reader, writer = os.pipe()
        self.stack = contextlib.ExitStack()
        command = [self.args.bin / 'urxed', '--addr', self.ADDR, '--socket', self.socket,
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
    def agent(self):
        with process([*self.run(), agent(self.folder), '--listen', AGENT_PORT],
                     stdout=subprocess.PIPE) as child:
            if not child.stdout.readline():
                raise Failed('the agent does not start')
            yield ['--agent', f'127.0.0.1:{AGENT_PORT}']
        child.stdout.close()

    def is_there(self):
        return self.daemon.poll() is None

    def last_words(self):
        return (self.folder / 'urxed.log').read_text(errors='replace')


class Rxe:
    """The guest with kernel rxe."""

    ADDR, TESTER = '10.77.0.2', '10.77.0.1'

    def __init__(self, kernel):
        self.guest = Guest(kernel=kernel, name=f'conform{kernel}', mtu=LINK_MTU)

    def __enter__(self):
        guest = self.guest.__enter__()
        self.host = guest.host
        shutil.copy(HERE / 'remote.py', guest.share)
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
        remote = ' '.join([sys.executable, str(HERE / 'remote.py'), self.ADDR, str(REMOTE_PORT)])
        return contextlib.nullcontext(['--run', remote, '--port', str(SERVER_PORT),
                                       '--device', 'rxe0', '--gid-index', '1'])

    @contextlib.contextmanager
    def agent(self):
        program = self._begin(f'/share/agent --device rxe0 --listen {AGENT_PORT}')
        try:
            yield ['--agent', f'{self.ADDR}:{AGENT_PORT}']
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


def ask(args, device, way, folder, only=(), known=True):
    """Plays the checks; (what was found, whether all of it is known)."""
    folder = folder / f'{way.device}-{way.by}-{way.backend}'
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / 'report.json'
    report.unlink(missing_ok=True)
    with getattr(device, way.by)() as words, open(folder / 'log', 'wb') as log:
        command = [*device.host, args.bin / 'urxe', 'conform', device.ADDR,
                   '--addr', device.TESTER, '--backend', way.backend, *words,
                   '--json', report,
                   '--html', folder / 'report.html', '--pcap', folder / 'packets']
        if known:
            command += ['--known', KNOWN / f'{way.device}.txt']
        for name in only or args.only:
            command += ['--only', name]
        with process(command, stdout=log, stderr=log) as tester:
            end = time.monotonic() + TIMEOUT
            while tester.poll() is None:
                if not device.is_there():
                    raise Stopped(last_check(folder / 'log'))
                if time.monotonic() > end:
                    raise Failed(f'no end after {TIMEOUT} s: {last_check(folder / "log")}')
                time.sleep(0.2)
            status = tester.returncode
    if not report.exists():
        lines = (folder / 'log').read_text(errors='replace').splitlines()
        raise Failed(lines[-1] if lines else f'exit status {status}')
    return json.loads(report.read_text()), status == 0, folder / 'log'


def device_of(args, name, folder):
    return Urxe(args, folder) if name == 'urxe' else Rxe(name.removeprefix('rxe-'))


def stopping(device):
    """The checks that are known to stop it."""
    lines = (KNOWN / f'{device}.txt').read_text().splitlines()
    return [line.split()[0] for line in lines if line.split()[1:2] == ['stops']]


def tell(way, found, is_known, seconds, log):
    verdicts = collections.Counter(check['verdict'] for check in found['checks'])
    counts = ', '.join(f'{count} {verdict}' for verdict, count in verdicts.most_common())
    what = 'as known' if is_known else 'NOT AS KNOWN'
    print(f'{" ".join(way):24}{what}: {counts}, {seconds:.0f} s', flush=True)
    if not is_known:
        # Complaints come last.
        for line in log.read_text(errors='replace').splitlines():
            if ', which is not known' in line or 'known results have it' in line:
                print(f'    {line}', flush=True)


def go(args, name, asked, folder, scratch):
    """Asks one device in these ways; how many of them went wrong."""
    wrong = 0
    with device_of(args, name, scratch) as device:
        for way in asked:
            begin = time.monotonic()
            try:
                found, is_known, log = ask(args, device, way, folder)
                tell(way, found, is_known, time.monotonic() - begin, log)
                wrong += not is_known
            except Failed as error:
                print(f'{" ".join(way):24}FAILED: {error}', flush=True)
                wrong += 1
            if not device.is_there():
                print(device.last_words(), flush=True)
                break
    return wrong


def stop(args, name, check, folder, scratch):
    """Whether a check stops the device that is known to; it is a device of its own that is."""
    way = Way(name, 'agent', 'udp')
    with device_of(args, name, scratch) as device:
        try:
            ask(args, device, way, folder / 'stops', [check], known=False)
        except Stopped:
            print(f'{name}: {check} stops it, as known', flush=True)
            return True
        except Failed as error:
            print(f'{name}: {check}: {error}', flush=True)
            return False
    print(f'{name}: {check} DOES NOT STOP IT, and not as known', flush=True)
    return False


def run(args):
    wrong = 0
    wanted = ways(args)
    if os.geteuid():
        print('without root: no raw port and no guest', flush=True)
        wanted = [way for way in wanted if way.device == 'urxe' and way.backend == 'udp']
    with tempfile.TemporaryDirectory(prefix='urxe-conform-') as temporary:
        folder = args.report or pathlib.Path(temporary)
        for name in dict.fromkeys(way.device for way in wanted):
            scratch = pathlib.Path(temporary) / name
            scratch.mkdir()
            asked = [way for way in wanted if way.device == name]
            wrong += go(args, name, asked, folder, scratch)
            if args.full and not args.only and not args.way:
                wrong += sum(not stop(args, name, check, folder, scratch)
                             for check in stopping(name))
    return 1 if wrong else 0
