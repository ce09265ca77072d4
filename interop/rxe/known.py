"""What is known of the devices: src/conform/known."""

import collections
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parents[2] / 'src/conform/known'
# Of a device that was not asked.
SILENT = {'needs-agent', 'needs-raw'}


def path(device):
    """The list of a device."""
    return FOLDER / f'{device}.txt'


def read(device):
    """{check: {verdict: reason}}."""
    found = collections.defaultdict(dict)
    for line in path(device).read_text().splitlines():
        if line and line[0] != '#':
            check, verdict, reason = line.split(maxsplit=2)
            found[check][verdict] = reason
    return found


def write(device, reports, folder, is_renewed):
    """Writes the list as it would be now, if it would be another: instead of the one that there is,
    or into a folder.
    """
    old = path(device).read_text()
    new = ''.join(f'{line}\n' for line in lines(old, read(device), reports))
    if new == old:
        return
    file = path(device) if is_renewed else folder / path(device).name
    file.write_text(new)
    print(f'{device}: {file} has what is known now', flush=True)


def lines(old, known, reports):
    """The list's remarks, and what is wrong in any of the ways."""
    yield from (line for line in old.splitlines() if line[:1] in ('#', ''))
    found, late = collections.defaultdict(dict), set()
    for report in reports:
        for check in report['checks']:
            if check['late']:
                late.add(check['name'])
            elif check['verdict'] not in SILENT:
                found[check['name']].setdefault(check['verdict'], check)
    wrong = {name for name, verdicts in found.items() if {'fail', 'inconclusive'} & set(verdicts)}
    for name in [*known, *(name for name in found if name in wrong and name not in known)]:
        # What could not be told, or was not asked, may be as it was.
        is_kept = name in late or 'stops' in known[name] or name not in found
        kept = known[name] if is_kept else {}
        verdicts = dict(kept)
        if name in wrong:
            verdicts |= {verdict: reason(known[name], check)
                         for verdict, check in found[name].items()}
        for verdict, why in verdicts.items():
            yield f'{name} {verdict} {why}'


def reason(known, check):
    """That of the same verdict, of another one, or what was seen."""
    why = known.get(check['verdict']) or next(iter(known.values()), None)
    return why or ' '.join(f'seen: {check["seen"] or "as the rule says"}'.split())
