"""`urxe conform` asks urxe and kernel rxe what they do, in every way that there is.

A way is what the device is used by (stock servers, or the agent of interop/agent) and what the
tester sends through (`udp`, or `raw`, which needs root); in each, rping and udaddy wait for the
connection manager's requests. What is known of a device stands in src/conform/known: nothing else
may be wrong, and all of it must still be so.
"""

import collections
import concurrent.futures
import contextlib
import json
import os
import pathlib
import tempfile
import threading
import time

import differences
from command import GuestError
from devices import NAMES, ROOT, Failed, Rxe, Stopped, Urxe, process

KNOWN = ROOT / 'src/conform/known'
BACKENDS = ['udp', 'raw']
WAYS = ['servers', 'agent']
# More than all checks take on one way, in seconds.
TIMEOUT = 900
# Set when nobody wants to know any more.
INTERRUPTED = threading.Event()

Way = collections.namedtuple('Way', 'device by backend')


def options(parser):
    parser.add_argument('--full', action='store_true',
                        help='every way to both kernels; without it, one of each kind and one '
                             'kernel')
    parser.add_argument('--device', choices=NAMES, help='only this one')
    parser.add_argument('--way', default='', metavar='TEXT',
                        help='only ways with this text, such as "agent" or "servers raw"')
    parser.add_argument('--only', action='append', default=[], metavar='NAME',
                        help='as that of `urxe conform`: an area, a check or a rule')
    parser.add_argument('--reply-timeout', default='250', metavar='MS',
                        help='as that of `urxe conform`: more, where the machine is busy')
    parser.add_argument('--report', type=pathlib.Path, metavar='FOLDER',
                        help='keep the reports (JSON, HTML) and the packets of what is wrong')
    parser.add_argument('--differences', type=pathlib.Path, metavar='FILE',
                        help='write what the devices do otherwise as a page of Markdown, such as '
                             'src/conform/differences.md')


def ways(args):
    """Those that are wanted, in the order in which they are gone."""
    found = []
    for device in NAMES if args.full or args.device else NAMES[:2]:
        if args.device not in (None, device):
            continue
        every = [Way(device, by, backend) for by in WAYS for backend in BACKENDS]
        # Short: every server and the agent once, each back-end once.
        short = [every[0], every[3]]
        found += every if args.full else short
    return [way for way in found if args.way in f'{way.by} {way.backend}']


def last_check(log):
    lines = [line for line in log.read_text(errors='replace').splitlines() if line.strip()]
    return f'the last that was said is: {lines[-1] if lines else "nothing"}'


def ask(args, device, way, folder, only=(), known=True):
    """Plays the checks; (what was found, whether all of it is known, the log)."""
    folder = folder / f'{way.device}-{way.by}-{way.backend}'
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / 'report.json'
    report.unlink(missing_ok=True)
    with (device.listeners(way.by) as cm, getattr(device, way.by)() as words,
          open(folder / 'log', 'wb') as log):
        command = [*device.host, args.bin / 'urxe', 'conform', device.addr,
                   '--addr', device.tester, '--backend', way.backend, *cm, *words,
                   '--reply-timeout', args.reply_timeout, '--json', report,
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
                if INTERRUPTED.wait(0.2):
                    raise Failed('interrupted')
                if time.monotonic() > end:
                    raise Failed(f'no end after {TIMEOUT} s: {last_check(folder / "log")}')
            status = tester.returncode
    if not report.exists():
        lines = (folder / 'log').read_text(errors='replace').splitlines()
        raise Failed(lines[-1] if lines else f'exit status {status}')
    return json.loads(report.read_text()), status == 0, folder / 'log'


def device_of(args, name, folder):
    return Urxe(args, folder) if name == 'urxe' else Rxe(name.removeprefix('rxe-'))


def known_of(device):
    """{check: {verdict: reason}}."""
    found = collections.defaultdict(dict)
    for line in (KNOWN / f'{device}.txt').read_text().splitlines():
        if line and line[0] != '#':
            check, verdict, reason = line.split(maxsplit=2)
            found[check][verdict] = reason
    return found


def tell(way, found, is_known, seconds, log):
    verdicts = collections.Counter(check['verdict'] for check in found['checks'])
    counts = ', '.join(f'{count} {verdict}' for verdict, count in verdicts.most_common())
    what = 'as known' if is_known else 'NOT AS KNOWN'
    lines = [f'{" ".join(way):24}{what}: {counts}, {seconds:.0f} s']
    if not is_known:
        # Complaints come last.
        lines += [f'    {line}' for line in log.read_text(errors='replace').splitlines()
                  if ', which is not known' in line or 'known results have it' in line]
    print('\n'.join(lines), flush=True)


def go(args, name, asked, folder, scratch):
    """Asks one device in these ways; what was found, and how many of them went wrong."""
    reports, wrong = {}, 0
    with device_of(args, name, scratch) as device:
        for way in asked:
            begin = time.monotonic()
            try:
                reports[way], is_known, log = ask(args, device, way, folder)
                tell(way, reports[way], is_known, time.monotonic() - begin, log)
                wrong += not is_known
            except Failed as error:
                print(f'{" ".join(way):24}FAILED: {error}', flush=True)
                wrong += 1
            if not device.is_there():
                print(device.last_words(), flush=True)
                break
    return reports, wrong


def stop(args, name, check, folder, scratch):
    """What the device says at last of which a check is known to stop it; None: it does not."""
    way = Way(name, 'agent', 'udp')
    with device_of(args, name, scratch) as device:
        try:
            ask(args, device, way, folder / 'stops', [check], known=False)
        except Stopped:
            print(f'{name}: {check} stops it, as known', flush=True)
            return device.last_words() or 'nothing'
        except Failed as error:
            print(f'{name}: {check}: {error}', flush=True)
            return None
    print(f'{name}: {check} DOES NOT STOP IT, and not as known', flush=True)
    return None


def examine(args, name, asked, folder, scratch):
    """All that is asked of one device: (reports by way, last words by check, how much is wrong)."""
    scratch = scratch / name
    scratch.mkdir()
    stops = {}
    try:
        reports, wrong = go(args, name, asked, folder, scratch)
        if args.full and not args.only and not args.way:
            checks = [check for check, verdicts in known_of(name).items() if 'stops' in verdicts]
            stops = {check: stop(args, name, check, folder, scratch) for check in checks}
            wrong += sum(words is None for words in stops.values())
    except (Failed, GuestError) as error:
        print(f'{name}: FAILED: {error}', flush=True)
        return {}, {}, 1
    return reports, stops, wrong


def run(args):
    wanted = ways(args)
    if os.geteuid():
        print('without root: no raw port and no guest', flush=True)
        wanted = [way for way in wanted if way.device == 'urxe' and way.backend == 'udp']
    names = list(dict.fromkeys(way.device for way in wanted))
    with contextlib.ExitStack() as stack:
        scratch = pathlib.Path(stack.enter_context(
            tempfile.TemporaryDirectory(prefix='urxe-conform-')))
        # Most of the time the tester waits, so the devices are asked at the same time.
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(len(NAMES)))
        stack.push(lambda error, *_: error and INTERRUPTED.set())
        asked = {name: [way for way in wanted if way.device == name] for name in names}
        tasks = {name: pool.submit(examine, args, name, asked[name], args.report or scratch,
                                   scratch) for name in names}
        found = {name: task.result() for name, task in tasks.items()}
    if args.differences:
        devices = [differences.Device(name, list(reports.values()), stops, known_of(name))
                   for name, (reports, stops, _) in found.items()]
        args.differences.write_text(differences.page(devices))
    return 1 if any(wrong for *_, wrong in found.values()) else 0
