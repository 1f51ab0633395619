"""Are the commands of a scheduler on PATH? `gonogo up` and `gonogo doctor` look for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gonogo.cli.exits import Exit
from gonogo.cli.stack import SLURM_COMMANDS, missing_commands
from gonogo.contract.cluster import EngineName
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


@pytest.mark.parametrize("there", [True, False])
def test_the_doctor_looks_for_the_commands_of_the_engine(
    slurm: Path, tmp_path: Path, *, there: bool
) -> None:
    path = f"{slurm if there else tmp_path}:{Path(sys.executable).parent}"
    done = subprocess.run(
        gonogo("doctor", "--json"),
        env={**environment(tmp_path), "PATH": path, "GONOGO_ENGINE": "slurm"},
        capture_output=True,
        text=True,
        check=False,
    )
    rows = {row["id"]: row["outcome"] for row in json.loads(done.stdout)["checks"]}
    assert rows["slurm"] == ("pass" if there else "fail")
