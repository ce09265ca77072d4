"""The programs at the two ends of the wire, as the matrix commands them."""

import json
import pathlib
import select
import shutil
import subprocess
import time

FOLDER = pathlib.Path(__file__).resolve().parent.parent / 'peer'
PEER = FOLDER / 'peer.py'
# Debian's, for which python3-pyverbs is built; another may come first in PATH.
PYTHON = '/usr/bin/python3'
PORT = 7471
# Far more than anything takes, in seconds.
TIMEOUT = 120
MR_SIZE = 1 << 19
# Local write, remote write, read and atomic, window bind: everything but FLUSH.
ACCESS = 0x1f


class Gone(Exception):
    """A peer that ended or does not answer; nothing more can be done with it."""


class Peer:
    """One end: sends lines of commands and reads the answers."""

    def __init__(self, name, command, addresses, stderr=None):
        self.name, self.addresses = name, addresses
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=stderr, bufsize=0, start_new_session=True)
        self.buffer = b''
        self.hello = self.call({'do': 'hello'})[0]
        self.mr = self.call({'do': 'reg_mr', 'name': 'mr', 'len': MR_SIZE, 'access': ACCESS})[0]

    def gid_index(self, family):
        return self.hello['gids'][self.addresses[family]]

    def send(self, *commands):
        try:
            self.process.stdin.write(json.dumps(commands).encode() + b'\n')
        except OSError as error:
            raise Gone(f'{self.name}: {error}') from error

    def receive(self):
        """The answers to the line that was sent first of those not answered yet."""
        end = time.monotonic() + TIMEOUT
        while b'\n' not in self.buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], end - time.monotonic())
            part = self.process.stdout.read(1 << 16) if ready else b''
            if not part:
                raise Gone(f'{self.name}: ' + ('it ended' if ready else 'no answer'))
            self.buffer += part
        line, self.buffer = self.buffer.split(b'\n', 1)
        return json.loads(line)

    def call(self, *commands):
        self.send(*commands)
        answers = self.receive()
        for answer in answers:
            if 'error' in answer:
                raise RuntimeError(f'{self.name}: {answer["error"]}')
        return answers

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class GuestPeer:
    """The peer in the guest: started once, and talked to over TCP by way of the tap."""

    def __init__(self, guest, addresses):
        self.guest, self.addresses = guest, addresses
        for file in FOLDER.glob('*.py'):
            shutil.copy(file, guest.share)
        self.program = guest.start(f'python3 /share/peer.py --listen {PORT}')

    def connect(self):
        """A peer with nothing made yet."""
        # The wire is in a namespace of its own, where bash connects and passes lines on.
        relay = (f'exec 3<>/dev/tcp/{self.addresses["v4"]}/{PORT} && '
                 '{ cat <&3 & cat >&3; kill %1; }')
        end = time.monotonic() + TIMEOUT
        while True:
            try:
                return Peer('kernel', [*self.guest.host, 'bash', '-c', relay], self.addresses,
                            subprocess.DEVNULL)
            except Gone:
                if time.monotonic() > end:
                    raise
                time.sleep(0.3)

    def end(self):
        self.program.kill()


def shim(args, socket):
    """What runs a stock program on our side."""
    return [str(args.bin / 'urxe'), 'run', '--daemon', str(socket),
            *['--in-process'] * args.in_process, '--']


def ours(client, guest, args, socket, addresses):
    """The peer on our side: stock rdma-core through the shim, or the native client."""
    if client == 'shim':
        run = [*shim(args, socket), PYTHON, str(PEER)]
    else:
        run = [str(args.bin / 'urxe-peer'), '--socket', str(socket),
               *['--in-process'] * args.in_process]
    return Peer('urxe', [*guest.host, *run], addresses)
