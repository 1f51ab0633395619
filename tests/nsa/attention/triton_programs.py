"""Runs a program of this folder beside the tests: a process interprets or compiles kernels."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
LIMIT_S = 1500
"""Interpreted kernels take minutes, on a busy machine of two slow cores many."""
INTERPRETED = {"TRITON_INTERPRET": "1"}


def run_program(script: str, *names: str, env: dict[str, str]) -> list[dict[str, Any]]:
    """Return what a program of this folder prints: a JSON object a line.

    Args:
        script: its file's name.
        names: of the cases that it runs.
        env: what its environment has besides this one's.
    """
    done = subprocess.run(
        [sys.executable, str(HERE / script), *names],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
