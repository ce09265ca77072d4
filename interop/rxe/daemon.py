"""urxed on our side of the wire."""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile


FORMS = ['uniform', 'strict']
# Of each back-end, so that a run without --wire has something of both.
FORM_OF = {'udp': 'uniform', 'raw': 'strict'}


def our_options(parser):
    parser.add_argument('--wire', choices=FORMS,
                        help='the form in which urxed sends RC messages (default: uniform with the '
                             'back-end udp, strict with raw)')
    parser.add_argument('--in-process', action='store_true',
                        help='with the data path of each of our programs in the program itself')


def form(args, backend):
    """In which a daemon with this back-end sends RC messages."""
    return args.wire or FORM_OF[backend]


class Daemon:
    """One urxed with a back-end, on the interface that leads to the guest; gone afterwards."""

    def __init__(self, guest, args, backend, *options):
        self.backend = backend
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix='urxe-interop-'))
        self.socket = self.folder / 'urxed.sock'
        self.command = [*guest.host, str(args.bin / 'urxed'), '--interface', interface(guest),
                        '--socket', str(self.socket), '--port-backend', backend,
                        '--wire', form(args, backend), *options]

    def __enter__(self):
        reader, writer = os.pipe()
        # `ip netns exec` becomes the daemon, so its process is ours to end.
        self.process = subprocess.Popen([*self.command, '--ready-fd', str(writer)],
                                        pass_fds=[writer], stdin=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True, start_new_session=True)
        os.close(writer)
        with open(reader) as ready:
            if not ready.readline():
                raise RuntimeError(f'urxed: {self.process.stderr.read()}')
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stderr.close()
        shutil.rmtree(self.folder)


def interface(guest):
    """The one that leads to the guest, whatever it is called."""
    show = [*guest.host, 'ip', '-o', '-4', 'addr', 'show', 'to', '10.77.0.0/24']
    return subprocess.run(show, check=True, capture_output=True, text=True).stdout.split()[1]
