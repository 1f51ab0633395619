"""A trainer under the real keeper and watcher. The one place here that knows how these start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gonogo.contract.records import ExitRecord
from gonogo.rundir import RunDir, load_record
from tests.trainer.runs import LOOPS, ROOT, environment

KEEPER = "gonogo.supervise.keeper"
LIMIT_S = 240.0


@contextmanager
def kept(run: Path, loop: str) -> Iterator[subprocess.Popen[bytes]]:
    """Supervise a module of `tests/trainer/loops` in a run directory with an order."""
    command = [sys.executable, "-m", KEEPER, str(run), "--allow", f"{LOOPS}.{loop}"]
    environ = environment(None, GONOGO_HOME=str(run.parent / "home"))
    with (run / "keeper.log").open("wb") as log:
        keeper = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=log, stderr=log)
        try:
            yield keeper
        finally:
            keeper.terminate()  # ends the run too; nothing happens to a keeper that has ended
            keeper.terminate()
            keeper.wait(timeout=LIMIT_S)


def wait_for_end(keeper: subprocess.Popen[bytes], run: Path) -> ExitRecord:
    """Return exit.json, once keeper and watcher have ended."""
    assert keeper.wait(timeout=LIMIT_S) == 0, (run / "keeper.log").read_text()
    record = load_record(RunDir(run).exit, ExitRecord)
    assert record is not None
    return record


def entry(loop: str) -> str:
    """What an order names to start a loop."""
    return f"{LOOPS}.{loop}"
