"""required.toml: which cells must pass. The list only grows, by `--update`.

One table for each kernel, one line for each row of the matrix: the columns that must pass, or "*"
for all. [[broken]] entries list cells that fail because of the kernel, with the evidence.
"""

import pathlib
import re
import tomllib

FILE = pathlib.Path(__file__).resolve().parent.parent / 'required.toml'
ALL = '*'


class Required:
    def __init__(self, columns):
        """`columns`: of each kernel and row, all columns that the whole matrix has."""
        self.columns = columns
        text = FILE.read_text() if FILE.exists() else ''
        # What stands before the first table is for readers, and stays.
        self.head = re.split(r'^\[', text, maxsplit=1, flags=re.MULTILINE)[0]
        read = tomllib.loads(text)
        self.broken = read.pop('broken', [])
        self.lists = {(kernel, row): set(columns.get((kernel, row), ())) if list_ == ALL
                      else set(list_) for kernel, rows in read.items()
                      for row, list_ in rows.items()}

    def is_required(self, kernel, row, column):
        return column in self.lists.get((kernel, row), ())

    def kernels_fault(self, kernel, row, column):
        """Why it cannot pass with this kernel, or None."""
        for entry in self.broken:
            if kernel in entry['kernels'] and re.fullmatch(entry['row'], row) and (
                    re.fullmatch(entry.get('column', '.*'), column)):
                return f'{entry["why"]} ({entry["evidence"]})'
        return None

    def gone(self):
        """What must pass and is not in the matrix any more: kernel, row and column of each."""
        listed = ((*place, column) for place, list_ in self.lists.items()
                  for column in sorted(list_) or [ALL])
        return [(kernel, row, column) for kernel, row, column in listed
                if column not in self.columns.get((kernel, row), ())]

    def add(self, kernel, row, column):
        self.lists.setdefault((kernel, row), set()).add(column)

    def write(self):
        out = [self.head.rstrip() + '\n' if self.head else '']
        for kernel in sorted({kernel for kernel, _ in self.columns}):
            out.append(f'\n["{kernel}"]\n')
            # In the order of the matrix; what it no longer has is kept.
            known = [row for name, row in self.columns if name == kernel]
            gone = [row for name, row in self.lists if name == kernel and row not in known]
            for row in known + gone:
                out.append(self._line(kernel, row))
        for entry in self.broken:
            out.append('\n[[broken]]\n')
            out += [f'{key} = {toml(value)}\n' for key, value in entry.items()]
        FILE.write_text(''.join(out))

    def _line(self, kernel, row):
        listed, every = self.lists.get((kernel, row), set()), self.columns.get((kernel, row), [])
        if not listed:
            return ''
        if listed >= set(every):
            return f'{toml(row)} = "{ALL}"\n'
        order = [column for column in every if column in listed]
        return f'{toml(row)} = [\n' + ''.join(f'    {toml(column)},\n' for column in order) + ']\n'


def toml(value):
    if isinstance(value, list):
        return '[' + ', '.join(map(toml, value)) + ']'
    return "'" + value + "'" if '\\' in value or '"' in value else '"' + value + '"'
