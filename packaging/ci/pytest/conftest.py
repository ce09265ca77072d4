"""A daemon for each test, and a way to run verbs programs on it.

Copy this file beside your tests. It needs `urxe` in PATH, or at $URXE.
"""

import os
import secrets
import subprocess
import time

import pytest

URXE = os.environ.get('URXE', 'urxe')

# How often another address is taken, should somebody have had the first.
ATTEMPTS = 20


def random_address():
    """One of the loopback network: others may run tests on this machine too."""
    return f'127.{64 + secrets.randbelow(64)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}'


class Device:
    """An RDMA device of the test's own: nothing that another test leaves is seen by this one."""

    def __init__(self, folder, *options):
        self.socket = folder / 'urxed.sock'
        self.log = folder / 'urxed.log'
        for attempt in range(1, ATTEMPTS + 1):
            self.address = random_address()
            command = [URXE, 'daemon', '--addr', self.address, '--socket', str(self.socket),
                       *options]
            with self.log.open('w') as log:
                self.daemon = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                self.wait_until_ready()
                return
            except BaseException:
                self.end()
                is_taken = f'4791 of {self.address} is taken' in self.log.read_text()
                if not is_taken or attempt == ATTEMPTS:
                    raise

    def wait_until_ready(self):
        deadline = time.monotonic() + 10
        while self.run('true', check=False).returncode:
            assert self.daemon.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def command(self, *program):
        """What runs a program on the device, and explains on stderr what fails in it."""
        return [URXE, 'run', '--explain', '--daemon', str(self.socket), '--', *program]

    def start(self, *program):
        return subprocess.Popen(self.command(*program), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def run(self, *program, check=True):
        return subprocess.run(self.command(*program), capture_output=True, text=True, check=check,
                              timeout=60)

    def end(self):
        self.daemon.terminate()
        self.daemon.wait(timeout=10)


@pytest.fixture
def device(tmp_path):
    device = Device(tmp_path)
    yield device
    device.end()


@pytest.fixture
def lossy_device(tmp_path):
    """One that loses each hundredth packet."""
    device = Device(tmp_path, '--fault', 'drop=1%')
    yield device
    device.end()
