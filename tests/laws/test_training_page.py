"""Do the commands of docs/how-to/train-nsa.md train, resume, generate and shard?"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.lab import clean_environ
from tests.laws.test_docs import ROOT, blocks

PAGE = (ROOT / "docs/how-to/train-nsa.md").read_text().split("\n## The trainer\n")[1]
LITTLE = {"200": "4", "400": "6", "50": "2"}
"""Steps that the page asks for → steps that show the same."""


def shown() -> list[str]:
    """The lines of the trainer's block."""
    return re.findall(r"```sh\n(.*?)```", PAGE, re.S)[0].splitlines()


def little(line: str) -> list[str]:
    """The words of a line with this Python, and few steps of everything."""
    python, *words = shlex.split(line)
    assert python == ".venv/bin/python"
    words = [LITTLE.get(word, word) for word in words]
    return [
        sys.executable,
        *words,
        *([] if "--steps" in words or "--bytes" in words else ["--steps", "3"]),
    ]


def test_a_block_of_python_runs_as_it_stands() -> None:
    text = (ROOT / "docs/how-to/train-nsa.md").read_text()
    code = [block for language, block in blocks(text) if language == "python"][-1]
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["out"].shape == (1, 2048, 12, 64)
    assert names["blocks"].shape == (1, 2048, 2, 16)


@pytest.mark.long
def test_every_line_of_the_block_does_its_part(tmp_path: Path) -> None:
    first, second, generate, sharded = shown()
    for line in (first, second, generate, sharded):
        done = subprocess.run(
            little(line),
            cwd=tmp_path,
            env={**clean_environ(tmp_path), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            errors="replace",  # what so young a model says is no text
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        if line == generate:
            assert done.stdout.strip()
    runs = tmp_path / "runs"
    saved = {path.name for path in (runs / "first/checkpoints").iterdir()}
    assert {"step_000002", "step_000004"} <= saved
    steps = [line.split(",")[0] for line in (runs / "second/training.csv").read_text().splitlines()]
    assert steps[1:] == ["5", "6"], "it resumed after the first one's last step"
    assert (runs / "ddp/heartbeat_rank1.jsonl").exists()
