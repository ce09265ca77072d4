"""Runs tests of rdma-core's suite and says on standard output how each went, a JSON line each.

`run` starts this in a process of its own; it is not meant to be started by hand.
    suite.py FOLDER-OF-THE-SUITE list
    suite.py FOLDER-OF-THE-SUITE run TEST... [-- OPTIONS OF THE SUITE]
"""

import importlib
import json
import os
import sys
import unittest

# The tests print now and then: what they print goes to standard error.
REPORT = os.fdopen(os.dup(1), 'w', buffering=1)
os.dup2(2, 1)


def say(**line):
    REPORT.write(json.dumps(line) + '\n')


class Result(unittest.TestResult):
    """What became of one test. Of several things that went wrong the first is told."""

    def __init__(self):
        super().__init__()
        self.outcome, self.reason = None, ''

    def _tell(self, outcome, reason):
        if self.outcome is None:
            self.outcome, self.reason = outcome, ' '.join(str(reason).split())

    def addSkip(self, test, reason):
        self._tell('skip', reason)

    def addError(self, test, err):
        self._tell('fail', f'{err[0].__name__}: {err[1]}')
        super().addError(test, err)

    addFailure = addError

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.addError(subtest, err)

    def addSuccess(self, test):
        self._tell('pass', '')


def cases(suite):
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from cases(part)
        else:
            yield part


def main():
    folder, task, *rest = sys.argv[1:]
    names, options = rest, []
    if '--' in rest:
        names, options = rest[:rest.index('--')], rest[rest.index('--') + 1:]
    sys.path[:0] = [folder, os.path.dirname(folder)]
    sys.argv[1:] = options
    from args_parser import parser
    parser.parse_args()
    modules = sorted(file[:-3] for file in os.listdir(folder)
                     if file.startswith('test_') and file.endswith('.py'))
    if task == 'run':
        modules = sorted({name.split('.')[0] for name in names})
    for module in modules:
        loaded = importlib.import_module(f'tests.{module}')
        for case in cases(unittest.defaultTestLoader.loadTestsFromModule(loaded)):
            name = case.id().removeprefix('tests.')
            if task == 'list':
                say(test=name)
            elif name in names:
                say(test=name)
                result = Result()
                unittest.TestSuite([case]).run(result)
                for _, trace in result.errors:
                    print(trace, file=sys.stderr)
                say(test=name, outcome=result.outcome, reason=result.reason)


main()
