"""urxe beside kernel rxe beside kernel TCP: over one veth pair, inside one guest, in one run.

Only ratios of one run mean anything: the guest has two processors, which may be emulated, and both
ends share them. urxe takes part six times: with stock programs (perftest), whose memory is shared
with the daemons where that is safe, as it is by default, or wherever it can be (`URXE_MR=remap`),
or which run their own slots; and with its own programs, which wait for completions by polling as perftest does, or
sleep until there is one, or run their own slots.
"""

import collections
import json
import pathlib
import shutil
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from guest import Guest  # noqa: E402
from image.build import KERNELS  # noqa: E402
from programs import LISTENING, PORT  # noqa: E402

ADDRESSES = {'a': '10.78.0.1', 'b': '10.78.0.2'}
SERVER = ADDRESSES['b']
BINARIES = ['urxed', 'urxe', 'liburxe_shim.so']
ROUND_TRIPS = 2000

Test = collections.namedtuple('Test', 'title operation kind size unit')
TESTS = [Test('WRITE 64 KiB', 'write', 'bw', 65536, 'Gbit/s'),
         Test('SEND 64 KiB', 'send', 'bw', 65536, 'Gbit/s'),
         Test('WRITE 64 B', 'write', 'bw', 64, '1000/s'),
         Test('WRITE 8 B', 'write', 'lat', 8, 'µs'),
         Test('SEND 8 B', 'send', 'lat', 8, 'µs'),
         Test('READ 8 B', 'read', 'lat', 8, 'µs')]


def options(parser):
    parser.add_argument('--kernel', default='6.1', choices=KERNELS)
    parser.add_argument('--mtu', type=int, nargs='+', default=[1500, 9000], help='of the link')
    parser.add_argument('--rounds', type=int, default=3, help='the table shows the median')
    parser.add_argument('--seconds', type=int, default=2, help='of each measurement of bandwidth')


# How urxe is asked to measure: by `urxe run` with stock programs, by `urxe perf` with its own.
STOCK = {'urxe, stock': 'urxe run',
         'urxe, stock, shared': 'URXE_MR=remap urxe run',
         'urxe, stock, own slot': 'urxe run --in-process'}
NATIVE = {'urxe, native': '--poll yield',
          'urxe, native, sleeping': '--poll event',
          'urxe, native, own slot': '--in-process'}
WAYS = ['kernel rxe', *STOCK, *NATIVE]


class Failed(Exception):
    """A program did not say what was asked of it."""


class Bench:
    """A guest in which things are measured."""

    def __init__(self, guest, args):
        self.guest, self.args = guest, args

    def must(self, script, timeout=60):
        status, text = self.guest.run(script, timeout)
        if status:
            raise Failed(f'{script}: exit status {status}\n{text}')
        return text

    def carry(self):
        """Brings our programs into the guest, and sees that they run there."""
        for name in BINARIES:
            shutil.copy(self.args.bin / name, self.guest.share)
        self.must('cp /share/{urxed,urxe,liburxe_shim.so} /usr/bin')
        status, text = self.guest.run('urxe --version')
        if status:
            raise SystemExit(f'our programs do not run with the C library of Debian 12: {text}'
                             'build them on Debian 12 or an older release')

    def link(self, mtu):
        shutil.copy(HERE / 'veth.sh', self.guest.share)
        self.must(f'bash /share/veth.sh {mtu}')

    def exchange(self, server, client):
        """What a client says whose server listens by then."""
        serving = self.guest.start(server)
        try:
            return self.must(f'{LISTENING}\n{client}', self.args.seconds * 5 + 60)
        except Failed as error:
            raise Failed(f'{error}\nserver: {serving.text}') from None
        finally:
            # Most servers end with their client.
            serving.wait(2)

    def tcp(self):
        """Bandwidth in Gbit/s."""
        text = self.exchange(f'iperf3 -s -1 -p {PORT}',
                             f'iperf3 -c {SERVER} -p {PORT} -J -t {self.args.seconds}')
        return json.loads(text)['end']['sum_received']['bits_per_second'] / 1e9

    def rxe(self, say):
        """What stock programs measure on the kernel's devices."""
        self.must('modprobe rdma_rxe; for end in a b; do\n'
                  'rdma link add rx$end type rxe netdev v$end || exit; done; sleep 0.5')
        try:
            return {test: self.stock(test, 'ib_{} -d rx{} -x 1', say) for test in TESTS}
        finally:
            # The module holds the UDP port of all addresses.
            self.must('modprobe -r rdma_rxe')

    def urxe(self, say):
        """What stock programs and our own measure on urxe."""
        daemons = [self.guest.start(f'exec urxed --addr {address} --socket /run/{end}.sock')
                   for end, address in ADDRESSES.items()]
        try:
            self.must('until [ -S /run/a.sock -a -S /run/b.sock ]; do sleep 0.05; done', 10)
            program = ' --daemon /run/{1}.sock -- ib_{0}'
            stock = [{test: self.stock(test, way + program, say) for test in TESTS}
                     for way in STOCK.values()]
            native = [{test: self.native(test, way, say) for test in TESTS}
                      for way in NATIVE.values()]
            return *stock, *native
        except Failed as error:
            raise Failed(f'{error}\n' + '\n'.join(daemon.text for daemon in daemons)) from None
        finally:
            for daemon in daemons:
                daemon.kill()
            self.must('rm -f /run/?.sock')

    def stock(self, test, program, say):
        """Measures by perftest; `program` has places for what it does and for the end."""
        say()
        rest = f' -F -p {PORT} -s {test.size} '
        rest += f'-D {self.args.seconds} --report_gbits' if test.kind == 'bw' else \
            f'-n {ROUND_TRIPS}'
        name = f'{test.operation}_{test.kind}'
        text = self.exchange(program.format(name, 'b') + rest,
                             f'{program.format(name, "a")}{rest} {SERVER}')
        rows = [line.split() for line in text.splitlines()
                if line.split()[:1] == [str(test.size)]]
        if not rows:
            raise Failed(f'ib_{name} printed no figures: {text}')
        row = [float(field) for field in rows[-1]]
        return {'Gbit/s': row[3], '1000/s': row[4] * 1e3, 'µs': row[4]}[test.unit]

    def native(self, test, way, say):
        """Measures by our own program; None for what no event tells of."""
        say()
        name = f'{test.operation}-{test.kind}'
        if (name, way) == ('write-lat', '--poll event'):
            return None
        program = f'urxe perf {name} --port {PORT} {way} --socket /run/'
        rest = f' --size {test.size} --duration {self.args.seconds}s --json {SERVER}'
        text = self.exchange(f'{program}b.sock', f'{program}a.sock{rest}')
        [result] = json.loads(text)['results']
        if test.unit == 'µs':
            return result['latency_us']['median']
        return result['bandwidth_gbit_s'] if test.unit == 'Gbit/s' else \
            result['messages_per_s'] / 1e3


def measure(bench, rounds, label):
    """Medians of all rounds: of TCP, and a dict of test to a figure for each of the WAYS."""
    count = rounds * len(TESTS) * len(WAYS)
    done = iter(range(1, count + 1))

    def say():
        print(f'\r{label}: {next(done)} of {count} ', end='', file=sys.stderr, flush=True)

    tcp, found = [], {test: [] for test in TESTS}
    for _ in range(rounds):
        tcp.append(bench.tcp())
        ways = bench.rxe(say), *bench.urxe(say)
        for test in TESTS:
            found[test].append([way[test] for way in ways])
    print(file=sys.stderr)
    medians = {test: [None if None in way else statistics.median(way) for way in zip(*rows)]
               for test, rows in found.items()}
    return statistics.median(tcp), medians


def table(mtu, tcp, medians):
    print(f'\nlink MTU {mtu}; kernel TCP (iperf3): {tcp:.2f} Gbit/s\n')
    print(f'| {" | ".join(["", *WAYS])} |\n{"|---" * (len(WAYS) + 1)}|')
    for test, figures in medians.items():
        cells = [cell(test, figure, figures[0], tcp) for figure in figures]
        print('|', ' | '.join([f'{test.title}, {test.unit}', *cells]), '|', flush=True)


def cell(test, figure, rxe, tcp):
    if figure is None:
        return ''
    ratios = [f'{figure / rxe:.2f} rxe'] if figure is not rxe else []
    if test.unit == 'Gbit/s':
        ratios.append(f'{figure / tcp:.2f} TCP')
    return f'{figure:.{2 if figure < 10 else 0}f}' + (f' ({", ".join(ratios)})' if ratios else '')


def run(args):
    """Prints the table; returns the exit status."""
    report = {'kernel': args.kernel, 'rounds': args.rounds, 'links': []}
    with Guest(args.kernel, name='bench', for_speed=True) as guest:
        bench = Bench(guest, args)
        bench.carry()
        bench.must('rdma link delete rxe0; modprobe -r rdma_rxe')
        for mtu in args.mtu:
            bench.link(mtu)
            tcp, medians = measure(bench, args.rounds, f'MTU {mtu}')
            table(mtu, tcp, medians)
            rows = [{**test._asdict(), **dict(zip(WAYS, figures))}
                    for test, figures in medians.items()]
            report['links'].append({'mtu': mtu, 'tcp_gbit_s': tcp, 'tests': rows})
    if args.json:
        args.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + '\n')
    return 0
