"""`urxe ping` from our side of the wire to kernel rxe."""

import json
import subprocess

PROGRAM = 'urxe ping'
SECONDS = 60
# What it must say of each step. Linux answers an ICMP echo with the class that it came with.
EXPECTED = {'name': 'ok', 'route': 'ok', 'neighbour': 'ok', 'port': 'ok', 'path-mtu': 'ok',
            'device': 'ok', 'answers': 'ok', 'icrc': 'ok', 'traffic-class': 'ok'}
# That of the link, which is long enough for the largest.
PATH_MTU = 4096


def exchange(guest, binaries, daemon, address):
    """What it says otherwise than it must, in a line; nothing if all is well."""
    command = [*guest.host, str(binaries / 'urxe'), 'ping', address, '--json', '--count', '3',
               '--interval', '10ms', '--timeout', '5s', '--socket', str(daemon.socket)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return f'exit status {done.returncode}, no JSON: {done.stderr.strip()[-300:]}'
    steps = {step['part']: step for step in report['steps']}
    wrong = [f'{part}: {steps[part]["state"]}, expected {state}: {steps[part]["says"]}'
             if part in steps else f'{part}: it is not there'
             for part, state in EXPECTED.items()
             if part not in steps or steps[part]['state'] != state]
    found = steps.get('path-mtu', {}).get('path_mtu')
    if found != PATH_MTU:
        wrong.append(f'path MTU {found}, expected {PATH_MTU}')
    if done.returncode or not report['reached']:
        wrong.append(f'exit status {done.returncode}, reached {report["reached"]}')
    return '; '.join(wrong)
