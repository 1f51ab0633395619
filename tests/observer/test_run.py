"""`gonogo run` of unchanged programs: GO, a hang with its rank, an observer that fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_running import environment, gonogo
from tests.trainer.runs import LAUNCH

PROGRAMS = Path(__file__).with_name("programs.py")


def judged(folder: Path, *arguments: str) -> dict[str, Any]:
    """The decision of `gonogo run --json`."""
    environ = {**environment(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        gonogo("run", "--json", *arguments),
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def program(name: str) -> list[str]:
    return [sys.executable, str(PROGRAMS), name]


@pytest.mark.long
def test_an_unchanged_program_is_go(tmp_path: Path) -> None:
    found = judged(tmp_path, "--steps", "6", "--", *program("plain"))
    assert found["verdict"] == "GO", found["criteria"]


def test_both_ranks_of_an_unchanged_torchrun_are_go(tmp_path: Path) -> None:
    command = [*LAUNCH, "--nproc-per-node", "2", str(PROGRAMS), "ddp"]
    found = judged(tmp_path, "--steps", "6", "--", *command)
    assert (found["verdict"], len(found["facts"]["ranks"])) == ("GO", 2), found["criteria"]


@pytest.mark.long
def test_the_verdict_says_that_the_observer_failed(tmp_path: Path) -> None:
    found = judged(tmp_path, "--steps", "6", "--", *program("hook_fails"))
    assert found["verdict"] == "INCONCLUSIVE"
    assert found["facts"]["outcome"]["code"] == "completed", "the program itself has not failed"
    assert any("the observer failed in step 3" in text for text in found["not_observed"])


@pytest.mark.long
def test_a_rank_that_sleeps_is_halted_within_a_minute_and_named(tmp_path: Path) -> None:
    command = [*LAUNCH, "--nproc-per-node", "2", str(PROGRAMS), "sleeps"]
    found = judged(tmp_path, "--steps", "200", "--", *command)
    assert found["verdict"] == "NO_GO"
    (halt,) = (row for row in found["findings"] if row["severity"] == "halt")
    assert halt["rank"] == 1
    assert halt["value"] < 60.0
    assert "time.sleep, called from sleeps (programs.py:" in halt["text"]
