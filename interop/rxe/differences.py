"""What devices do otherwise than the rules say, side by side: a page of Markdown."""

import collections
import re
import time

# Of several ways to ask a device, that counts which stands first here.
WORST = ['stops', 'fail', 'inconclusive', 'variation', 'not-supported', 'pass', 'needs-raw',
         'needs-agent']
WRONG = WORST[:3]
# Packets of a check that are shown.
SHOWN = 16

# `reports` are what `urxe conform --json` writes, one for each way; `stops` has what the device
# said at last when a check stopped it; `known` is {check: {verdict: reason}}.
Device = collections.namedtuple('Device', 'name reports stops known')

HEAD = '''# What devices do otherwise

Made by `cargo xtask conform --full --differences src/conform/differences.md` on {date}; not to be
edited. Each check was played in every way in which the device can be asked; of different verdicts
the worst is told. What each check says in full is told by `urxe conform --list`.

'''


def page(devices):
    """The page."""
    checks = {check['name']: check for device in devices for report in device.reports
              for check in report['checks']}
    for device in devices:
        for name in device.stops:
            # It is left out where anything else is asked.
            checks.setdefault(name, {'name': name, 'says': '', 'rule': ''})
    found = {name: [result(device, name) for device in devices] for name in sorted(checks)}
    wrong = [name for name in found if verdicts(found[name]) & set(WRONG)]
    text = HEAD.format(date=time.strftime('%Y-%m-%d', time.gmtime()))
    text += summary(devices, found)
    text += '\n## Not as the rule says\n\n' + table(devices, found, checks, wrong)
    for title, verdict in (('As the standard allows, but not as most do', 'variation'),
                           ('Not supported', 'not-supported')):
        names = [name for name in found if verdict in verdicts(found[name]) and name not in wrong]
        text += f'\n## {title}\n\n' + seen_table(devices, found, names, verdict)
    text += ('\n## Evidence\n\nOf what is not as the rule says: what was expected, what was seen, '
             'and packets of one attempt.\n')
    return text + ''.join(evidence(devices, found[name], checks[name]) for name in wrong)


def result(device, name):
    """What one device does at a check, in the way in which it is worst."""
    if device.stops.get(name):
        return {'name': name, 'verdict': 'stops', 'seen': device.stops[name], 'packets': []}
    results = [check for report in device.reports for check in report['checks']
               if check['name'] == name]
    # What came too late to be told says nothing where another way told it.
    results = [check for check in results if not check['late']] or results
    return min(results, key=lambda check: WORST.index(check['verdict']), default=None)


def verdicts(results):
    return {check['verdict'] for check in results if check}


def summary(devices, found):
    lines = ['| device | ' + ' | '.join(WORST) + ' |', '|---|' + '---|' * len(WORST)]
    for at, device in enumerate(devices):
        count = collections.Counter(results[at]['verdict'] for results in found.values()
                                    if results[at])
        numbers = ' | '.join(str(count[verdict]) for verdict in WORST)
        lines.append(f'| {system(device)} | {numbers} |')
    return '\n'.join(lines) + '\n'


def system(device):
    """The device with the kernel that it was found on."""
    about = [report['device'] for report in device.reports if ' on ' in report['device']]
    return f'{device.name} ({about[0]})' if about else device.name


def table(devices, found, checks, names):
    lines = ['| check | rule | ' + ' | '.join(device.name for device in devices) + ' | |',
             '|---|---|' + '---|' * len(devices) + '---|']
    for name in names:
        cells = [word(check) for check in found[name]]
        reasons = dict.fromkeys(reason(device, check) for device, check
                                in zip(devices, found[name]) if check)
        why = '; '.join(filter(None, reasons)) or 'not known before'
        lines.append(f'| [{name}](#{anchor(name)}) | {checks[name]["rule"]} | '
                     f'{" | ".join(cells)} | {cell(why)} |')
    return '\n'.join(lines) + '\n'


def seen_table(devices, found, names, verdict):
    lines = ['| check | device | |', '|---|---|---|']
    for name in names:
        seen = collections.defaultdict(list)
        for device, check in zip(devices, found[name]):
            if check and check['verdict'] == verdict:
                seen[plain(check['seen'])].append(device.name)
        lines += [f'| {name} | {", ".join(who)} | {cell(what)} |' for what, who in seen.items()]
    return '\n'.join(lines) + '\n'


def evidence(devices, results, check):
    text = f'\n### {check["name"]}\n\n'
    if check['says']:
        source = f' ({check["source"]})' if check.get('source') else ''
        text += f'{check["says"]}\n\n{check["rule"]}{source}: {check["rule_text"]}\n\n'
    packets = None
    for device, found in zip(devices, results):
        if not found:
            continue
        text += f'- {device.name}: **{found["verdict"]}**'
        if found['verdict'] not in WRONG:
            text += '\n'
            continue
        if found.get('expected'):
            text += f'; expected: {found["expected"]}'
        if found['verdict'] != 'stops':
            text += f'; seen: {found["seen"]}'
        why = reason(device, found)
        text += f'. {why[0].upper()}{why[1:]}.\n' if why else '.\n'
        lines = found['packets'] or found['seen'].splitlines()
        if packets is None and lines:
            packets = device.name, lines
    if packets:
        who, lines = packets
        more = [f'and {len(lines) - SHOWN} more'] if len(lines) > SHOWN else []
        text += '\n'.join(['', f'{who}:', '', '```text', *lines[:SHOWN], *more, '```', ''])
    return text


def reason(device, check):
    """Why, if that is known."""
    return device.known.get(check['name'], {}).get(check['verdict'], '')


def word(check):
    return check['verdict'] if check else ''


def plain(text):
    """Without the numbers that are others each time."""
    return re.sub(r'\b(qp|psn|va|rkey|id|peer) 0x[0-9a-f]+', r'\1 ...', text)


def cell(text):
    return text.replace('|', '\\|').replace('\n', ' ')


def anchor(name):
    """What a heading is linked by where Markdown is shown."""
    return re.sub(r'[^a-z0-9_-]', '', name.lower())
