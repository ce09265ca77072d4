"""Every operation between urxe and kernel rxe, in both directions, over a real wire.

A cell is one operation in several sizes between one pair of QPs, made for it; the data is verified
at both ends, and every field of the completions. A row is a transport, an operation and who
requests; a column is what is varied beside: our back-end, our client, the family of the addresses
and the path MTU. Stock programs are rows too.
"""

import collections
import contextlib
import itertools
import json
import pathlib
import time

import captures
import cells
import cm
import ping
import programs
from daemon import Daemon, our_options
from exchange import Exchange, Failure
from guest import Guest
from image.build import KERNELS
from peers import ours, shim, GuestPeer
from required import Required

HOST = {'v4': '10.77.0.1', 'v6': 'fd77::1'}
GUEST = {'v4': '10.77.0.2', 'v6': 'fd77::2'}
# A link on which the largest path MTU fits.
LINK_MTU = 9000
# Datagrams and UC may lose a message, and it is not repeated. Stock programs have timeouts of their
# own, half a second in all, which an emulated machine beside a compiler may need.
ATTEMPTS = 3

Result = collections.namedtuple('Result', 'cell outcome reason seconds')


def options(parser):
    parser.add_argument('--kernel', default='all', choices=[*KERNELS, 'all'])
    our_options(parser)
    parser.add_argument('--short', action='store_true',
                        help='only the first kernel, and few combinations')
    parser.add_argument('--only', default='', metavar='TEXT',
                        help='only cells with this text, such as "UD multicast" or "raw native"')
    parser.add_argument('--keep-pcap', type=pathlib.Path, metavar='FOLDER',
                        help='capture each column, and have tshark and Scapy judge it')
    parser.add_argument('--update', action='store_true',
                        help='add what passes to interop/required.toml')


def attempt(cell, requester, responder):
    x = Exchange(requester, responder, cell.transport, cell.family, cell.mtu)
    try:
        cell.operation.run(x)
        x.close()
        return None
    except (Failure, RuntimeError) as error:
        with contextlib.suppress(Failure):
            x.close()
        return str(error)


def run_operation(cell, ours, theirs):
    requester, responder = (ours, theirs) if cell.by == 'urxe' else (theirs, ours)
    return attempt(cell, requester, responder)


def run_program(cell, guest, args, daemon):
    if cell.program in cm.PROGRAMS:
        sides = cm.Urxe(guest, args, daemon), cm.Kernel(guest)
        addresses = HOST[cell.family], GUEST[cell.family]
        if cell.by == 'kernel':
            sides, addresses = sides[::-1], addresses[::-1]
        return cm.exchange(cm.PROGRAMS[cell.program], cell.family, *sides, addresses)
    if cell.program == ping.PROGRAM:
        return ping.exchange(guest, args.bin, daemon, GUEST[cell.family])
    # They meet over TCP, and that over IPv4 in any case.
    urxe = ' '.join(shim(args, daemon.socket))
    return programs.exchange(cell.program, cell.family, cell.by, guest, urxe,
                             (HOST['v4'], GUEST['v4']))


def judged(cell, run):
    """Runs a cell, again if a message may have been lost, and says what became of it."""
    if cell.missing:
        return Result(cell, 'skip', cell.missing, 0)
    begin, reasons = time.monotonic(), []
    for _ in range(1 if cell.operation and cell.transport == 'RC' else ATTEMPTS):
        wrong = run()
        if not wrong:
            note = f'only at attempt {len(reasons) + 1}: {reasons[-1]}' if reasons else ''
            return Result(cell, 'pass', note, time.monotonic() - begin)
        reasons.append(wrong)
    return Result(cell, 'fail', reasons[-1], time.monotonic() - begin)


class Run:
    """The cells of one kernel."""

    def __init__(self, args, kernel):
        self.args, self.kernel = args, kernel
        self.results = []

    def wanted(self):
        found = cells.short(self.kernel) if self.args.short else cells.every(self.kernel)
        return [cell for cell in found if self.args.only in f'{cell.row} {cell.column}']

    def run(self):
        with Guest(kernel=self.kernel, name=f'matrix{self.kernel}', mtu=LINK_MTU) as guest:
            programs.bring(guest)
            theirs = GuestPeer(guest, GUEST)
            try:
                wanted = sorted(self.wanted(), key=lambda cell: cells.BACKENDS.index(cell.backend))
                for backend, part in itertools.groupby(wanted, key=lambda cell: cell.backend):
                    with Daemon(guest, self.args, backend) as daemon:
                        self.backend(guest, daemon, theirs, list(part))
            finally:
                theirs.end()
        return self.results

    def backend(self, guest, daemon, theirs, part):
        """Peers stay for all cells of a client, since they take longer to start than a cell."""
        operations = [cell for cell in part if cell.operation]
        for client, same in itertools.groupby(operations, key=lambda cell: cell.client):
            kernel = theirs.connect()
            peer = ours(client, guest, self.args, daemon.socket, HOST)
            try:
                for column, group in itertools.groupby(same, key=lambda cell: cell.column):
                    self.group(guest, column, list(group),
                               lambda cell: run_operation(cell, peer, kernel))
            finally:
                peer.end()
                kernel.end()
        rest = [cell for cell in part if not cell.operation]
        for column, group in itertools.groupby(rest, key=lambda cell: cell.column):
            self.group(guest, column + ' programs', list(group),
                       lambda cell: run_program(cell, guest, self.args, daemon))

    def group(self, guest, name, group, run):
        begin = time.monotonic()
        with captures.kept(self.args.keep_pcap, guest, f'{self.kernel} {name}') as file:
            found = [judged(cell, lambda: run(cell)) for cell in group]
        self.results += found
        counts = collections.Counter(result.outcome for result in found)
        counted = ', '.join(f'{counts[key]} {key}' for key in ('pass', 'fail', 'skip')
                            if counts[key])
        print(f'{self.kernel:6}{name:28}{counted} in {time.monotonic() - begin:.1f} s', flush=True)
        for result in found:
            if result.outcome == 'fail' or result.outcome == 'pass' and result.reason:
                print(f'      {result.outcome}: {result.cell.row}: {result.reason}', flush=True)
        if file:
            for problem in captures.problems(file):
                print(f'      CAPTURE {file}: {problem}', flush=True)
                wrong = cells.capture(self.kernel, name)
                self.results.append(Result(wrong, 'fail', problem, 0))


def table(results):
    """A line for each row: how many of its cells passed, on each kernel."""
    kernels = list(dict.fromkeys(result.cell.kernel for result in results))
    rows = collections.defaultdict(lambda: collections.defaultdict(collections.Counter))
    for result in results:
        rows[result.cell.row][result.cell.kernel][result.outcome] += 1
    lines = [f'{"passed of run":48}' + ''.join(f'{kernel:>10}' for kernel in kernels)]
    for row, counts in rows.items():
        line = f'{row:48}'
        for kernel in kernels:
            count = counts[kernel]
            ran = count['pass'] + count['fail']
            line += (f'{count["pass"]}/{ran}' if ran else '-').rjust(10)
        lines.append(line)
    return '\n'.join(lines)


def is_full(args):
    """Whether all is run that there is."""
    return args.kernel == 'all' and not args.short and not args.only


def is_capture(cell):
    return not cell.transport


def verdict(args, results):
    """Compares with what is required; returns the places that are broken."""
    columns = collections.defaultdict(list)
    for kernel in KERNELS:
        for cell in cells.every(kernel):
            if not cell.missing:
                columns[kernel, cell.row].append(cell.column)
    required, broken, new = Required(columns), [], collections.Counter()
    for result in results:
        place = result.cell.kernel, result.cell.row, result.cell.column
        if result.outcome == 'fail':
            fault, must = required.kernels_fault(*place), required.is_required(*place)
            what = 'REQUIRED, BROKEN' if must else 'fails'
            print(f'{what}: {" | ".join(place)}: {result.reason}'
                  + (f'\n    the kernel: {fault}' if fault else ''))
        if result.outcome != 'pass' and (required.is_required(*place) or is_capture(result.cell)):
            broken.append(place)
        elif result.outcome == 'pass' and not required.is_required(*place):
            new[place[:2]] += 1
            if args.update:
                required.add(*place)
    if is_full(args):
        # What cannot be any more has a result, which is none that passes.
        for place in sorted(set(required.gone()) - set(broken)):
            print(f'REQUIRED, BROKEN: {" | ".join(place)}: is not in the matrix any more')
            broken.append(place)
    for (kernel, row), count in new.items():
        print(f'{"added" if args.update else "may be added"}: {kernel} | {row}: {count} cells pass')
    if args.update:
        required.write()
    return broken


def run(args):
    args.bin = args.bin.resolve()
    for program in ('urxe', 'urxed', 'urxe-peer'):
        if not (args.bin / program).exists():
            raise SystemExit(f'no {args.bin}/{program}: cargo build --release --workspace')
    begin, results = time.monotonic(), []
    kernels = list(KERNELS) if args.kernel == 'all' else [args.kernel]
    for kernel in kernels[:1] if args.short else kernels:
        results += Run(args, kernel).run()
    print('\n' + table(results) + '\n')
    broken = verdict(args, results)
    if args.json:
        rows = [{'kernel': r.cell.kernel, 'row': r.cell.row, 'column': r.cell.column,
                 'outcome': r.outcome, 'reason': r.reason, 'seconds': round(r.seconds, 3)}
                for r in results]
        args.json.write_text(json.dumps(rows, indent=1) + '\n')
    counts = collections.Counter(result.outcome for result in results)
    print(f'{counts["pass"]} cells pass, {counts["fail"]} fail, {counts["skip"]} cannot be, '
          f'{len(broken)} required ones broken, in {time.monotonic() - begin:.0f} s')
    return 1 if broken or not counts['pass'] else 0
