#!/usr/bin/python3
"""A verbs program that does what it is told: one end of a connection that is to be tested.

It runs on stock rdma-core and python3-pyverbs, on any device. Commands come as JSON, one line each:
an object whose "do" names one of the methods of `Peer`, or a list of such. Each line is answered by
one line of the same shape, where what failed is {"error": ..., "errno": ...} and ends the list.
The Rust program in this folder takes the same commands.

    peer.py                     commands on standard input
    peer.py --listen 7471       from whoever connects to this TCP port, one after the other
"""

import argparse
import ctypes
import ipaddress
import json
import os
import socket
import struct
import sys
import time

import cm
import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QPAttr, QPCap, QPEx, QPInitAttrEx
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

MTUS = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}
TYPES = {'RC': e.IBV_QPT_RC, 'UC': e.IBV_QPT_UC, 'UD': e.IBV_QPT_UD}
# What a QP may post by the extended interface is said when it is made.
DATAGRAM_OPS = ['SEND', 'SEND_WITH_IMM']
UNRELIABLE_OPS = DATAGRAM_OPS + ['RDMA_WRITE', 'RDMA_WRITE_WITH_IMM']
RELIABLE_OPS = UNRELIABLE_OPS + ['SEND_WITH_INV', 'RDMA_READ', 'ATOMIC_CMP_AND_SWP',
                                 'ATOMIC_FETCH_AND_ADD', 'ATOMIC_WRITE', 'BIND_MW', 'LOCAL_INV']
OPS = {'RC': RELIABLE_OPS, 'UC': UNRELIABLE_OPS, 'UD': DATAGRAM_OPS}
ATOMICS = {'FETCH_ADD': 'ATOMIC_FETCH_AND_ADD', 'CMP_SWAP': 'ATOMIC_CMP_AND_SWP'}
DEPTH = 128
INLINE_MAX = 64


STATUSES = {int(getattr(e, key)): key.removeprefix('IBV_WC_') for key in dir(e)
            if key.startswith('IBV_WC_') and key.endswith(('_ERR', '_SUCCESS'))}
OPCODES = {int(getattr(e, f'IBV_WC_{key}')): key for key in (
    'SEND', 'RDMA_WRITE', 'RDMA_READ', 'COMP_SWAP', 'FETCH_ADD', 'BIND_MW', 'LOCAL_INV',
    'ATOMIC_WRITE', 'RECV', 'RECV_RDMA_WITH_IMM')}


def pattern(seed, length):
    """Bytes that look different in each packet of a message and in each message.

    Their period is a prime, so no two packets of a path MTU begin alike.
    """
    unit = bytes((seed * 31 + i * 7 + 1) & 255 for i in range(251))
    return (unit * (length // 251 + 1))[:length]


def image(command):
    """What an area of memory shall be: `parts` of patterns, and a byte everywhere else."""
    area = bytearray(bytes([command.get('rest', 0)]) * command['len'])
    for offset, length, seed in command.get('parts', ()):
        area[offset:offset + length] = pattern(seed, length)
    for offset, value in command.get('words', ()):
        struct.pack_into('=Q', area, offset, int(value, 16))
    return area


class Peer:
    def __init__(self, device):
        devices = [found.name.decode() for found in get_device_list()]
        if not devices:
            raise SystemExit('peer: there is no device')
        self.device = device or devices[0]
        self.context = Context(name=self.device)
        self.pd = PD(self.context)
        # What commands made, by the names that they gave it.
        self.things = {}
        # RDMA-CM's part of it, made when it is asked for.
        self.manager = None

    def hello(self, _):
        """The device, its GIDs and its MTU."""
        gids = {}
        for index in range(self.context.query_port(1).gid_tbl_len):
            address = ipaddress.IPv6Address(self.context.query_gid(1, index).gid)
            if address != ipaddress.IPv6Address(0) and len(gids) < 16:
                gids[str(address.ipv4_mapped or address)] = index
        mtu = 128 << self.context.query_port(1).active_mtu
        return {'device': self.device, 'gids': gids, 'mtu': mtu, 'system': os.uname().release}

    def reg_mr(self, c):
        mr = self.things[c['name']] = MR(self.pd, c['len'], c['access'])
        return {'addr': mr.buf, 'rkey': mr.rkey, 'lkey': mr.lkey}

    def fill(self, c):
        area = image(c)
        self.things[c['mr']].write(bytes(area), len(area), c['off'])

    def check(self, c):
        """Compares memory with what it shall be, again and again until that or a timeout comes."""
        mr, want, end = self.things[c['mr']], image(c), time.monotonic() + c.get('timeout', 0)
        while True:
            have = bytearray(mr.read(c['len'], c['off']))
            for offset, length in c.get('skip', ()):
                have[offset:offset + length] = want[offset:offset + length]
            if have == want:
                return {'same': True}
            if time.monotonic() >= end:
                break
            time.sleep(0.002)
        wrong = [i for i in range(len(want)) if have[i] != want[i]]
        first = wrong[0]
        return {'same': False, 'wrong': len(wrong), 'first': first, 'last': wrong[-1],
                'have': have[first:first + 16].hex(), 'want': want[first:first + 16].hex()}

    def read(self, c):
        return {'hex': self.things[c['mr']].read(c['len'], c['off']).hex()}

    def create_cq(self, c):
        self.things[c['name']] = CQ(self.context, c.get('depth', 4 * DEPTH))

    def create_srq(self, c):
        init = SrqInitAttr(SrqAttr(max_wr=DEPTH, max_sge=4))
        self.things[c['name']] = SRQ(self.pd, init)

    def create_qp(self, c):
        cq, flags = self.things[c['cq']], 0
        for op in OPS[c['type']]:
            flags |= getattr(e, f'IBV_QP_EX_WITH_{op}')
        srq = self.things[c['srq']] if 'srq' in c else None
        mask = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
        cap = QPCap(DEPTH, 0 if srq else DEPTH, 4, 0 if srq else 4, INLINE_MAX)
        init = QPInitAttrEx(qp_type=TYPES[c['type']], scq=cq, rcq=cq, srq=srq, cap=cap, pd=self.pd,
                            comp_mask=mask, send_ops_flags=flags, sq_sig_all=0)
        qp = self.things[c['name']] = QPEx(self.context, init)
        return {'qpn': qp.qp_num}

    def _path(self, c):
        route = GlobalRoute(dgid=gid(c['dgid']), sgid_index=c['gid_index'], hop_limit=64,
                            traffic_class=c.get('traffic_class', 0))
        return AHAttr(gr=route, is_global=1, port_num=1)

    def connect(self, c):
        """RC and UC: to RTS, with a QP that has the number `dqpn` and begins at `rq_psn`."""
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = c['access']
        attr.path_mtu, attr.dest_qp_num = MTUS[c['mtu']], c['dqpn']
        attr.sq_psn, attr.rq_psn = c['sq_psn'], c['rq_psn']
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
        attr.min_rnr_timer, attr.timeout = 12, c.get('timeout', 17)
        attr.retry_cnt, attr.rnr_retry = c.get('retry_cnt', 7), c.get('rnr_retry', 7)
        attr.ah_attr = self._path(c)
        self.things[c['qp']].to_rts(attr)

    def start_datagrams(self, c):
        attr = QPAttr(port_num=1)
        attr.qkey, attr.sq_psn = c['qkey'], c['sq_psn']
        self.things[c['qp']].to_rts(attr)

    def create_ah(self, c):
        self.things[c['name']] = AH(self.pd, attr=self._path(c))

    def attach_mcast(self, c):
        """With `join`, the name of an interface, IP joins too. Kernel rxe does not ask it to, and
        without it IP drops what comes: elsewhere rdma_cm joins."""
        if 'join' in c:
            member = self.things[f'member of {c["gid"]}'] = socket.socket(
                socket.AF_INET6 if ':' in c['gid'] else socket.AF_INET, socket.SOCK_DGRAM)
            group, index = ipaddress.ip_address(c['gid']).packed, socket.if_nametoindex(c['join'])
            if len(group) == 16:
                member.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP,
                                  struct.pack('=16sI', group, index))
            else:
                member.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP,
                                  struct.pack('=4s4si', group, bytes(4), index))
        self._multicast('ibv_attach_mcast', c)

    def detach_mcast(self, c):
        self._multicast('ibv_detach_mcast', c)

    def _multicast(self, call, c):
        """These bindings have no word for it, so the library is called itself."""
        group = (ctypes.c_uint8 * 16)(*packed_gid(c['gid']))
        qp = ctypes.c_void_p(address_of(self.things[c['qp']]))
        error = getattr(ctypes.CDLL('libibverbs.so.1'), call)(qp, group, 0)
        if error:
            raise OSError(error, call)

    def _sges(self, c):
        mr = self.things[c['mr']]
        return [SGE(mr.buf + offset, length, mr.lkey) for offset, length in c['sges']]

    def post_recv(self, c):
        """A list of receives: {id, sges}, to a QP or an SRQ. The bindings want an entry in each."""
        queue = self.things[c['to']]
        for wr in c['wrs']:
            sges = self._sges({'mr': c['mr'], **wr})
            queue.post_recv(RecvWR(wr_id=wr['id'], num_sge=len(sges), sg=sges))

    def post_send(self, c):
        """A list of sends: {op, id, sges, ...}."""
        qp = self.things[c['qp']]
        for wr in c['wrs']:
            if wr['op'] == 'ATOMIC_WRITE':
                self._atomic_write(qp, wr)
            else:
                qp.post_send(self._work_request({'mr': c['mr'], **wr}))

    def _work_request(self, wr):
        op, sges = wr['op'], self._sges(wr) if 'sges' in wr else []
        flags = e.IBV_SEND_SIGNALED | (e.IBV_SEND_INLINE if wr.get('inline') else 0)
        opcode = getattr(e, f'IBV_WR_{ATOMICS.get(op, op)}', None)
        if opcode is None:
            raise NotImplementedError(f'{op} is not in these bindings')
        # One union; immediate data is the part of it that is in network order.
        extra = socket.htonl(wr['imm']) if 'imm' in wr else wr.get('inv', 0)
        made = SendWR(wr_id=wr['id'], opcode=opcode, num_sge=len(sges), sg=sges or None,
                      send_flags=flags, imm_data=extra)
        if op in ATOMICS:
            swap = int(wr.get('swap', '0'), 16)
            made.set_wr_atomic(wr['rkey'], wr['raddr'], int(wr['operand'], 16), swap)
        elif 'raddr' in wr:
            made.set_wr_rdma(wr['rkey'], wr['raddr'])
        elif op == 'BIND_MW':
            # The key that it gets is the window's next one.
            made.set_bind_wr(self.things[wr['mw']], self._window(wr))
        if 'ah' in wr:
            made.set_wr_ud(self.things[wr['ah']], wr['dqpn'], wr['qkey'])
        return made

    def _window(self, c):
        part = c['window']
        mr = self.things[part['of']]
        return MWBindInfo(mr, mr.buf + part['off'], part['len'], part['access'])

    def _atomic_write(self, qp, wr):
        """Only the extended interface has it. For the rest it would not do: librxe 44 takes the
        first entry of a list of several for all of them when it adds up their lengths."""
        qp.wr_start()
        qp.wr_id, qp.wr_flags = wr['id'], e.IBV_SEND_SIGNALED
        qp.wr_atomic_write(wr['rkey'], wr['raddr'], bytes.fromhex(wr['data']))
        qp.wr_complete()

    def poll(self, c):
        """As many completions as are asked for, or those that came in time."""
        cq, found, end = self.things[c['cq']], [], time.monotonic() + c['timeout']
        while len(found) < c['count']:
            _, wcs = cq.poll(c['count'] - len(found))
            found += map(completion, wcs)
            if not wcs:
                if time.monotonic() >= end:
                    break
                time.sleep(0.0003)
        return {'wcs': found}

    def alloc_mw(self, c):
        kind = {1: e.IBV_MW_TYPE_1, 2: e.IBV_MW_TYPE_2}[c['type']]
        mw = self.things[c['name']] = MW(self.pd, kind)
        return {'rkey': mw.rkey}

    def bind_mw(self, c):
        """A window of type 1, which libibverbs binds with a call of its own."""
        mw = self.things[c['mw']]
        bind = MWBind(self._window(c), wr_id=c['id'], send_flags=e.IBV_SEND_SIGNALED)
        self.things[c['qp']].bind_mw(mw, bind)
        return {'rkey': mw.rkey}

    def close(self, c):
        """Destroys things in the order in which they are named; what is not there is no error."""
        for name in c['names']:
            if name in self.things:
                self.things.pop(name).close()

    def do(self, command):
        what = command['do']
        try:
            if what.startswith('cm_'):
                self.manager = self.manager or cm.Manager()
                return getattr(self.manager, what.removeprefix('cm_'))(command) or {}
            if what.startswith('_') or not hasattr(self, what):
                raise NotImplementedError(f'no such command: {what}')
            return getattr(self, what)(command) or {}
        except Exception as error:  # noqa: BLE001: whatever goes wrong is an answer
            code = getattr(error, 'error_code', None) or getattr(error, 'errno', None)
            return {'error': f'{what}: {type(error).__name__}: {error}', 'errno': code}

    def answer(self, line):
        commands = json.loads(line)
        if isinstance(commands, dict):
            return self.do(commands)
        answers = []
        for command in commands:
            answers.append(self.do(command))
            if 'error' in answers[-1]:
                break
        return answers

    def serve(self, lines, out):
        for line in lines:
            out.write(json.dumps(self.answer(line)) + '\n')
            out.flush()
        # Whoever gave the commands is gone, and what it made goes with it.
        if self.manager:
            self.manager.end()
        self.close({'names': [name for name in reversed(self.things)]})


def completion(wc):
    found = {'id': wc.wr_id, 'status': STATUSES.get(wc.status, str(wc.status))}
    if found['status'] != 'SUCCESS':
        return {**found, 'vendor_err': wc.vendor_err}
    opcode = OPCODES.get(wc.opcode, str(wc.opcode))
    found.update(op=opcode, qpn=wc.qp_num)
    if opcode.startswith('RECV'):
        found.update(len=wc.byte_len, src_qpn=wc.src_qp, flags=wc.wc_flags)
        if wc.wc_flags & e.IBV_WC_WITH_IMM:
            found['imm'] = socket.ntohl(wc.imm_data)
        elif wc.imm_data:
            found['inv'] = wc.imm_data
    return found


def packed_gid(address):
    address = ipaddress.ip_address(address)
    return address.packed if address.version == 6 else b'\0' * 10 + b'\xff\xff' + address.packed


def gid(address):
    return GID(ipaddress.IPv6Address(packed_gid(address)).exploded)


def address_of(qp):
    """The ibv_qp behind an object of the bindings, which they keep to themselves.

    It is the pointer of the object that leads to this QP's number and type. Memory is looked at
    through a file, where a word that is no pointer is an error and no crash.
    """
    words = struct.unpack('64Q', ctypes.string_at(id(qp), 512))
    with open('/proc/self/mem', 'rb', buffering=0) as memory:
        for word in words:
            try:
                # After six pointers of struct ibv_qp: handle, qp_num, state, qp_type.
                _, number, _, kind = struct.unpack('4I', os.pread(memory.fileno(), 16, word + 48))
            except (OSError, OverflowError, struct.error):
                continue
            if (number, kind) == (qp.qp_num, int(qp.qp_type)):
                return word
    raise LookupError('the ibv_qp is not found')


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--device', help='default: the first one')
    parser.add_argument('--listen', type=int, metavar='PORT')
    args = parser.parse_args()
    if args.listen is None:
        Peer(args.device).serve(sys.stdin, sys.stdout)
        return
    with socket.create_server(('', args.listen)) as server:
        print('peer: ready', flush=True)
        while True:
            connection, _ = server.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection, connection.makefile('rw') as stream:
                Peer(args.device).serve(stream, stream)


main()
