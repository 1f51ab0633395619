"""Runs a program of this folder beside the tests: a process interprets or compiles kernels."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
LIMIT_S = 1500
"""Interpreted kernels take minutes, on a busy machine of two slow cores many."""
INTERPRETED = {"TRITON_INTERPRET": "1"}


def run_program(script, *names, env):
    """What a program of this folder prints of the cases `names`: a JSON object a line."""
    done = subprocess.run(
        [sys.executable, str(HERE / script), *names],
        env=os.environ | {"PYTHONPATH": str(HERE.parents[2]), "OMP_NUM_THREADS": "1"} | env,
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
