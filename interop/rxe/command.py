"""Commands in the guest. What runs them there is image/agent."""

import base64
import os
import select
import time

# What the guest has to answer within, in seconds, when it ends a command.
TIMEOUT = 30


class GuestError(Exception):
    """The guest does not do what a guest should; its commands' failures are not meant."""


class Command:
    """A script that runs in the guest, on one of its ports."""

    def __init__(self, guest, script):
        self.guest, self.status = guest, None
        self.output, self.buffer, self.begun = b'', b'', b''
        self.id = os.urandom(8).hex()
        if not guest.free:
            raise GuestError(f'{len(guest.ports)} commands run in the guest already')
        self.port = guest.free.pop()
        line = b'%s %s\n' % (self.id.encode(), base64.b64encode(script.encode()))
        try:
            self.port.sendall(line)
        except OSError:
            raise self._ended() from None

    @property
    def text(self):
        """The output so far."""
        return self.output.decode(errors='replace')

    def wait(self, timeout, echo=None):
        """(exit status, output); what takes longer is killed, and its status is 124.

        Output goes to the file `echo` as it comes.
        """
        if not self.read(timeout, echo):
            self.kill()
            self.status = 124
        return self.status, self.text

    def kill(self):
        """Ends the script and all of its session, if it still runs."""
        if self.status is None:
            session = f'/run/{self.id}.session'
            self.guest.run(f'until [ -s {session} ]; do sleep 0.05; done\n'
                           f'pkill -KILL -s "$(<{session})"', TIMEOUT)
            if not self.read(TIMEOUT):
                raise GuestError('a command in the guest does not end')

    def read(self, timeout, echo=None):
        """Reads until the script has ended; False if it has not within this time."""
        end = time.monotonic() + timeout
        while self.status is None:
            left = end - time.monotonic()
            if left < 0:
                return False
            if not select.select([self.port], [], [], left)[0]:
                continue
            part = self.port.recv(1 << 16)
            if not part:
                raise self._ended()
            self.buffer += part
            self._take(echo)
        return True

    def _ended(self):
        return GuestError(f'the guest has ended\n{self.guest.log()}')

    def _take(self, echo):
        """Takes what has come of the output, and of the status after it."""
        if not self.begun:
            # What precedes is from processes that an earlier script left behind.
            _, self.begun, rest = self.buffer.partition(f'\1{self.id} begin\n'.encode())
            if not self.begun:
                return
            self.buffer = rest
        output, mark, rest = self.buffer.partition(f'\1{self.id} end '.encode())
        if mark and rest.endswith(b'\n'):
            self.status, self.buffer = int(rest), b''
            self.guest.free.append(self.port)
        else:
            # A mark may have come in part.
            at = self.buffer.rfind(b'\1')
            at = at if at >= 0 else len(self.buffer)
            output, self.buffer = self.buffer[:at], self.buffer[at:]
        self.output += output
        if echo:
            echo.write(output)
            echo.flush()
