"""One cell of the matrix: two QPs, connected over the wire for it alone, and what both ends say."""

import dataclasses
import itertools

QKEY = 0x11223344
# The requester's PSNs wrap inside of the message of four packets; see `Exchange.messages`.
REQUESTER_PSN = 0xfffff8
RESPONDER_PSN = 0x123456
SOURCE, TARGET, AREA = 0, 1 << 17, 1 << 17
# What the memory of a target holds before anything comes. It must be untouched around messages.
GUARD = 0xa5
GRH = 40
WC_GRH, WC_WITH_IMM, WC_IP_CSUM_OK, WC_WITH_INV = 1, 2, 4, 8


class Failure(Exception):
    """What a cell was not as it must be."""


@dataclasses.dataclass
class Message:
    """A message with the place of its data in source and target area."""
    id: int
    size: int
    seed: int
    off: int
    imm: int

    def pieces(self, area, head=0):
        """Gather or scatter list: large ones in three parts, so that packets cross parts."""
        start, size = area + self.off, self.size + head
        if size < 100:
            return [[start, size]]
        third = size // 3 - 1
        return [[start, third], [start + third, third], [start + 2 * third, size - 2 * third]]


class Exchange:
    """A requester and a responder, either of which may be the kernel."""

    numbers = itertools.count(1)

    def __init__(self, requester, responder, transport, family, mtu):
        self.requester, self.responder = requester, responder
        self.transport, self.family, self.mtu = transport, family, mtu
        # A timeout only ends what has failed; datagrams may be lost for good.
        self.timeout = 20 if transport == 'RC' else 4
        self.names = [[], []]
        self.number = next(self.numbers)

    def messages(self):
        """The sizes where packets begin and end; 64 KiB is all that one SEND burst takes."""
        mtu, off, found = self.mtu, 0, []
        sizes = [0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu + 5, 65536]
        if self.transport == 'UD':
            sizes = [0, 1, mtu - 1, mtu]
        for id, size in enumerate(sizes, 1):
            seed = (self.number * 16 + id) & 255
            found.append(Message(id, size, seed, off, 0x01020300 + seed))
            off += (size + GRH + 127) & ~63
        return found

    def both(self, at_requester, at_responder):
        """Both ends at the same time; the answers of each."""
        self.requester.send(*at_requester)
        self.responder.send(*at_responder)
        answers = self.requester.receive(), self.responder.receive()
        for end, found in zip((self.requester, self.responder), answers):
            for answer in found:
                if 'error' in answer:
                    raise Failure(f'{end.name}: {answer["error"]}')
        return answers

    def open(self, srq=False, access=0xf, more=(), at_responder=()):
        """Makes and connects the QPs; `more` is what the requester does in the same line."""
        ends = (self.requester, self.responder)
        make = [], []
        for side in (0, 1):
            qp = {'do': 'create_qp', 'name': 'qp', 'type': self.transport, 'cq': 'cq'}
            make[side].append({'do': 'create_cq', 'name': 'cq'})
            if srq and side == 1:
                make[side].append({'do': 'create_srq', 'name': 'srq'})
                qp['srq'] = 'srq'
            make[side].append(qp)
        made = self.both(*make)
        self.qpn, self.peer_qpn = made[0][-1]['qpn'], made[1][-1]['qpn']
        psns, qpns = (REQUESTER_PSN, RESPONDER_PSN), (self.qpn, self.peer_qpn)
        connect = [], []
        for side, end in enumerate(ends):
            other = ends[1 - side]
            path = {'dgid': other.addresses[self.family], 'gid_index': end.gid_index(self.family)}
            if self.transport == 'UD':
                connect[side].append({'do': 'start_datagrams', 'qp': 'qp', 'qkey': QKEY,
                                      'sq_psn': psns[side]})
                connect[side].append({'do': 'create_ah', 'name': 'ah', **path})
                continue
            connect[side].append({
                'do': 'connect', 'qp': 'qp', 'dqpn': qpns[1 - side], 'mtu': self.mtu, **path,
                'sq_psn': psns[side], 'rq_psn': psns[1 - side],
                'access': access if self.transport == 'RC' else access & 3})
        self.both([*connect[0], *more], [*connect[1], *at_responder])

    def close(self):
        """Frees what the cell made, whatever state it is in."""
        # The window first: else the kernel waits 50 s for it when its QP is destroyed.
        names = ['mw', 'ah', 'group', 'qp', 'srq', 'cq', 'mr2']
        self.both(*[[{'do': 'close', 'names': names}]] * 2)

    # Commands that several operations need.

    def fill_source(self, messages):
        parts = [[m.off, m.size, m.seed] for m in messages]
        return {'do': 'fill', 'mr': 'mr', 'off': SOURCE, 'len': AREA, 'parts': parts}

    def fill_guard(self):
        return {'do': 'fill', 'mr': 'mr', 'off': TARGET, 'len': AREA, 'rest': GUARD}

    def check_target(self, messages, head=0, timeout=0):
        """That the target area holds the messages and nothing else has been touched."""
        return {'do': 'check', 'mr': 'mr', 'off': TARGET, 'len': AREA, 'rest': GUARD,
                'parts': [[m.off + head, m.size, m.seed] for m in messages],
                'skip': [[m.off, head] for m in messages] if head else [], 'timeout': timeout}

    def receives(self, messages, to='qp', head=0, data=True):
        nothing = [[TARGET, 0]]
        wrs = [{'id': m.id, 'sges': m.pieces(TARGET, head) if data else nothing} for m in messages]
        return {'do': 'post_recv', 'to': to, 'mr': 'mr', 'wrs': wrs}

    def sends(self, messages, op, **more):
        """Work requests; small ones have their data inline."""
        wrs = []
        for m in messages:
            wr = {'op': op, 'id': m.id, 'sges': m.pieces(SOURCE), **more}
            if 'WITH_IMM' in op:
                wr['imm'] = m.imm
            if 'RDMA' in op:
                wr.update(rkey=more.get('rkey', self.responder.mr['rkey']),
                          raddr=more.get('raddr', self.responder.mr['addr'] + TARGET) + m.off)
            if 0 < m.size < 64 and op != 'RDMA_READ':
                wr['inline'] = True
            wrs.append(wr)
        return {'do': 'post_send', 'qp': 'qp', 'mr': 'mr', 'wrs': wrs}

    def poll(self, count, cq='cq'):
        return {'do': 'poll', 'cq': cq, 'count': count, 'timeout': self.timeout}

    # What is expected of the answers.

    def expect_sent(self, wcs, ids, op, end='requester'):
        """Completions of all these work requests, in their order."""
        self._expect(getattr(self, end).name, wcs, ids)
        qpn = self.qpn if end == 'requester' else self.peer_qpn
        for wc in wcs:
            want = {'id': wc['id'], 'status': 'SUCCESS', 'op': op, 'qpn': qpn}
            if wc != want:
                raise Failure(f'{getattr(self, end).name}: completion {wc}, expected {want}')

    def expect_received(self, wcs, messages, op='RECV', head=0, **more):
        self._expect(self.responder.name, wcs, [m.id for m in messages])
        for wc, m in zip(wcs, messages):
            want = {'id': m.id, 'status': 'SUCCESS', 'op': op, 'qpn': self.peer_qpn,
                    'len': m.size + head, 'flags': self.flags(head, more), **more}
            if 'imm' in more:
                want['imm'] = m.imm
            # Verbs defines the source for datagrams only.
            want['src_qpn'] = self.qpn if head else wc['src_qpn']
            if wc != want:
                raise Failure(f'{self.responder.name}: completion {wc}, expected {want}')

    def flags(self, head, more):
        """The flags of a receive's completion, as verbs has them or as the kernel does."""
        flags = (head and WC_GRH) | ('imm' in more and WC_WITH_IMM)
        if self.responder.name == 'kernel':
            # rxe sets GRH on every receive, and gives programs the kernel's own number for "with
            # invalidate", which is that of "checksum is right" in libibverbs.
            return flags | WC_GRH | ('inv' in more and WC_IP_CSUM_OK)
        return flags | ('inv' in more and WC_WITH_INV)

    def expect_error(self, wcs, status):
        """The last completion failed with this status."""
        have = [wc['status'] for wc in wcs]
        if have[-1:] != [status]:
            raise Failure(f'{self.requester.name}: {have or "no completion"}, expected {status}')

    def expect_same(self, answer, who):
        if not answer['same']:
            raise Failure(f'{who.name}: memory: {answer["wrong"]} bytes wrong, {answer["first"]}'
                          f' to {answer["last"]}: {answer["have"]}, expected {answer["want"]}')

    def _expect(self, name, wcs, ids):
        failed = [f'{wc["id"]}: {wc["status"]}' for wc in wcs if wc['status'] != 'SUCCESS']
        if failed:
            raise Failure(f'{name}: work requests failed: {", ".join(failed)}')
        if [wc['id'] for wc in wcs] != ids:
            have = ', '.join(str(wc['id']) for wc in wcs) or 'none'
            raise Failure(f'{name}: completed: {have}; expected {ids} within {self.timeout} s')
