"""RDMA-CM for the peer: ids, connections and events, by calls of librdmacm.

The bindings of rdma-core 44 do not tell the status of an event, nor take a QP number of one's own,
so the library is called itself.
"""

import ctypes
import fcntl
import ipaddress
import os
import select
import socket
import struct
import time
from ctypes import (POINTER, Structure, Union, byref, c_char_p, c_int, c_uint8, c_uint16, c_uint32,
                    c_uint64, c_void_p, cast, string_at)

SPACES = {'TCP': 0x106, 'UDP': 0x111}
TYPES = {'TCP': 2, 'UDP': 4}
KINDS = ['ADDR_RESOLVED', 'ADDR_ERROR', 'ROUTE_RESOLVED', 'ROUTE_ERROR', 'CONNECT_REQUEST',
         'CONNECT_RESPONSE', 'CONNECT_ERROR', 'UNREACHABLE', 'REJECTED', 'ESTABLISHED',
         'DISCONNECTED', 'DEVICE_REMOVAL', 'MULTICAST_JOIN', 'MULTICAST_ERROR', 'ADDR_CHANGE',
         'TIMEWAIT_EXIT']
TIMEOUT_MS = 5000


class ConnParam(Structure):
    _fields_ = [('private_data', c_void_p), ('private_data_len', c_uint8),
                ('responder_resources', c_uint8), ('initiator_depth', c_uint8),
                ('flow_control', c_uint8), ('retry_count', c_uint8), ('rnr_retry_count', c_uint8),
                ('srq', c_uint8), ('qp_num', c_uint32)]


class UdParam(Structure):
    _fields_ = [('private_data', c_void_p), ('private_data_len', c_uint8),
                # struct ibv_ah_attr: a GRH of 24 bytes, and 8 more.
                ('ah_attr', c_uint64 * 4), ('qp_num', c_uint32), ('qkey', c_uint32)]


class Param(Union):
    _fields_ = [('conn', ConnParam), ('ud', UdParam)]


class Event(Structure):
    _fields_ = [('id', c_void_p), ('listen_id', c_void_p), ('event', c_int), ('status', c_int),
                ('param', Param)]


class Channel(Structure):
    _fields_ = [('fd', c_int)]


class Qp(Structure):
    """struct ibv_qp, as far as its number."""

    _fields_ = [('pointers', c_void_p * 6), ('handle', c_uint32), ('qp_num', c_uint32)]


class Id(Structure):
    """struct rdma_cm_id, as far as the QP."""

    _fields_ = [('verbs', c_void_p), ('channel', c_void_p), ('context', c_void_p),
                ('qp', POINTER(Qp))]


class QpInit(Structure):
    _fields_ = [('qp_context', c_void_p), ('send_cq', c_void_p), ('recv_cq', c_void_p),
                ('srq', c_void_p), ('cap', c_uint32 * 5), ('qp_type', c_int),
                ('sq_sig_all', c_int)]


class Manager:
    """The commands that begin with `cm_`. Ids go by the names that commands give them."""

    def __init__(self):
        self.lib = ctypes.CDLL('librdmacm.so.1', use_errno=True)
        self.lib.rdma_create_event_channel.restype = POINTER(Channel)
        self.lib.rdma_get_src_port.restype = c_uint16
        self.channel = self.lib.rdma_create_event_channel()
        if not self.channel:
            raise OSError(ctypes.get_errno(), 'rdma_create_event_channel')
        fd = self.channel.contents.fd
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NONBLOCK)
        self.ids, self.spaces = {}, {}

    def _call(self, function, *arguments):
        if getattr(self.lib, function)(*arguments):
            errno = ctypes.get_errno()
            raise OSError(errno, f'{function}: {os.strerror(errno)}')

    def id(self, c):
        made, space = c_void_p(), c.get('space', 'TCP')
        self._call('rdma_create_id', self.channel, byref(made), None, SPACES[space])
        self._keep(c['name'], made.value, space)

    def _keep(self, name, pointer, space):
        self.ids[name], self.spaces[name] = c_void_p(pointer), space

    def listen(self, c):
        """Binds to an address, and to any port if none is given, and listens."""
        found = self.ids[c['id']]
        self._call('rdma_bind_addr', found, address(c['addr'], c.get('port', 0)))
        self._call('rdma_listen', found, c.get('backlog', 0))
        return {'port': socket.ntohs(self.lib.rdma_get_src_port(found))}

    def resolve(self, c):
        """Finds the device and the path to an address."""
        found = self.ids[c['id']]
        self._call('rdma_resolve_addr', found, None, address(c['addr'], c['port']), TIMEOUT_MS)
        self._expect('ADDR_RESOLVED')
        self._call('rdma_resolve_route', found, TIMEOUT_MS)
        self._expect('ROUTE_RESOLVED')

    def _expect(self, kind):
        event = self.event({'timeout': 2 * TIMEOUT_MS / 1000})
        if event.get('event') != kind:
            raise ValueError(f'{event}, expected {kind}')

    def qp(self, c):
        """Makes an id's QP, with queues of its own."""
        init = QpInit(cap=(16, 16, 1, 1, 0), qp_type=TYPES[self.spaces[c['id']]], sq_sig_all=1)
        found = self.ids[c['id']]
        self._call('rdma_create_qp', found, None, byref(init))
        return {'qpn': cast(found, POINTER(Id)).contents.qp.contents.qp_num}

    def connect(self, c):
        self._call('rdma_connect', self.ids[c['id']], param(c))

    def accept(self, c):
        self._call('rdma_accept', self.ids[c['id']], param(c))

    def establish(self, c):
        """What the library does by itself for an id that has a QP."""
        self._call('rdma_establish', self.ids[c['id']])

    def reject(self, c):
        data = bytes.fromhex(c.get('data', ''))
        self._call('rdma_reject', self.ids[c['id']], c_char_p(data), c_uint8(len(data)))

    def disconnect(self, c):
        self._call('rdma_disconnect', self.ids[c['id']])

    def close(self, c):
        """Destroys ids with their QPs; what is not there is no error."""
        for name in c['names']:
            if name in self.ids:
                gone = self.ids.pop(name)
                if cast(gone, POINTER(Id)).contents.qp:
                    self.lib.rdma_destroy_qp(gone)
                self._call('rdma_destroy_id', gone)

    def event(self, c):
        """The next event, or nothing if none comes in time. With a request comes a new id, which
        has the name `name` then."""
        end, event = time.monotonic() + c['timeout'], POINTER(Event)()
        # An event that the library deals with itself, or that is gone, is none.
        while self.lib.rdma_get_cm_event(self.channel, byref(event)):
            left = end - time.monotonic()
            if left <= 0:
                return {}
            select.select([self.channel.contents.fd], [], [], left)
        kind, found = KINDS[event.contents.event], event.contents
        if kind == 'CONNECT_REQUEST':
            self._keep(c['name'], found.id, self.spaces[self._name(found.listen_id)])
        name = self._name(found.id)
        told = {'event': kind, 'status': found.status, 'id': name}
        if self.spaces.get(name) == 'UDP':
            told.update(described(found.param.ud), qkey=found.param.ud.qkey)
        else:
            told.update(described(found.param.conn))
        self._call('rdma_ack_cm_event', event)
        return told

    def _name(self, pointer):
        return next((name for name, found in self.ids.items() if found.value == pointer), None)

    def end(self):
        self.close({'names': list(reversed(self.ids))})
        self.lib.rdma_destroy_event_channel(self.channel)


def described(found):
    data = string_at(found.private_data, found.private_data_len) if found.private_data else b''
    return {'data': data.hex(), 'qpn': found.qp_num}


def param(c):
    data = bytes.fromhex(c.get('data', ''))
    held = ctypes.create_string_buffer(data, len(data) or 1)
    made = ConnParam(cast(held, c_void_p) if data else None, len(data), 1, 1,
                     c.get('flow_control', 0), 7, 7, 0, c.get('qpn', 0))
    # What the pointer leads to lives as long as this.
    made.held = held
    return byref(made)


def address(text, port):
    ip = ipaddress.ip_address(text)
    family = socket.AF_INET6 if ip.version == 6 else socket.AF_INET
    packed = struct.pack('=H', family) + struct.pack('!H', port)
    packed += ip.packed if ip.version == 4 else bytes(4) + ip.packed + bytes(4)
    return c_char_p(packed.ljust(28, b'\0'))
