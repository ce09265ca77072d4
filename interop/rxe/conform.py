"""`urxe conform` asks urxe and kernel rxe what they do, in every way that there is.

A way is what the device is used by (stock servers, or the agent of interop/agent) and what the
tester sends through (`udp`, or `raw`, which needs root); in each, rping and udaddy wait for the
connection manager's requests. What is known of a device stands in src/conform/known: nothing else
may be wrong, and all of it must still be so.

A guest is emulated where there is no KVM, by processors that may stay away for long: what is not as
known of it is asked once more.
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

import cargo
import differences
import known
from command import GuestError
from devices import NAMES, ROOT, Failed, Rxe, Stopped, Urxe, process

BACKENDS = ['udp', 'raw']
WAYS = ['servers', 'agent']
# More than all checks take on one way, in seconds.
TIMEOUT = 1500
# How often it is said how far a way has come, in seconds.
PROGRESS = 30
# Set when nobody wants to know any more.
INTERRUPTED = threading.Event()

Way = collections.namedtuple('Way', 'device by backend')


def options(parser):
    parser.add_argument('--full', action='store_true',
                        help='every way to both kernels; without it, two to urxe and one to one '
                             'kernel')
    parser.add_argument('--device', choices=NAMES, help='only this one')
    parser.add_argument('--way', default='', metavar='TEXT',
                        help='only ways with this text, such as "agent" or "servers raw"')
    parser.add_argument('--only', action='append', default=[], metavar='NAME',
                        help='as that of `urxe conform`: an area, a check or a rule')
    parser.add_argument('--reply-timeout', metavar='MS',
                        help='as that of `urxe conform`, which measures what is needed')
    parser.add_argument('--report', type=pathlib.Path, metavar='FOLDER',
                        default=cargo.target_directory() / 'conform',
                        help='where the reports (JSON, HTML) go, the packets of what is wrong, and '
                             'with --full the lists of what is known as they would be now '
                             '(default: conform, where cargo puts what it builds)')
    parser.add_argument('--renew', action='store_true',
                        help='with --full: write these lists to src/conform/known; reasons of new '
                             'lines are what was seen, for a person to find better ones')
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
        # Short: every server and the agent once, each back-end once; of a guest, where programs
        # start slowly, what plays most checks.
        short = [every[0], every[3]] if device == 'urxe' else [every[3]]
        found += every if args.full or args.way else short
    return [way for way in found if args.way in f'{way.by} {way.backend}']


def last_check(log):
    lines = [line for line in log.read_text(errors='replace').splitlines() if line.strip()]
    return f'the last that was said is: {lines[-1] if lines else "nothing"}'


def ask(args, device, way, folder, only=(), is_compared=True):
    """Plays the checks; (what was found, what of it is not as known, in sentences)."""
    folder = folder / '-'.join(way)
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / 'report.json'
    report.unlink(missing_ok=True)
    with (device.listeners(way.by) as cm, getattr(device, way.by)() as words,
          open(folder / 'log', 'wb') as log):
        command = [*device.host, args.bin / 'urxe', 'conform', device.addr,
                   '--addr', device.tester, '--backend', way.backend, *cm, *words,
                   '--json', report, '--html', folder / 'report.html',
                   '--pcap', folder / 'packets']
        if args.reply_timeout:
            command += ['--reply-timeout', args.reply_timeout]
        if is_compared:
            command += ['--known', known.path(way.device)]
        for name in only or args.only:
            command += ['--only', name]
        with process(command, stdout=log, stderr=log) as tester:
            begin = told = time.monotonic()
            while tester.poll() is None:
                if not device.is_there():
                    raise Stopped(last_check(folder / 'log'))
                if INTERRUPTED.wait(0.2):
                    raise Failed('interrupted')
                now = time.monotonic()
                if now > begin + TIMEOUT:
                    raise Failed(f'no end after {TIMEOUT} s: {last_check(folder / "log")}')
                if now > told + PROGRESS:
                    told = now
                    print(f'{" ".join(way):24}{now - begin:.0f} s; {last_check(folder / "log")}',
                          flush=True)
            status = tester.returncode
    lines = (folder / 'log').read_text(errors='replace').splitlines()
    if not report.exists():
        raise Failed(lines[-1] if lines else f'exit status {status}')
    # The tester's complaints.
    complaints = [line for line in lines
                  if ', which is not known' in line or 'known results have it' in line]
    if status and is_compared and not complaints:
        raise Failed(lines[-1] if lines else f'exit status {status}')
    return json.loads(report.read_text()), complaints


def ask_again(args, device, way, folder, found, complaints):
    """Asks once more what is not as known, into what was found; what is still not so."""
    names = list(dict.fromkeys(line.partition(':')[0] for line in complaints))
    print(f'{" ".join(way):24}{len(names)} not as known: they are asked again', flush=True)
    again, complaints = ask(args, device, way, folder / 'again', names)
    instead = {check['name']: check for check in again['checks']}
    found['checks'] = [instead.get(check['name'], check) for check in found['checks']]
    return complaints


def device_of(args, name, folder, number):
    if name == 'urxe':
        return Urxe(args, folder)
    return Rxe(name.removeprefix('rxe-'), number)


def tell(way, found, complaints, seconds):
    verdicts = collections.Counter(check['verdict'] for check in found['checks'])
    counts = ', '.join(f'{count} {verdict}' for verdict, count in verdicts.most_common())
    what = 'NOT AS KNOWN' if complaints else 'as known'
    lines = [f'{" ".join(way):24}{what}: {counts}, {seconds:.0f} s']
    print('\n'.join(lines + [f'    {line}' for line in complaints]), flush=True)


def go(args, name, asked, folder, scratch):
    """Asks one device in these ways; what was found, and how many of them went wrong."""
    reports, wrong = {}, 0
    with device_of(args, name, scratch, scratch.name) as device:
        for way in asked:
            begin = time.monotonic()
            try:
                try:
                    reports[way], complaints = ask(args, device, way, folder)
                except Failed as error:
                    if name == 'urxe' or not device.is_there():
                        raise
                    print(f'{" ".join(way):24}once more: {error}', flush=True)
                    reports[way], complaints = ask(args, device, way, folder)
                if complaints and name != 'urxe':
                    complaints = ask_again(args, device, way, folder, reports[way], complaints)
                tell(way, reports[way], complaints, time.monotonic() - begin)
                wrong += bool(complaints)
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
    with device_of(args, name, scratch, scratch.name) as device:
        try:
            ask(args, device, way, folder / 'stops', [check], is_compared=False)
        except Stopped:
            print(f'{name}: {check} stops it, as known', flush=True)
            return device.last_words() or 'nothing'
        except Failed as error:
            print(f'{name}: {check}: {error}', flush=True)
            return None
    print(f'{name}: {check} DOES NOT STOP IT, and not as known', flush=True)
    return None


def examine(args, name, asked, folder, scratch):
    """Asks one device in these ways: (reports by way, how much is wrong)."""
    scratch.mkdir()
    try:
        return go(args, name, asked, folder, scratch)
    except (Failed, GuestError) as error:
        print(f'{name}: FAILED: {error}', flush=True)
        return {}, 1


def stop_all(args, name, folder, scratch):
    """Plays what is known to stop a device: last words by check."""
    scratch.mkdir()
    checks = [check for check, verdicts in known.read(name).items() if 'stops' in verdicts]
    try:
        return {check: stop(args, name, check, folder, scratch) for check in checks}
    except (Failed, GuestError) as error:
        print(f'{name}: FAILED: {error}', flush=True)
        return dict.fromkeys(checks)


def shares(wanted):
    """The ways of each share, which has a device of its own: most of the time the tester waits, and
    so does a guest, so devices are asked at the same time, and guests by servers and by the agent.
    """
    found = collections.defaultdict(list)
    for way in wanted:
        found[way.device, '' if way.device == 'urxe' else way.by].append(way)
    return found


def run(args):
    begin = time.monotonic()
    wanted = ways(args)
    if os.geteuid():
        print('without root: no raw port and no guest', flush=True)
        wanted = [way for way in wanted if way.device == 'urxe' and way.backend == 'udp']
    is_all = args.full and not args.only and not args.way
    with contextlib.ExitStack() as stack:
        scratch = pathlib.Path(stack.enter_context(
            tempfile.TemporaryDirectory(prefix='urxe-conform-')))
        asked = shares(wanted)
        names = list(dict.fromkeys(name for name, _ in asked))
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(2 * len(asked)))
        stack.push(lambda error, *_: error and INTERRUPTED.set())
        tasks = {share: pool.submit(examine, args, share[0], asked[share], args.report,
                                    scratch / f'{number}')
                 for number, share in enumerate(asked)}
        stopping = {name: pool.submit(stop_all, args, name, args.report, scratch / f'stop-{name}')
                    for name in names if is_all}
        stops = {name: task.result() for name, task in stopping.items()}
        found = {share: task.result() for share, task in tasks.items()}
    wrong = sum(count for _, count in found.values())
    wrong += sum(words is None for words_of in stops.values() for words in words_of.values())
    reports = {name: [report for share, (of_ways, _) in found.items() if share[0] == name
                      for report in of_ways.values()] for name in names}
    if is_all:
        # Of urxe nothing is to be known.
        for name in names:
            if len(reports[name]) < len(BACKENDS) * len(WAYS):
                print(f'{name}: not asked in every way, so what is known stays', flush=True)
            elif name != 'urxe':
                known.write(name, reports[name], args.report, args.renew)
    if args.differences:
        devices = [differences.Device(name, reports[name], stops.get(name, {}), known.read(name))
                   for name in names]
        args.differences.write_text(differences.page(devices))
    print(f'{time.monotonic() - begin:.0f} s; reports are in {args.report}', flush=True)
    return 1 if wrong else 0
