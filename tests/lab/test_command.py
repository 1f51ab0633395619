"""The command line of the simulator, in this process and as `gonogo simulate` starts it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gonogo.cli.app import run
from lab.command import app

ROOT = Path(__file__).parents[2]
LITTLE = ("--hours", "0.1", "--step-s", "60", "--ranks", "1", "--healthy-only")


@dataclass(frozen=True, slots=True)
class Simulated:
    """Exit code and output of one call."""

    code: int
    out: str
    err: str


@pytest.fixture
def simulate(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str) -> Simulated:
        capsys.readouterr()
        code = run(arguments, commands=app, name="gonogo simulate")
        return Simulated(code, *capsys.readouterr())

    return call


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--hours", "inf"), 2, ""),
        (("--hours", "1e9"), 2, ""),
        (("--step-s", "1,x"), 2, "--step-s: expected numbers"),
    ],
)
def test_what_cannot_be_simulated_is_one_line(
    simulate: Any, arguments: tuple[str, ...], code: int, text: str
) -> None:
    found = simulate(*LITTLE, *arguments)
    assert found.code == code
    assert text in found.err.splitlines()[-1]


@pytest.mark.long
def test_gonogo_simulate_starts_the_simulator(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gonogo.cli.main", "simulate", *LITTLE, "--jobs", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "false_halts" in done.stdout
