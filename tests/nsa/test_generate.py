"""`python -m nsa.generate` on checkpoints that the trainer wrote."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsa.generate import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_dir(train_here: Callable[..., Any], tmp_path: Path) -> Path:
    """A run of four steps with checkpoints at steps 2 and 4."""
    train_here("trained", checkpoint={"every_steps": 2})
    return tmp_path / "trained"


def _told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_a_runs_folder_means_its_newest_checkpoint(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = _told(capsys, str(run_dir), "--prompt", "abc", "--bytes", "5", "--seed", "3")
    assert told["step"] == 4
    assert told["prompt"] == "abc"
    assert 0 <= told["bytes"] <= 5
    again = _told(capsys, str(run_dir), "--prompt", "abc", "--bytes", "5", "--seed", "3")
    assert again["text"] == told["text"]
    older = _told(capsys, str(run_dir / "checkpoints" / "step_000002"), "--bytes", "5")
    assert older["step"] == 2


def test_bytes_are_written_to_standard_output(
    run_dir: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "prompt").write_bytes(b"\xff\xfeabc")
    asked = [str(run_dir), "--temperature", "0", "--prompt-file", str(tmp_path / "prompt")]
    capfdbinary.readouterr()
    assert main([*asked, "--bytes", "7"]) == 0
    out = capfdbinary.readouterr().out
    assert 1 <= len(out) <= 8
    assert out.endswith(b"\n")


def test_who_reads_no_further_ends_it_without_a_word(run_dir: Path) -> None:
    command = [sys.executable, "-m", "nsa.generate", str(run_dir), "--bytes", "60"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        writer.stdout.close()
        assert writer.stderr.read() == b""
    assert writer.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--bytes", "0"], "--bytes must be 1 to 63"),
        (["--bytes", "64"], "--bytes must be 1 to 63"),
        (["--prompt", "x" * 70], "--bytes must be"),
        (["--prompt", "a", "--prompt-file", "b"], "not both"),
        (["--prompt-file", "/nowhere/at/all"], "cannot read the prompt"),
        (["--bytes", "9", "--top-p", "2"], "top_p"),
        (["--bytes", "many"], "--bytes"),
        (["--seed", "-1"], "--seed: expected a whole number"),
        (["--seed", "9" * 30], "--seed: expected a whole number"),
        (["--colour", "red"], "--colour"),
    ],
    ids=lambda value: " ".join(value)[:20] if isinstance(value, list) else "",
)
def test_what_cannot_be_served_is_one_line_and_code_4(
    run_dir: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], why: str
) -> None:
    assert main([str(run_dir), *arguments]) == 4
    told = capsys.readouterr()
    assert told.out == ""
    assert why in told.err
    assert told.err.count("\n") == 1


def test_a_torn_checkpoint_and_an_empty_folder_are_refused(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = run_dir / "checkpoints" / "step_000004" / "model.pt"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert main([str(run_dir), "--bytes", "3"]) == 4
    assert "model.pt is not what its manifest says" in capsys.readouterr().err
    assert main([str(tmp_path), "--bytes", "3"]) == 4
    assert "cannot read checkpoint" in capsys.readouterr().err
