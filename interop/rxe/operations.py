"""What is done in a cell, operation by operation, and how both ends must see it."""

import dataclasses
import ipaddress
import struct
from collections.abc import Callable

from exchange import AREA, GRH, GUARD, QKEY, SOURCE, TARGET, Failure
from peers import MR_SIZE

GROUPS = {'v4': '239.77.0.1', 'v6': 'ff0e::77:1'}
MULTICAST_QPN = 0xffffff
REMOTE_WRITE, REMOTE_READ, FLUSH_GLOBAL = 2, 4, 0x100


def send(x, op='SEND'):
    """SEND of any kind but with invalidate, over any transport."""
    messages = x.messages()
    head = GRH if x.transport == 'UD' else 0
    x.open(more=[x.fill_source(messages)],
           at_responder=[x.fill_guard(), x.receives(messages, head=head)])
    to = {'ah': 'ah', 'dqpn': x.peer_qpn, 'qkey': QKEY} if head else {}
    sent, received = x.both([x.sends(messages, op, **to), x.poll(len(messages))],
                            [x.poll(len(messages)), x.check_target(messages, head)])
    x.expect_sent(sent[-1]['wcs'], [m.id for m in messages], 'SEND')
    more = {'imm': 0} if op == 'SEND_WITH_IMM' else {}
    x.expect_received(received[0]['wcs'], messages, head=head, **more)
    x.expect_same(received[1], x.responder)
    if head:
        check_grh(x, messages[-1])


def check_grh(x, message):
    """The 40 bytes in front of a datagram: the IP header, at the end of them if it is IPv4."""
    grh = bytes.fromhex(x.responder.call({'do': 'read', 'mr': 'mr', 'off': TARGET + message.off,
                                          'len': GRH})[0]['hex'])
    source, target = x.requester.addresses[x.family], x.responder.addresses[x.family]
    v4 = x.family == 'v4'
    have = (grh[32:36], grh[36:40]) if v4 else (grh[8:24], grh[24:40])
    if have != (packed(source), packed(target)) or (grh[20] >> 4 if v4 else grh[0] >> 4) != int(
            x.family[1]):
        raise Failure(f'{x.responder.name}: GRH {grh.hex()}, expected {source} to {target}')


def packed(address):
    return ipaddress.ip_address(address).packed


def write(x, op='RDMA_WRITE'):
    messages, imm = x.messages(), 'IMM' in op
    receive = [x.receives(messages, data=False)] if imm else []
    x.open(more=[x.fill_source(messages)], at_responder=[x.fill_guard(), *receive])
    wait = [x.poll(len(messages))] if imm else []
    # Without immediate data the responder only sees its memory change.
    check = x.check_target(messages, timeout=0 if imm else x.timeout)
    sent, received = x.both([x.sends(messages, op), x.poll(len(messages))], [*wait, check])
    x.expect_sent(sent[-1]['wcs'], [m.id for m in messages], 'RDMA_WRITE')
    if imm:
        x.expect_received(received[0]['wcs'], messages, op='RECV_RDMA_WITH_IMM', imm=0)
    x.expect_same(received[-1], x.responder)


def read(x):
    messages = x.messages()
    x.open(more=[x.fill_guard()], at_responder=[x.fill_source(messages)])
    request = x.sends(messages, 'RDMA_READ', raddr=x.responder.mr['addr'] + SOURCE)
    for wr, m in zip(request['wrs'], messages):
        wr['sges'] = m.pieces(TARGET)
    answers = x.requester.call(request, x.poll(len(messages)), x.check_target(messages))
    x.expect_sent(answers[1]['wcs'], [m.id for m in messages], 'RDMA_READ')
    x.expect_same(answers[2], x.requester)


def atomics(x, op, requests, word, results, final):
    """Atomics one after the other on one word: what each gives back, and what is there at last."""
    words = [[64, hex(word)]]
    x.open(more=[x.fill_guard()],
           at_responder=[{'do': 'fill', 'mr': 'mr', 'off': TARGET, 'len': 4096, 'words': words,
                          'rest': GUARD}])
    there = {'rkey': x.responder.mr['rkey'], 'raddr': x.responder.mr['addr'] + TARGET + 64}
    wrs = [{'op': op, 'id': i, 'sges': [[TARGET + 64 * i, 8]], **there, **request}
           for i, request in enumerate(requests, 1)]
    sent = x.requester.call({'do': 'post_send', 'qp': 'qp', 'mr': 'mr', 'wrs': wrs},
                            x.poll(len(wrs)),
                            {'do': 'check', 'mr': 'mr', 'off': TARGET, 'len': 4096, 'rest': GUARD,
                             'words': [[64 * i, hex(r)] for i, r in enumerate(results, 1)]})
    x.expect_sent(sent[1]['wcs'], [wr['id'] for wr in wrs],
                  'COMP_SWAP' if op == 'CMP_SWAP' else op)
    x.expect_same(sent[2], x.requester)
    there = x.responder.call({'do': 'check', 'mr': 'mr', 'off': TARGET, 'len': 4096, 'rest': GUARD,
                              'words': [[64, hex(final)]]})
    x.expect_same(there[0], x.responder)


def fetch_add(x):
    """Ten, so that their PSNs wrap, over the end of 64 bits."""
    start, add, mask = 0xffff_ffff_ffff_fff0, 0x1_0000_0003, (1 << 64) - 1
    results = [start + i * add & mask for i in range(11)]
    atomics(x, 'FETCH_ADD', [{'operand': hex(add)}] * 10, start, results[:-1], results[-1])


def cmp_swap(x):
    """Every other one finds another word than it compares with."""
    first, values = 0x1122334455667788, [0x1000 + i for i in range(10)]
    requests, results, now = [], [], first
    for i, value in enumerate(values):
        results.append(now)
        compare = now if i % 2 == 0 else now ^ 1 << 63
        requests.append({'operand': hex(compare), 'swap': hex(value)})
        now = value if i % 2 == 0 else now
    atomics(x, 'CMP_SWAP', requests, first, results, now)


def atomic_write(x):
    """Ten words, one after the other."""
    words = [[64 * i, hex(0x0102030405060708 * i & (1 << 64) - 1)] for i in range(1, 11)]
    x.open(at_responder=[x.fill_guard()])
    mr = x.responder.mr
    wrs = [{'op': 'ATOMIC_WRITE', 'id': i, 'rkey': mr['rkey'],
            'raddr': mr['addr'] + TARGET + off, 'data': struct.pack('=Q', int(word, 16)).hex()}
           for i, (off, word) in enumerate(words, 1)]
    sent = x.requester.call({'do': 'post_send', 'qp': 'qp', 'mr': 'mr', 'wrs': wrs},
                            x.poll(len(wrs)))
    x.expect_sent(sent[1]['wcs'], [wr['id'] for wr in wrs], 'ATOMIC_WRITE')
    there = x.responder.call({'do': 'check', 'mr': 'mr', 'off': TARGET, 'len': AREA,
                              'rest': GUARD, 'words': words})
    x.expect_same(there[0], x.responder)


def flush(x):
    """WRITEs with a FLUSH behind each, to memory that may be flushed."""
    messages = x.messages()
    access = 0xf | FLUSH_GLOBAL
    x.open(access=access, more=[x.fill_source(messages)])
    made = x.responder.call({'do': 'reg_mr', 'name': 'mr2', 'len': MR_SIZE, 'access': access},
                            {**x.fill_guard(), 'mr': 'mr2'})
    there = {'rkey': made[0]['rkey'], 'raddr': made[0]['addr'] + TARGET}
    post, wrs, ops = x.sends(messages, 'RDMA_WRITE', **there), [], []
    for wr, m in zip(post['wrs'], messages):
        wrs += [wr, {'op': 'FLUSH', 'id': m.id + 100, 'rkey': there['rkey'],
                     'raddr': there['raddr'] + m.off, 'len': m.size}]
        ops += ['RDMA_WRITE', 'FLUSH']
    sent = x.requester.call({**post, 'wrs': wrs}, x.poll(len(wrs)))[1]['wcs']
    for wc, wr, op in zip(sent, wrs, ops):
        x.expect_sent([wc], [wr['id']], op)
    if len(sent) != len(wrs):
        raise Failure(f'{x.requester.name}: {len(sent)} completions of {len(wrs)}')
    x.expect_same(x.responder.call({**x.check_target(messages), 'mr': 'mr2'})[0], x.responder)


def window(x, kind, end):
    """WRITE and READ through a window; then it ends, by `end`, and a WRITE is refused."""
    messages = x.messages()
    x.open(more=[x.fill_source(messages)], at_responder=[x.fill_guard()])
    rkey = x.responder.call({'do': 'alloc_mw', 'name': 'mw', 'type': kind})[0]['rkey']
    part = {'mw': 'mw', 'window': {'of': 'mr', 'off': TARGET, 'len': AREA, 
                                   'access': REMOTE_WRITE | REMOTE_READ}}
    if kind == 1:
        bound = x.responder.call({'do': 'bind_mw', 'qp': 'qp', 'id': 50, **part}, x.poll(1))
        rkey = bound[0]['rkey']
    else:
        rkey = rkey & ~0xff | rkey + 1 & 0xff
        bind = {'op': 'BIND_MW', 'id': 50, **part}
        bound = x.responder.call({'do': 'post_send', 'qp': 'qp', 'mr': 'mr', 'wrs': [bind]},
                                 x.poll(1))
    x.expect_sent(bound[1]['wcs'], [50], 'BIND_MW', end='responder')
    sent = x.requester.call(x.sends(messages, 'RDMA_WRITE', rkey=rkey), x.poll(len(messages)))
    x.expect_sent(sent[1]['wcs'], [m.id for m in messages], 'RDMA_WRITE')
    there, _ = x.responder.call(x.check_target(messages), x.receives(messages[:1]))
    x.expect_same(there, x.responder)
    end(x, rkey)
    late = x.requester.call(x.sends(messages[1:2], 'RDMA_WRITE', rkey=rkey), x.poll(1))
    x.expect_error(late[1]['wcs'], 'REM_ACCESS_ERR')


def unbind(x, _):
    """A window of type 1 is closed by binding it to nothing."""
    bound = x.responder.call({'do': 'bind_mw', 'qp': 'qp', 'id': 51, 'mw': 'mw',
                              'window': {'of': 'mr', 'off': TARGET, 'len': 0, 'access': 0}},
                             x.poll(1))
    x.expect_sent(bound[1]['wcs'], [51], 'BIND_MW', end='responder')


def local_invalidate(x, rkey):
    done = x.responder.call({'do': 'post_send', 'qp': 'qp', 'mr': 'mr',
                             'wrs': [{'op': 'LOCAL_INV', 'id': 52, 'inv': rkey}]}, x.poll(1))
    x.expect_sent(done[1]['wcs'], [52], 'LOCAL_INV', end='responder')


def remote_invalidate(x, rkey):
    message = x.messages()[:1]
    sent, received = x.both([x.sends(message, 'SEND_WITH_INV', inv=rkey), x.poll(1)], [x.poll(1)])
    x.expect_sent(sent[1]['wcs'], [message[0].id], 'SEND')
    x.expect_received(received[0]['wcs'], message, inv=rkey)


def shared_receives(x):
    messages = x.messages()
    x.open(srq=True, more=[x.fill_source(messages)],
           at_responder=[x.fill_guard(), x.receives(messages, to='srq', head=srq_head(x))])
    head = srq_head(x)
    to = {'ah': 'ah', 'dqpn': x.peer_qpn, 'qkey': QKEY} if head else {}
    sent, received = x.both([x.sends(messages, 'SEND', **to), x.poll(len(messages))],
                            [x.poll(len(messages)), x.check_target(messages, head)])
    x.expect_sent(sent[-1]['wcs'], [m.id for m in messages], 'SEND')
    x.expect_received(received[0]['wcs'], messages, head=head)
    x.expect_same(received[1], x.responder)


def srq_head(x):
    return GRH if x.transport == 'UD' else 0


def multicast(x):
    """To a group that the responder has joined."""
    messages, group = x.messages(), GROUPS[x.family]
    path = {'dgid': group, 'gid_index': x.requester.gid_index(x.family)}
    join = {'join': 'eth0'} if x.responder.name == 'kernel' else {}
    x.open(more=[x.fill_source(messages), {'do': 'create_ah', 'name': 'group', **path}],
           at_responder=[{'do': 'attach_mcast', 'qp': 'qp', 'gid': group, **join}, x.fill_guard(),
                         x.receives(messages, head=GRH)])
    to = {'ah': 'group', 'dqpn': MULTICAST_QPN, 'qkey': QKEY}
    sent, received = x.both([x.sends(messages, 'SEND', **to), x.poll(len(messages))],
                            [x.poll(len(messages)), x.check_target(messages, GRH)])
    x.expect_sent(sent[-1]['wcs'], [m.id for m in messages], 'SEND')
    # A QP that is in a group cannot be destroyed.
    x.responder.call({'do': 'detach_mcast', 'qp': 'qp', 'gid': group},
                     {'do': 'close', 'names': [f'member of {group}']})
    x.expect_received(received[0]['wcs'], messages, head=GRH)
    x.expect_same(received[1], x.responder)


@dataclasses.dataclass
class Operation:
    name: str
    transports: str
    run: Callable
    # Kernels before this one have not got it.
    since: tuple = (0, 0)
    # Whether stock rdma-core 44 can ask for it.
    stock: bool = True

    def missing(self, kernel, client, by):
        """Why it cannot be requested by this side with this client; empty if it can."""
        if tuple(map(int, kernel.split('.'))) < self.since:
            return f'the kernel has it since {self.since[0]}.{self.since[1]}'
        if not self.stock and (by == 'kernel' or client == 'shim'):
            return 'librxe of rdma-core 44 cannot ask for it'
        return ''


OPERATIONS = [
    Operation('SEND', 'RC UC UD', send),
    Operation('SEND imm', 'RC UC UD', lambda x: send(x, 'SEND_WITH_IMM')),
    Operation('SEND inv', 'RC', lambda x: window(x, 2, remote_invalidate)),
    Operation('SEND to SRQ', 'RC UC UD', shared_receives),
    Operation('multicast', 'UD', multicast),
    Operation('WRITE', 'RC UC', write),
    Operation('WRITE imm', 'RC UC', lambda x: write(x, 'RDMA_WRITE_WITH_IMM')),
    Operation('READ', 'RC', read),
    Operation('FETCH_ADD', 'RC', fetch_add),
    Operation('CMP_SWAP', 'RC', cmp_swap),
    Operation('ATOMIC_WRITE', 'RC', atomic_write, since=(6, 2)),
    Operation('FLUSH', 'RC', flush, since=(6, 2), stock=False),
    Operation('window type 1', 'RC', lambda x: window(x, 1, unbind)),
    Operation('window type 2', 'RC', lambda x: window(x, 2, local_invalidate)),
]
