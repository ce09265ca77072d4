"""Where cargo puts what it builds."""

import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def target_directory():
    """`CARGO_TARGET_DIR`, or what cargo's configuration says, or `target`."""
    named = os.environ.get('CARGO_TARGET_DIR')
    if named:
        return pathlib.Path(named).absolute()
    command = ['cargo', 'metadata', '--format-version', '1', '--no-deps']
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
        return pathlib.Path(json.loads(done.stdout)['target_directory'])
    except (OSError, subprocess.CalledProcessError):
        # Without cargo nothing was built elsewhere.
        return ROOT / 'target'
