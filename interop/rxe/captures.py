"""Captures of cells, judged by decoders that are not ours."""

import contextlib
import pathlib
import signal
import subprocess
import time

from daemon import interface

ICRC = pathlib.Path(__file__).resolve().parent.parent / 'independent-icrc'


@contextlib.contextmanager
def kept(folder, guest, name):
    """Records RoCE packets while the block runs, if there is a folder for them."""
    if folder is None:
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / (name.replace(' ', '-') + '.pcap')
    command = [*guest.host, 'tcpdump', '-i', interface(guest), '-B', '65536', '-s', '0', '-U',
               '-w', str(file), 'udp port 4791']
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               text=True)
    # It says on standard error that it listens, and packets before that are lost.
    while 'listening' not in (line := process.stderr.readline()):
        if not line:
            raise RuntimeError('tcpdump does not run')
    try:
        yield file
    finally:
        # What it has not read yet is lost with it.
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        process.communicate()


def problems(file):
    """What is wrong with a capture, in sentences."""
    found = []
    # Payloads are neither RPC over RDMA nor frames of Ethernet, but tshark takes some for that: one
    # that begins with 08 00, the padding included, must be an IPv4 packet.
    wrong = '_ws.malformed and not frame.protocols contains "infiniband:ethertype"'
    tshark = subprocess.run(
        ['tshark', '-r', str(file), '--disable-protocol', 'rpcordma', '-Y', wrong],
        capture_output=True, text=True)
    if tshark.returncode:
        found.append(f'tshark: {tshark.stderr.strip()}')
    lines = tshark.stdout.splitlines()
    if lines:
        found.append(f'tshark: {len(lines)} malformed: {lines[0]}')
    icrc = subprocess.run([str(ICRC), str(file)], capture_output=True, text=True)
    if icrc.returncode:
        found.append(f'ICRC: {(icrc.stdout or icrc.stderr).strip().splitlines()[-1]}')
    return found
