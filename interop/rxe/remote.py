#!/usr/bin/env python3
"""Runs programs in the guest as ssh would: what `urxe conform --run` starts servers with.

    remote.py --serve PORT                in the guest
    remote.py HOST PORT PROGRAM WORDS...  on the other side; when it ends, the program there does
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading

# Ends the output, and precedes the exit status; no program that is run here writes it.
END = b'\0'


def serve(port):
    listener = socket.create_server(('', port), backlog=64)
    print('ready', flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=run, args=[connection], daemon=True).start()


def run(connection):
    """One program, until it ends or its caller goes."""
    with connection:
        words = json.loads(connection.makefile('rb').readline())
        try:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=connection,
                                       stderr=connection, start_new_session=True)
        except OSError as error:
            connection.sendall(f'{error}\n'.encode() + END + b'127')
            return
        ended = os.pidfd_open(process.pid)
        # The caller sends nothing more: what can be read is the end.
        select.select([ended, connection], [], [])
        os.close(ended)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        try:
            connection.sendall(END + str(status).encode())
        except OSError:
            pass


def call(host, port, words):
    with socket.create_connection((host, port)) as connection:
        connection.sendall(json.dumps(words).encode() + b'\n')
        status = b''
        is_output = True
        while part := connection.recv(1 << 16):
            if is_output:
                part, end, rest = part.partition(END)
                sys.stderr.buffer.write(part)
                is_output = not end
                part = rest
            status += b'' if is_output else part
    return int(status or b'255') & 0xff


def main():
    if sys.argv[1] == '--serve':
        serve(int(sys.argv[2]))
    return call(sys.argv[1], int(sys.argv[2]), sys.argv[3:])


if __name__ == '__main__':
    sys.exit(main())
