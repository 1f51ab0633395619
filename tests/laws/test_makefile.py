"""Do the documented commands exist, and does CI run what the README says?"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROMISED = ["install", "demo", "test", "lint", "up", "help"]


def targets() -> set[str]:
    """Targets of the Makefile that `make help` explains."""
    shown = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True)
    return set(re.findall(r"^\s+make (\S+)", shown.stdout, re.M))


@pytest.mark.parametrize("page", ["README.md", *sorted(map(str, Path(ROOT, "docs").rglob("*.md")))])
def test_every_make_command_in_the_docs_exists(page: str) -> None:
    named = set(
        re.findall(
            r"`?\bmake ([a-z0-9]+)\b(?=`|\s+#|\s*$| [A-Z]+=)", (ROOT / page).read_text(), re.M
        )
    )
    assert named <= targets() | {"sure"}


def test_ci_runs_the_test_command_of_the_readme_last() -> None:
    lines = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.strip()]
    assert lines[-1] == "make test"


def test_the_constraints_work_with_any_index() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert len(pins) > 50
    for pin in pins:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9!A-Za-z.]+", pin), pin
        assert not re.match(r"(torch|triton)=|nvidia-(?!ml-py)", pin), pin
