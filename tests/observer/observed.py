"""Programs that run under the observer, as children of one process that has imported torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gonogo.contract.heartbeat import Heartbeat
from tests.trainer.runs import LAUNCH, ROOT, environment, lines_of, said, write_order

PROGRAMS = Path(__file__).with_name("programs.py")
SITE = ROOT / "gonogo" / "observer" / "site"
Parent = subprocess.Popen[str]


@pytest.fixture(scope="session")
def parent() -> Iterator[Parent]:
    """A process that has imported torch under the observer, and forks a child for each program."""
    environ = {**environment(None), "PYTHONPATH": f"{SITE}:{ROOT}", "GONOGO_RUN_DIR": "/nowhere"}
    command = [sys.executable, str(PROGRAMS), "forked"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, text=True) as process:
        yield process


class Observed:
    """A program that has run under the observer: a child of `parent`, or ranks of torchrun."""

    def __init__(self, folder: Path, name: str, parent: Parent | int, **names: str) -> None:
        ranks = parent if isinstance(parent, int) else 1
        self.run = write_order(folder / "run", steps=46, world_size=ranks)
        environ = environment(self.run, **names)
        environ |= {"PYTHONPATH": f"{SITE}:{ROOT}", "SAVES_TO": str(folder / "saves")}
        output = folder / "output"
        if isinstance(parent, int):
            launch = (*LAUNCH, "--nproc-per-node", str(ranks))
            with output.open("w") as stream:
                done = subprocess.run(
                    [*launch, str(PROGRAMS), name],
                    env=environ,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    timeout=240,
                    check=False,
                )
            self.code = done.returncode
        else:
            asked = {"name": name, "environ": environ, "output": str(output)}
            assert parent.stdin is not None
            assert parent.stdout is not None
            print(json.dumps(asked), file=parent.stdin, flush=True)
            self.code = int(parent.stdout.readline())
        self.output = output.read_text()
        self.told = [float(row) for row in re.findall(r"^told (\S+)$", self.output, re.M)]

    def lines(self, rank: int = 0) -> list[Heartbeat]:
        """The heartbeats of a rank; each is the next one."""
        found = lines_of(self.run, rank)
        assert [row.seq for row in found] == list(range(1, len(found) + 1))
        return found

    def losses(self, rank: int = 0) -> list[float]:
        """The losses that the lines of a rank report."""
        return [row.loss for row in said(self.lines(rank), "progress") if row.loss is not None]
