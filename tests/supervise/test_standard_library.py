"""Do keeper and rank wrapper start where nothing but Python is installed?"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
tops = {name.partition(".")[0] for name in sys.modules}
ours = [name for name in sys.modules if name.startswith("gonogo")]
print(json.dumps([sorted(tops - sys.stdlib_module_names - {"__main__"}), ours]))
"""


def alone() -> list[str]:
    """The modules that the import law holds to the standard library, packages opened."""
    law = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (row for row in law["contracts"] if row["id"] == "keeper-alone")
    found: list[str] = []
    for name in contract["source_modules"]:
        path = ROOT / Path(*name.split("."))
        inside = [path.with_suffix("")] if not path.is_dir() else sorted(path.glob("*.py"))
        names = (".".join(p.relative_to(ROOT).with_suffix("").parts) for p in inside)
        found += [name.removesuffix(".__init__") for name in names]
    return found


@pytest.fixture(scope="module")
def imported() -> tuple[list[str], list[str]]:
    """What a bare interpreter has loaded besides the standard library, and of gonogo."""
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, str(ROOT), *alone()]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    foreign, ours = json.loads(done.stdout)
    return foreign, ours


def test_nothing_but_the_standard_library_is_loaded(imported: tuple[list[str], list[str]]) -> None:
    assert imported[0] == ["gonogo"]


def test_what_is_loaded_of_gonogo_is_what_the_law_names(
    imported: tuple[list[str], list[str]],
) -> None:
    named = {"gonogo", "gonogo.supervise", *alone()}
    assert {"gonogo.supervise.keeper.keeper", "gonogo.supervise.launch.rank"} <= named
    lines = {name for name in imported[1] if name.partition(".trainer")[0] == "gonogo"}
    assert not lines & {f"gonogo.trainer.{name}" for name in ("hf", "lightning", "accelerate")}
    assert set(imported[1]) == named | lines, "the trainer's library has a law of its own"
