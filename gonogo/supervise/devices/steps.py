"""How far is the run? The highest step in the last lines of its heartbeat files.

A bounded read of each file's end, for scripted devices whose samples name a step.
"""

import json

from gonogo.rundir import RunDir

TAIL_BYTES = 16_384


def reached_step(run_dir: RunDir) -> int:
    """Return the highest step that any rank's last lines name; 0 before the first.

    A file that cannot be read, and a line that is none, say nothing.
    """
    return max((_highest(run_dir, rank) for rank in _ranks(run_dir)), default=0)


def _ranks(run_dir: RunDir) -> list[int]:
    try:
        return run_dir.ranks()
    except OSError:
        return []


def _highest(run_dir: RunDir, rank: int) -> int:
    """Return the highest step in the last complete lines of one rank."""
    try:
        with run_dir.heartbeat(rank).open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - TAIL_BYTES))
            data = stream.read(TAIL_BYTES)
    except OSError:
        return 0
    lines = data.split(b"\n")[:-1]
    whole = lines if size <= TAIL_BYTES else lines[1:]
    return max((_step_of(line) for line in whole), default=0)


def _step_of(line: bytes) -> int:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return 0
    step = found.get("step") if isinstance(found, dict) else None
    return step if isinstance(step, int) and not isinstance(step, bool) else 0
