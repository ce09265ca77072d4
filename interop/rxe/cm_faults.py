"""RDMA-CM between urxe and kernel rxe when it does not go as it should: refusals, deaths, loss.

Each case takes the run, with its ends, and the end that connects. The events of both must be the
same whichever end connects, unless it is stated here.
"""

import time

import cm
from daemon import Daemon
from exchange import Failure
from matrix import GUEST, HOST
from meetings import CONSUMER_REJECT, WAIT, expect_data, heard

INVALID_SERVICE, STALE, TIMEOUT = 8, 10, 4
# The most that each message has room for beside what it says itself.
REQUEST, REPLY, REJECTION, QUESTION, ANSWER = 56, 196, 148, 180, 136
NOT_SUPPORTED = 1


def pattern(length):
    return bytes(i * 7 + length & 255 for i in range(length))


def private_data(run, by, family):
    """Of every odd length, in requests and replies; who asked disconnects, or who accepted."""
    with run.meeting(by, family) as meeting:
        for number, (asks, replies) in enumerate(
                [(0, 0), (1, 1), (7, 99), (55, 195), (REQUEST, REPLY)]):
            meeting.ask(pattern(asks))
            expect_data(meeting.asked(), pattern(asks))
            meeting.accept(pattern(replies))
            expect_data(meeting.established(), pattern(replies))
            meeting.disconnect([meeting.client, meeting.server][number % 2])
            meeting.end()


def datagrams(run, by, family):
    """The question for a QP and its answer, with private data."""
    with run.meeting(by, family, space='UDP') as meeting:
        for asks, replies in (0, 0), (1, 1), (99, 77), (QUESTION, ANSWER):
            meeting.ask(pattern(asks))
            expect_data(meeting.asked(), pattern(asks))
            meeting.accept(pattern(replies))
            expect_data(meeting.established(), pattern(replies))
            meeting.end()
        meeting.ask()
        meeting.asked()
        meeting.reject(pattern(ANSWER))
        heard(meeting.client, 'UNREACHABLE', 2)


def rejected(run, by, family):
    """By the program."""
    with run.meeting(by, family) as meeting:
        for length in 0, 1, 77, REJECTION:
            meeting.ask()
            meeting.asked()
            meeting.reject(pattern(length))
            expect_data(heard(meeting.client, 'REJECTED', CONSUMER_REJECT), pattern(length))
            meeting.end()


def nobody(run, by, family):
    """The listener is closed."""
    for space, kind, status in (('TCP', 'REJECTED', INVALID_SERVICE),
                                ('UDP', 'UNREACHABLE', NOT_SUPPORTED)):
        with run.meeting(by, family, space=space) as meeting:
            meeting.server.call({'do': 'cm_close', 'names': ['listener']})
            meeting.ask()
            heard(meeting.client, kind, status)


def backlog(run, by, family):
    """More requests than the backlog takes: the rest must come again, and all are accepted."""
    names = ['asks', 'b', 'c', 'd']
    with run.meeting(by, family, backlog=2) as meeting:
        for name in names:
            meeting.ask(name=name)
        time.sleep(1)
        for name in names:
            meeting.asked(name)
            meeting.accept(name=name)
        for end in meeting.client, meeting.server:
            for _ in names:
                heard(end, 'ESTABLISHED')


def stale(run, by, family):
    """A QP that is connected already asks again: rxe takes it for one whose peer has lost its
    memory, and ends the connection that it has. urxe asks that peer first, which knows the
    connection (CM-200): it stays."""
    with run.meeting(by, family) as meeting:
        for name in 'asks', 'again':
            meeting.ask(name=name, qpn=0x1234)
            if name == 'asks':
                meeting.asked()
                meeting.accept()
                heard(meeting.client, 'CONNECT_RESPONSE')
                meeting.client.call({'do': 'cm_establish', 'id': name})
                heard(meeting.server, 'ESTABLISHED')
        expected = [('REJECTED', STALE, 'again')]
        if by == 'urxe':
            expected.insert(0, ('DISCONNECTED', 0, 'asks'))
        found = [event_of(meeting.client, WAIT) for _ in expected]
        # One that did not come has none of these.
        found = sorted(found, key=str)
        if found != expected:
            raise Failure(f'the client heard {found}, expected {expected}')
        if by == 'kernel':
            more = event_of(meeting.client, 1)
            if more != (None, None, None):
                raise Failure(f'the client heard {more} too')
        meeting.client.call({'do': 'cm_disconnect', 'id': 'asks'})
        heard(meeting.server, 'DISCONNECTED')


def event_of(end, timeout):
    event = end.call({'do': 'cm_event', 'timeout': timeout, 'name': ''})[0]
    return event.get('event'), event.get('status'), event.get('id')


def listener_dies_unseen(run, by, family):
    with run.meeting(by, family) as meeting:
        meeting.ask()
        # It has arrived, and is not accepted.
        time.sleep(0.5)
        run.kill(meeting.server)
        heard(meeting.client, 'REJECTED', CONSUMER_REJECT)


def listener_dies_thinking(run, by, family):
    with run.meeting(by, family) as meeting:
        meeting.ask()
        meeting.asked()
        run.kill(meeting.server)
        heard(meeting.client, 'REJECTED', CONSUMER_REJECT)


def listener_dies_accepting(run, by, family):
    """The client has not confirmed yet."""
    with run.meeting(by, family) as meeting:
        meeting.ask(qpn=0x1234)
        meeting.asked()
        meeting.accept()
        heard(meeting.client, 'CONNECT_RESPONSE')
        run.kill(meeting.server)
        heard(meeting.client, 'REJECTED', CONSUMER_REJECT)


def client_dies_asking(run, by, family):
    """The listener hears of it when it wants to accept, for its id is new."""
    with run.meeting(by, family) as meeting:
        meeting.ask()
        meeting.asked()
        run.kill(meeting.client)
        time.sleep(0.5)
        meeting.server.send({'do': 'cm_accept', 'id': 'asked', 'qpn': 0x1234})
        [answer] = meeting.server.receive()
        if 'error' not in answer:
            raise Failure('what is gone was accepted')


def client_dies_confirming(run, by, family):
    with run.meeting(by, family) as meeting:
        meeting.ask(qpn=0x1234)
        meeting.asked()
        meeting.accept()
        heard(meeting.client, 'CONNECT_RESPONSE')
        run.kill(meeting.client)
        heard(meeting.server, 'REJECTED', CONSUMER_REJECT)


def connected_dies(run, by, family):
    """First the one that listened, then the one that asked."""
    for dies in 'server', 'client':
        with run.meeting(by, family) as meeting:
            meeting.ask()
            meeting.asked()
            meeting.accept()
            meeting.established()
            run.kill(getattr(meeting, dies))
            heard(meeting.client if dies == 'server' else meeting.server, 'DISCONNECTED')


def lost(run, by, family):
    """Each message of a connection is lost once, and all goes on."""
    begin, took = time.monotonic(), []
    for way, number in ('tx', 1), ('tx', 2), ('tx', 3), ('rx', 1), ('rx', 2), ('rx', 3):
        with run.meeting(by, family, faults=f'drop:ud-send-only:{number},dir={way}') as meeting:
            meeting.ask(b'lost')
            expect_data(meeting.asked(), b'lost')
            meeting.accept(b'found')
            expect_data(meeting.established(), b'found')
            meeting.disconnect(meeting.client)
        took.append(f'{way} {number} {time.monotonic() - begin:.1f} s')
        begin = time.monotonic()
    return ', '.join(took)


def lossy(run, by, family):
    """One packet of twenty is lost each way, of the data too; no connection fails."""
    program = cm.after_each_other(50, seconds=400)
    with Daemon(run.guest, run.args, run.args.backend, '--fault', 'drop=5%,seed=5') as daemon:
        sides = cm.Kernel(run.guest), cm.Urxe(run.guest, run.args, daemon)
        addresses = GUEST[family], HOST[family]
        if by == 'kernel':
            sides, addresses = sides[::-1], addresses[::-1]
        wrong = cm.exchange(program, family, *sides, addresses)
    if wrong:
        raise Failure(wrong)


CASES = [
    ('private data', private_data), ('datagrams', datagrams), ('a rejection', rejected),
    ('nobody listens', nobody), ('a full backlog', backlog), ('a stale QP', stale),
    ('the listener dies and has not seen it', listener_dies_unseen),
    ('the listener dies and has not answered', listener_dies_thinking),
    ('the listener dies and has accepted', listener_dies_accepting),
    ('the client dies and has no answer', client_dies_asking),
    ('the client dies and has not confirmed', client_dies_confirming),
    ('one of them dies when connected', connected_dies),
    ('each message is lost', lost), ('5 % are lost, 50 connections', lossy),
]
