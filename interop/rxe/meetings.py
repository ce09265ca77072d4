"""Connections by RDMA-CM between two peers, step by step, and what both must hear of it."""

import time

from exchange import Failure

# The kernel repeats what is lost after 4 to 6 seconds.
WAIT = 30
CONSUMER_REJECT = 28


class Meeting:
    """A listener at one end, and those who ask for it at the other."""

    def __init__(self, client, server, family, space='TCP', backlog=0):
        self.client, self.server, self.space = client, server, space
        self.place = {'addr': server.addresses[family]}
        _, self.listener = server.call(
            {'do': 'cm_id', 'name': 'listener', 'space': space},
            {'do': 'cm_listen', 'id': 'listener', 'backlog': backlog, **self.place})

    def ask(self, data=b'', name='asks', **param):
        """Asks for a connection; it has a QP of its own if none is named."""
        self.client.call({'do': 'cm_id', 'name': name, 'space': self.space},
                         {'do': 'cm_resolve', 'id': name, **self.place, **self.listener})
        if 'qpn' not in param:
            self.client.call({'do': 'cm_qp', 'id': name})
        self.client.call({'do': 'cm_connect', 'id': name, 'data': data.hex(), **param})

    def asked(self, name='asked'):
        """The listener hears of it, and with it a new id has this name."""
        return heard(self.server, 'CONNECT_REQUEST', name=name)

    def accept(self, data=b'', name='asked', **param):
        if 'qpn' not in param:
            self.server.call({'do': 'cm_qp', 'id': name})
        self.server.call({'do': 'cm_accept', 'id': name, 'data': data.hex(), **param})

    def reject(self, data=b'', name='asked'):
        self.server.call({'do': 'cm_reject', 'id': name, 'data': data.hex()})

    def established(self):
        """Both hear of it; answers what the client heard. Nobody says that an answer to a question
        of datagrams has come."""
        told = heard(self.client, 'ESTABLISHED')
        if self.space == 'TCP':
            heard(self.server, 'ESTABLISHED')
        return told

    def disconnect(self, by):
        """One does; the other hears it, and does likewise, for kernel rxe answers only then."""
        ends = [(self.client, 'asks'), (self.server, 'asked')]
        for end, name in ends if by is self.client else reversed(ends):
            if end is not by:
                heard(end, 'DISCONNECTED')
            end.call({'do': 'cm_disconnect', 'id': name})
        heard(by, 'DISCONNECTED')

    def end(self):
        self.client.call({'do': 'cm_close', 'names': ['asks']})
        self.server.call({'do': 'cm_close', 'names': ['asked']})


def heard(end, kind, status=0, timeout=WAIT, name=''):
    """The next event at one end, which must be this one. That a connection's time after its end
    is over may be heard of at any time."""
    until = time.monotonic() + timeout
    while True:
        left = max(until - time.monotonic(), 0)
        [event] = end.call({'do': 'cm_event', 'timeout': left, 'name': name})
        if event.get('event') != 'TIMEWAIT_EXIT':
            break
    if (event.get('event'), event.get('status')) != (kind, status):
        what = 'nothing' if not event else f'{event["event"]}, status {event["status"]}'
        raise Failure(f'{end.name} heard {what}, not {kind}, status {status}')
    return event


def expect_data(event, sent):
    """The whole field comes, and begins with what was sent; the rest is zeroes."""
    have = bytes.fromhex(event['data'])
    if len(have) < len(sent) or have != sent.ljust(len(have), b'\0'):
        raise Failure(f'{event["event"]} with {event["data"]}, sent was {sent.hex()}')
