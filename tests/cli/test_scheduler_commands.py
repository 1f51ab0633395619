"""Are the commands of a scheduler on PATH? `gonogo up` and `gonogo doctor` look for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gonogo.cli.exits import Exit
from gonogo.cli.stack import SLURM_COMMANDS, missing_commands
from gonogo.contract.workload import EngineName
from tests.cli.test_running import environment, gonogo


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    """A folder with Slurm's commands, which do nothing."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name in SLURM_COMMANDS:
        (folder / name).symlink_to("/bin/true")
    return folder


def test_what_is_missing_is_named(slurm: Path) -> None:
    assert missing_commands(EngineName.SLURM, str(slurm)) is None
    (slurm / "squeue").unlink()
    said = missing_commands(EngineName.SLURM, str(slurm))
    assert said is not None
    assert said.startswith("engine slurm: squeue not found on PATH")
    assert missing_commands(EngineName.LOCAL, "") is None


def test_up_refuses_an_engine_whose_commands_are_missing(tmp_path: Path) -> None:
    python = Path(sys.executable).parent
    done = subprocess.run(
        gonogo("up", "--engine", "slurm"),
        env={**environment(tmp_path), "PATH": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == Exit.BAD_INPUT
    assert "sbatch, squeue, scontrol, scancel not found on PATH" in done.stderr
