#!/usr/bin/env python3
"""Accepts every connection by the connection manager, for `urxe conform --cm`, and says that it has
end-to-end flow control, as programs may. It stands beside cm.py of interop/peer.

    listener.py PORT
"""

import itertools
import sys

from cm import Manager

# As long as nothing happens.
LONG = 3600


def accept(manager, found):
    manager.qp({'id': found})
    manager.accept({'id': found, 'flow_control': 1})


def main():
    manager = Manager()
    manager.id({'name': 'listener'})
    manager.listen({'id': 'listener', 'addr': '0.0.0.0', 'port': int(sys.argv[1]), 'backlog': 64})
    print('ready', flush=True)
    for number in itertools.count():
        event = manager.event({'timeout': LONG, 'name': f'call{number}'})
        kind, found = event.get('event'), event.get('id')
        try:
            if kind == 'CONNECT_REQUEST':
                accept(manager, found)
            elif kind == 'DISCONNECTED':
                manager.disconnect({'id': found})
                manager.close({'names': [found]})
            elif kind not in (None, 'ESTABLISHED'):
                manager.close({'names': [found]})
        except OSError:
            # A caller that is gone already.
            manager.close({'names': [found]})


main()
