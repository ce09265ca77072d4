"""What goes wrong between urxe and kernel rxe, on a real wire, and how both ends must see it.

Our own daemon loses, overtakes, repeats and damages packets, in both directions; then nothing is to
be seen but counters. Requests that cannot be done, peers that are gone and links that carry too
little end as the standard says, by the completions at both ends, and the counters of both tell why.
All of it is required.
"""

import collections
import contextlib
import errno
import itertools
import json
import subprocess
import time

import cm_faults
import operations
from daemon import Daemon, form, interface, our_options
from exchange import AREA, TARGET, Exchange, Failure
from guest import Guest
from image.build import KERNELS
from matrix import GUEST, HOST, LINK_MTU
from meetings import Meeting, heard
from peers import Gone, GuestPeer, ours

COUNTERS = 'cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep . *'
MTU = 1024
# In seconds, more than the connection manager tries to be heard.
GIVEN_UP = 60
OTHER = {'urxe': 'kernel', 'kernel': 'urxe'}
# What ends connections to peers that are gone: three times 67 ms.
IMPATIENT = {'timeout': 14, 'retry_cnt': 2}

Fault = collections.namedtuple('Fault', 'name spec kernel ours')


def damage(action, way):
    """The third and fourth packet in the middle of each kind of message; of a WRITE in the uniform
    form, which shows no middle, the third and fourth packet."""
    def spec(wire):
        write = 'write-only' if (way, wire) == ('tx', 'uniform') else 'write-middle'
        kinds = 'send-middle', write, 'read-response-middle'
        return ','.join([f'{action}:{kind}:3-4' for kind in kinds] + [f'dir={way}'])
    return spec


# Of what we do to packets: which counters of the kernel and of ours must show it.
DAMAGES = [
    Fault('loss of what urxe sends', damage('drop', 'tx'), ['out_of_seq_request'],
          ['fault_dropped', 'sequence_naks_received', 'retransmitted_packets']),
    Fault('loss of what the kernel sends', damage('drop', 'rx'), ['rcvd_seq_err'],
          ['fault_dropped', 'sequence_naks_sent', 'out_of_sequence']),
    Fault('reordering of what urxe sends', damage('reorder', 'tx'), ['out_of_seq_request'],
          ['fault_reordered']),
    Fault('reordering of what the kernel sends', damage('reorder', 'rx'), ['rcvd_seq_err'],
          ['fault_reordered', 'sequence_naks_sent']),
    Fault('repetition of what urxe sends', damage('dup', 'tx'), ['duplicate_request'],
          ['fault_duplicated']),
    Fault('repetition of what the kernel sends', damage('dup', 'rx'), [],
          ['fault_duplicated', 'duplicate_requests']),
    Fault('damage to what urxe sends', damage('corrupt', 'tx'), ['out_of_seq_request'],
          ['fault_corrupted', 'sequence_naks_received']),
    Fault('damage to what the kernel sends', damage('corrupt', 'rx'), ['rcvd_seq_err'],
          ['fault_corrupted', 'drop_bad_icrc', 'sequence_naks_sent']),
]


# What `urxe why --last --json` must tell of our QP that requested: the cause (`vendor_err`),
# events, and parts of the reason.
Story = collections.namedtuple('Story', 'cause events says')
SILENCE = Story(2, ['ack_timeouts', 'retries_exceeded'], ['nothing at all has come back'])
STOPPED = Story(2, ['heard', 'ack_timeouts', 'retries_exceeded'],
                ['Messages of up to 1 bytes were done', 'a smaller path MTU does'])
REFUSED = Story(6, ['heard', 'fatal_naks_received'], ['the rkey is wrong', 'outside of the MR'])


class Connection(Exchange):
    """An exchange whose QPs are connected with attributes of its own."""

    attributes = {}

    def both(self, *commands):
        for command in (command for end in commands for command in end):
            if command['do'] == 'connect':
                command.update(self.attributes)
        return super().both(*commands)

    def ends(self, request, status, at_responder=None):
        """A request ends with this status, and what the responder polls with that one."""
        poll = {'do': 'poll', 'cq': 'cq', 'count': 1, 'timeout': 20}
        wcs = self.requester.call(request, poll)[-1]['wcs']
        self.expect_error(wcs, status)
        if at_responder:
            found = [wc['status'] for wc in self.responder.call(poll)[0]['wcs']]
            if found != [at_responder]:
                raise Failure(f'{self.responder.name}: {found}, expected {at_responder}')


def one(x, size=100):
    """A message of this size."""
    return [m for m in x.messages() if m.size >= size][:1]


def wrong_key(x):
    x.open(at_responder=[x.receives(one(x))])
    request = x.sends(one(x), 'RDMA_WRITE', rkey=x.responder.mr['rkey'] ^ 0x100)
    x.ends(request, 'REM_ACCESS_ERR', 'WR_FLUSH_ERR')


def out_of_bounds(x):
    x.open(at_responder=[x.receives(one(x))])
    request = x.sends(one(x), 'RDMA_READ', raddr=x.responder.mr['addr'] + 4 * AREA)
    x.ends(request, 'REM_ACCESS_ERR', 'WR_FLUSH_ERR')


def too_long(x):
    """Kernel rxe blames itself, at both ends (RC-RESP-004): a remote operational error there, and
    here an error of the QP and not of the length."""
    short = {'id': 1, 'sges': [[TARGET, 50]]}
    x.open(at_responder=[{'do': 'post_recv', 'to': 'qp', 'mr': 'mr', 'wrs': [short]}])
    theirs = x.responder.name == 'kernel'
    x.ends(x.sends(one(x), 'SEND'), 'REM_OP_ERR' if theirs else 'REM_INV_REQ_ERR',
           'LOC_QP_OP_ERR' if theirs else 'LOC_LEN_ERR')


def no_receive(x):
    x.attributes = {'rnr_retry': 2}
    x.open()
    x.ends(x.sends(one(x), 'SEND'), 'RNR_RETRY_EXC_ERR')


def late_receive(x):
    x.open(more=[x.fill_source(one(x))], at_responder=[x.fill_guard()])
    x.requester.call(x.sends(one(x), 'SEND'))
    time.sleep(0.3)
    _, received = x.responder.call(x.receives(one(x)), x.poll(1))
    x.expect_received(received['wcs'], one(x))
    x.expect_sent(x.requester.call(x.poll(1))[0]['wcs'], [one(x)[0].id], 'SEND')


def destroyed(x):
    x.attributes = IMPATIENT
    x.open()
    x.responder.call({'do': 'close', 'names': ['qp']})
    x.ends(x.sends(one(x), 'RDMA_WRITE'), 'RETRY_EXC_ERR')


# Requests that cannot be done. The counters are those of each as requester and as responder; the
# kernel has none for what it refuses. The story is that of urxe as requester, if it fails.
REFUSALS = [
    ('a wrong rkey', wrong_key,
     {'kernel': ([], []), 'urxe': (['fatal_naks_received'], ['remote_access_naks_sent'])},
     REFUSED),
    ('a READ out of bounds', out_of_bounds,
     {'kernel': ([], []), 'urxe': (['fatal_naks_received'], ['remote_access_naks_sent'])},
     REFUSED),
    ('a SEND longer than the receive', too_long,
     {'kernel': ([], []), 'urxe': (['fatal_naks_received'], ['invalid_request_naks_sent'])},
     Story(7, ['heard', 'fatal_naks_received'], ['The peer failed on its own side'])),
    ('no receive', no_receive,
     {'kernel': (['rcvd_rnr_err', 'retry_rnr_exceeded_err'], ['send_rnr_err']),
      'urxe': (['rnr_naks_received', 'rnr_retries_exceeded'], ['rnr_naks_sent'])},
     Story(4, ['heard', 'rnr_naks_received', 'rnr_retries_exceeded'],
           ['no receive posted', 'RNR NAKs'])),
    ('a receive that comes late', late_receive,
     {'kernel': (['rcvd_rnr_err'], ['send_rnr_err']),
      'urxe': (['rnr_naks_received'], ['rnr_naks_sent'])},
     None),
    ('a QP that was destroyed', destroyed,
     {'kernel': (['retry_exceeded_err'], []),
      'urxe': (['retries_exceeded', 'ack_timeouts'], ['drop_unknown_qp'])},
     SILENCE),
]


def options(parser):
    parser.add_argument('--kernel', default='all', choices=[*KERNELS, 'all'])
    parser.add_argument('--backend', default='udp', choices=['udp', 'raw'])
    our_options(parser)
    parser.add_argument('--only', default='', metavar='TEXT', help='only what has this text')


class Run:
    """Everything with one kernel."""

    def __init__(self, args, kernel):
        self.args, self.kernel, self.results = args, kernel, []

    def run(self):
        name = f'faults{self.kernel}'
        with Guest(kernel=self.kernel, name=name, mtu=LINK_MTU) as self.guest:
            self.theirs = GuestPeer(self.guest, GUEST)
            for fault in DAMAGES:
                self.row(fault.name, lambda fault=fault: self.damage(fault))
            for name, run, counters, story in REFUSALS:
                for by in 'urxe', 'kernel':
                    self.row(f'{name}, {by} requests',
                             lambda by=by, run=run, counters=counters, story=story: self.refusal(
                                 run, by, counters, story))
            self.row('a link that shrinks below the path MTU, urxe requests', self.narrow)
            for by in 'urxe', 'kernel':
                self.row(f'a path that loses what is long, {by} requests',
                         lambda by=by: self.too_long_a_packet(by))
                self.row(f'a program that was killed, {by} requests', lambda by=by: self.killed(by))
            for name, case in cm_faults.CASES:
                for by, family in itertools.product(('urxe', 'kernel'), HOST):
                    self.row(f'RDMA-CM {family}: {name}, {by} asks',
                             lambda case=case, by=by, family=family: case(self, by, family))
            self.row('a guest that was killed', self.plug)
        return self.results

    def row(self, name, run):
        """Runs one, and says what became of it."""
        if self.args.only not in name:
            return
        begin = time.monotonic()
        try:
            outcome, says = 'pass', run() or ''
        except (Failure, Gone, RuntimeError) as error:
            outcome, says = 'FAIL', str(error)
        seconds = time.monotonic() - begin
        self.results.append({'kernel': self.kernel, 'name': name, 'outcome': outcome, 'says': says,
                             'seconds': round(seconds, 1)})
        print(f'{self.kernel:5}{outcome:5}{name:62}{seconds:5.1f} s  {says}', flush=True)

    @contextlib.contextmanager
    def ends(self, *options):
        """A daemon with these options, and a peer at each end: ours, and the kernel's."""
        with Daemon(self.guest, self.args, self.args.backend, *options) as self.daemon:
            urxe = ours('shim', self.guest, self.args, self.daemon.socket, HOST)
            kernel = self.theirs.connect()
            self.before = self.counters()
            try:
                yield {'urxe': urxe, 'kernel': kernel}
            finally:
                urxe.end()
                kernel.end()

    def connection(self, ends, by, mtu=MTU):
        return Connection(ends[by], ends[OTHER[by]], 'RC', 'v4', mtu)

    @contextlib.contextmanager
    def meeting(self, by, family, faults='', **how):
        with self.ends(*(['--fault', faults] if faults else [])) as ends:
            yield Meeting(ends[by], ends[OTHER[by]], family, **how)

    def kill(self, end):
        """A program dies by SIGKILL."""
        if end.name == 'urxe':
            end.process.kill()
            end.process.wait()
        else:
            self.theirs.end()
            self.theirs = GuestPeer(self.guest, GUEST)

    def counters(self):
        """What both ends have counted: of the kernel, and of us."""
        status, text = self.guest.run(COUNTERS)
        if status:
            raise RuntimeError(f'the kernel\'s counters: {text}')
        kernel = {name: int(value) for name, value in (line.split(':') for line in text.split())}
        return collections.Counter(kernel), self.stat()

    def stat(self):
        command = [self.args.bin / 'urxe', 'stat', '--json', '--socket', self.daemon.socket]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
        return collections.Counter(json.loads(done.stdout)['devices'][0]['counters'])

    def prove(self, kernel, urxe):
        """What was counted since the beginning; all of these must have been."""
        says, missing = [], []
        for side, names, now, before in zip(('kernel', 'urxe'), (kernel, urxe), self.counters(),
                                            self.before):
            counted = [f'{name} {now[name] - before[name]}' for name in names]
            missing += [f'{side} {name}' for name in names if now[name] <= before[name]]
            says += [f'{side}: {", ".join(counted)}'] if counted else []
        if missing:
            raise Failure(f'not counted: {", ".join(missing)} ({"; ".join(says)})')
        return '; '.join(says)

    def why(self, story):
        """What our QP that failed last is told of; that must be this story."""
        command = [self.args.bin / 'urxe', 'why', '--last', '--json', '--socket',
                   self.daemon.socket]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
        history, = json.loads(done.stdout)['histories']
        cause, reason = (history['failed'] or {}).get('vendor_err'), history['reason'] or ''
        events = [event['event'] for event in history['events']]
        missing = [] if cause == story.cause else [f'cause {cause}, expected {story.cause}']
        missing += [f'event {event}' for event in story.events if event not in events]
        missing += [f'"{part}"' for part in story.says if part not in reason]
        if missing:
            raise Failure(f'urxe why does not tell: {", ".join(missing)} ({events}; {reason})')

    def damage(self, fault):
        with self.ends('--fault', fault.spec(form(self.args, self.args.backend))) as ends:
            for by in 'urxe', 'kernel':
                for operation in operations.send, operations.write, operations.read:
                    x = self.connection(ends, by)
                    try:
                        operation(x)
                    finally:
                        x.close()
            return self.prove(fault.kernel, fault.ours)

    def refusal(self, run, by, counters, story):
        with self.ends() as ends:
            x = self.connection(ends, by)
            try:
                run(x)
            finally:
                x.close()
            if by == 'urxe' and story:
                self.why(story)
            needed = {by: counters[by][0], OTHER[by]: counters[OTHER[by]][1]}
            return self.prove(needed['kernel'], needed['urxe'])

    def narrow(self):
        """The sender's link shrinks once all is connected. Kernel rxe in our place tries the same
        packet again indefinitely, and nothing ends."""
        with self.ends() as ends:
            x = self.connection(ends, 'urxe', 4096)
            x.attributes = IMPATIENT
            x.open()
            self.link_mtu(1500)
            try:
                self.small_and_large(x)
            finally:
                self.link_mtu(LINK_MTU)
                x.close()
            self.why(STOPPED)
            return self.prove([], ['retries_exceeded'])

    def link_mtu(self, mtu):
        link = ['ip', 'link', 'set', interface(self.guest), 'mtu', str(mtu)]
        subprocess.run([*self.guest.host, *link], check=True)

    def too_long_a_packet(self, by):
        """A switch between the two that has a smaller MTU than they, and drops silently."""
        way, places = 'tx' if by == 'urxe' else 'rx', ('first', 'middle', 'last')
        rules = [f'drop:write-{place}:1-' for place in places]
        if by == 'urxe' and form(self.args, self.args.backend) == 'uniform':
            # The first is the small one.
            rules = ['drop:write-only:2-']
        spec = ','.join([*rules, f'dir={way}'])
        with self.ends('--fault', spec) as ends:
            x = self.connection(ends, by, 4096)
            x.attributes = IMPATIENT
            x.open()
            try:
                self.small_and_large(x)
            finally:
                x.close()
            urxe = by == 'urxe'
            if urxe:
                self.why(STOPPED)
            return self.prove([] if urxe else ['retry_exceeded_err'],
                              ['fault_dropped', *(['retries_exceeded'] if urxe else [])])

    def small_and_large(self, x):
        """What is small still passes, and what is not ends when the retries have."""
        small = [m for m in x.messages() if m.size == 1]
        x.expect_sent(x.requester.call(x.sends(small, 'RDMA_WRITE'), x.poll(1))[1]['wcs'],
                      [small[0].id], 'RDMA_WRITE')
        x.ends(x.sends(one(x, 65536), 'RDMA_WRITE'), 'RETRY_EXC_ERR')

    def killed(self, by):
        """The responder's program dies by SIGKILL, and its QP with it."""
        with self.ends() as ends:
            x = self.connection(ends, by)
            x.attributes = IMPATIENT
            x.open()
            self.kill(ends[OTHER[by]])
            if by == 'urxe':
                # Its QP goes a while after it.
                self.guest.run('while rdma resource show qp | grep -q RC; do sleep 0.1; done')
            x.ends(x.sends(one(x), 'RDMA_WRITE'), 'RETRY_EXC_ERR')
            urxe = by == 'urxe'
            if urxe:
                self.why(SILENCE)
            dropped = ['drop_unknown_qp']
            if self.args.in_process:
                # The slot is gone with its program. Through raw, nobody sees what comes for it.
                dropped = ['drop_ended_slot'] if self.args.backend == 'udp' else []
            return self.prove([] if urxe else ['retry_exceeded_err'],
                              ['retries_exceeded'] if urxe else dropped)

    def plug(self):
        """The machine at the other end is gone, and our daemon goes on. Its connection manager asks
        for 51 s before it reports that no response came."""
        with self.ends() as ends:
            x, meeting = self.connection(ends, 'urxe'), Meeting(ends['urxe'], ends['kernel'], 'v4')
            x.attributes = IMPATIENT
            x.open()
            meeting.ask()
            meeting.asked()
            meeting.accept()
            meeting.established()
            self.guest.die()
            x.ends(x.sends(one(x), 'RDMA_WRITE'), 'RETRY_EXC_ERR')
            self.why(SILENCE)
            counted = self.stat()['retries_exceeded']
            if not counted:
                raise Failure('not counted: urxe retries_exceeded')
            meeting.ask(name='again')
            heard(ends['urxe'], 'UNREACHABLE', -errno.ETIMEDOUT, timeout=GIVEN_UP)
            ends['urxe'].call({'do': 'cm_disconnect', 'id': 'asks'})
            heard(ends['urxe'], 'DISCONNECTED', -errno.ETIMEDOUT, timeout=GIVEN_UP)
            return f'urxe: retries_exceeded {counted}'


def run(args):
    results = []
    for kernel in KERNELS if args.kernel == 'all' else [args.kernel]:
        results += Run(args, kernel).run()
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + '\n')
    failed = sum(result['outcome'] != 'pass' for result in results)
    print(f'{len(results)} faults, {failed} not as they must be')
    return 1 if failed or not results else 0
