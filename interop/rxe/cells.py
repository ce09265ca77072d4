"""The cells of the matrix: every combination, and the few of the short form."""

import itertools
from typing import NamedTuple

import cm
import ping
import programs
from operations import OPERATIONS, Operation

BACKENDS = ['udp', 'raw']
CLIENTS = ['shim', 'native']
FAMILIES = ['v4', 'v6']
PATH_MTUS = [256, 1024, 4096]
# What datagrams have in place of a path MTU is the MTU of the port.
PORT_MTU = 4096
# Every value of every axis.
SHORT = {('udp', 'shim', 'v4', 1024), ('udp', 'shim', 'v6', 4096), ('udp', 'native', 'v4', 4096),
         ('udp', 'native', 'v6', 256), ('raw', 'shim', 'v4', 4096), ('raw', 'native', 'v6', 1024)}


class Cell(NamedTuple):
    kernel: str
    row: str
    column: str
    backend: str
    client: str
    family: str
    mtu: int
    # Who requests, or who serves.
    by: str
    transport: str
    operation: Operation | None
    program: str
    # Why it cannot be, if so.
    missing: str


def every(kernel):
    for backend, client, family, mtu in itertools.product(BACKENDS, CLIENTS, FAMILIES, PATH_MTUS):
        column = f'{backend} {client} {family} {mtu}'
        for operation, by in itertools.product(OPERATIONS, ('urxe', 'kernel')):
            for transport in operation.transports.split():
                if transport != 'UD' or mtu == PORT_MTU:
                    row = f'{transport} {operation.name}, {by} requests'
                    yield Cell(kernel, row, column, backend, client, family, mtu, by, transport,
                               operation, '', operation.missing(kernel, client, by))
    for backend, family in itertools.product(BACKENDS, FAMILIES):
        column = f'{backend} shim {family}'
        for program, by in itertools.product(
                [*programs.PINGPONG, *programs.PERFTEST, *programs.OWN, *cm.PROGRAMS],
                ('urxe', 'kernel')):
            # The raw back-end carries the same packets; a few programs are enough to see it.
            if backend == 'udp' or program in programs.PINGPONG + cm.RAW:
                kind = 'RDMA-CM ' if program in cm.PROGRAMS else ''
                yield Cell(kernel, f'{kind}{program}, {by} serves', column, backend, 'shim', family,
                           0, by, 'any', None, program, cm.missing(program, family))
        # What it looks at is the same with any back-end.
        if backend == 'udp':
            yield Cell(kernel, f'{ping.PROGRAM}, kernel serves', column, backend, 'native', family,
                       0, 'kernel', 'any', None, ping.PROGRAM, '')


def short(kernel):
    for cell in every(kernel):
        if cell.operation:
            if (cell.backend, cell.client, cell.family, cell.mtu) in SHORT:
                yield cell
        elif (cell.program in [*programs.SHORT, ping.PROGRAM] and cell.column == 'udp shim v4'
              or (cell.program, cell.family, cell.by) in cm.SHORT and cell.backend == 'udp'):
            yield cell


def capture(kernel, column):
    """Stands for a capture in the list of results."""
    return Cell(kernel, 'captures', column, '', '', '', 0, '', '', None, '', '')
