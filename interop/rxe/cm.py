"""Stock programs that connect by RDMA-CM, between urxe and kernel rxe, each side as server."""

import json
import re
import shlex
import subprocess
import time
from typing import NamedTuple

from peers import shim
from programs import SECONDS, Ours, last_line

ANY = {'v4': '0.0.0.0', 'v6': '::0'}
GROUP = {'v4': '239.7.7.7', 'v6': 'ff0e::77'}
# Far more than a server takes until it listens.
STARTING = 20
RESOURCES = 'rdma resource show cm_id'


class Program(NamedTuple):
    """Scripts of the two sides; in braces are the addresses of both, and a folder of each side."""

    client: str
    server: str = ''
    # What both print if all is well; without a server, how the client fails.
    says: str = ''
    # It serves until it is ended, and then does this.
    stays: bool = False
    after: str = ':'
    # Why it cannot be over IPv6, if so.
    only_v4: str = ''
    # How long it may take.
    seconds: int = SECONDS
    listens: bool = True


def rping(options, server='-a {server}'):
    words = f'-v -V -C 10 {options}'
    return Program(f'rping -c -a {{server}} {words}', f'rping -s {server} {words}', 'rdma-ping-9:')


def after_each_other(count, seconds=SECONDS):
    """rping connects so many times; each pings once."""
    return Program(f'[ $(for i in {{{{1..{count}}}}}; do rping -c -a {{server}} -v -V -C 1; done |'
                   f' grep -c rdma-ping-0:) = {count} ]',
                   'rping -s -P -a {server}', stays=True, seconds=seconds)


def both(name, options, says='return status 0', server='-b {server}'):
    """A program with an option for the address to bind, or to connect to."""
    return Program(f'{name} -s {{server}} {options}', f'{name} {server} {options}', says)


def perftest(program):
    why = 'perftest 4.5 asks for IPv4 addresses alone'
    return Program(f'{program} -R -F {{server}}', f'{program} -R -F', 'remote address', only_v4=why,
                   seconds=15)


UNSUPPORTED = 'the kernel joins no group of IPv6 over RoCE v2: rdma_join_multicast is answered 524'
FIRST = 'its server takes the first wildcard that it is told, which is that of IPv4'
PROGRAMS = {
    'rping -V': rping('-S 64'),
    'rping -V -S 5000': rping('-S 5000'),
    'rping -V -q': rping('-q'),
    'rping to the wildcard': rping('', '-a {any}'),
    'rping, 10 after each other': after_each_other(10),
    'ucmatose': both('ucmatose', ''),
    'ucmatose -c 20': both('ucmatose', '-c 20 -C 3'),
    'ucmatose -t 104 -a 16': both('ucmatose', '-t 104 -a 16'),
    'ucmatose -m': both('ucmatose', '-m -c 3'),
    'udaddy': both('udaddy', ''),
    'udaddy -c 20': both('udaddy', '-c 20 -C 3'),
    'mckey': Program('mckey -m {group} -b {client} -s', 'mckey -m {group} -b {server}',
                     'return status 0', only_v4=UNSUPPORTED, listens=False),
    'rdma_client': both('rdma_client', '', 'end 0', '-s {server}')._replace(
        server='rdma_server -s {server}'),
    'rdma_xclient': Program('rdma_xclient -s {server}', 'rdma_xserver', 'end 0', only_v4=FIRST),
    # Not with -T a: it may hear that the other has hung up before it hears its last words.
    'rstream': both('rstream', '-I 5 -C 5 -S 3001 -T v', 'custom'),
    'rstream -T n -S 100000': both('rstream', '-I 3 -C 5 -S 100000 -T v -T n', 'custom'),
    'riostream': both('riostream', '-I 5 -C 5 -S 3001 -T v', 'custom'),
    'rcopy': Program(
        'head -c 300001 /dev/urandom >{here}/in && rcopy {here}/in {server}:{there}/out && '
        'sha256sum <{here}/in', 'rcopy', stays=True, after='echo; sha256sum <{here}/out',
        only_v4='it takes the first colon for the end of the address'),
    'cmtime -c 50': Program('cmtime -s {server} -c 50', 'cmtime -b {server} -c 50', stays=True),
    'ib_send_bw -R -n 100': perftest('ib_send_bw -n 100'),
    'ib_send_lat -R -c UD -n 20': perftest('ib_send_lat -c UD -n 20'),
    'ib_write_bw -R -n 100': perftest('ib_write_bw -n 100'),
    'ib_read_lat -R -n 50': perftest('ib_read_lat -n 50'),
    # These connect to a port without a listener.
    'rping, refused': Program('rping -c -a {server} -C 1', says='EVENT_REJECTED, error 8'),
    'ucmatose, refused': Program('ucmatose -s {server}', says='EVENT_REJECTED, error: 8'),
    'udaddy, refused': Program('udaddy -s {server}', says='EVENT_UNREACHABLE, error: 1'),
    'rdma_client, refused': Program('rdma_client -s {server}', says='Connection refused'),
}
# Of which family, and who serves.
SHORT = [('rping -V', 'v4', 'urxe'), ('rping -V', 'v6', 'kernel'), ('ucmatose -c 20', 'v6', 'urxe'),
         ('udaddy', 'v4', 'kernel'), ('udaddy', 'v6', 'urxe'), ('rstream', 'v4', 'kernel'),
         ('rping, refused', 'v4', 'urxe'), ('ucmatose, refused', 'v6', 'kernel')]
# The raw back-end carries the same packets; these are enough to see it.
RAW = ['rping -V', 'udaddy', 'mckey']


def missing(program, family):
    """Why a program cannot be over this family, if so."""
    return PROGRAMS[program].only_v4 if family == 'v6' and program in PROGRAMS else ''


class Kernel:
    """A side of the wire: how scripts are run there, and what stands in their braces."""

    here, share = '/tmp', '/share'

    def __init__(self, guest):
        self.guest = guest

    def start(self, script, seconds):
        return self.guest.start(f'timeout {seconds} bash -c {shlex.quote(script)}')

    def listeners(self):
        """A set in which is more when another program listens."""
        return set(re.findall(r'cm-idn (\d+) state LISTEN', self.guest.run(RESOURCES)[1]))


class Urxe:
    """As Kernel; programs are those of the distribution, with the shim before them."""

    def __init__(self, guest, args, daemon):
        self.guest, self.here, self.share = guest, guest.share, guest.share
        self.run = ' '.join(shim(args, daemon.socket))
        self.stat = [args.bin / 'urxe', 'stat', '--json', '--socket', daemon.socket]

    def start(self, script, seconds):
        return Ours(self.guest, f'exec timeout {seconds} {self.run} bash -c {shlex.quote(script)}')

    def listeners(self):
        done = subprocess.run(self.stat, check=True, capture_output=True, timeout=SECONDS)
        return set(range(json.loads(done.stdout)['devices'][0]['counters']['cm_listens']))


def exchange(program, family, server, client, addresses):
    """What went wrong between a server and its client, in a line; nothing if all is well."""
    words = {'server': addresses[0], 'client': addresses[1], 'any': ANY[family],
             'group': GROUP[family]}
    asks = program.client.format(**words, here=client.here, there=server.here)
    if not program.server:
        status, text = client.start(asks, program.seconds).wait(program.seconds)
        return '' if status and program.says in text else f'exit status {status}: {last_line(text)}'

    end, answers = server.guest.share / 'end', program.server.format(**words)
    if program.stays:
        after = program.after.format(here=server.here)
        answers = (f'{answers} & until [ -e {server.share}/end ]; do sleep 0.05; done\n'
                   f'kill $!; wait; {after}')
    before, running = server.listeners(), server.start(answers, program.seconds)
    try:
        until = time.monotonic() + STARTING
        while program.listens and server.listeners() <= before and time.monotonic() < until:
            time.sleep(0.05)
        asked = client.start(asks, program.seconds).wait(program.seconds)
    finally:
        end.touch()
        answered = running.wait(program.seconds)
        end.unlink()
    wrong = [f'{side}: exit status {status}: {last_line(text)}'
             for side, (status, text) in (('client', asked), ('server', answered))
             if status and not ended(text) or program.says not in text]
    # The sums, before the name of the file.
    if not wrong and program.after != ':' and asked[1].split()[-2:] != answered[1].split()[-2:]:
        wrong = ['what arrived is not what was sent']
    return '; '.join(wrong)


def ended(text):
    """Whether a program has only failed to end: rping's two threads race for its channel then."""
    return 'rdma_get_cm_event: Bad file descriptor' in text
