"""When the observer begins: which processes it enters, and whose `sitecustomize` still runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gonogo.observer.hooks import HOOKS
from gonogo.observer.site.sitecustomize import MODULES
from tests.trainer.runs import ROOT, environment, lines_of, write_order

SITE = ROOT / "gonogo" / "observer" / "site"
TRAINS = (
    "import torch; w = torch.nn.Parameter(torch.ones(2));"
    "o = torch.optim.SGD([w], lr=0.1); w.sum().backward(); o.step()"
)


def python(run: Path | None, code: str, *path: Path, **names: str) -> str:
    """Run a line of Python under the observer; return what it prints."""
    environ = environment(run, **names)
    environ["PYTHONPATH"] = os.pathsep.join(map(str, (SITE, *path)))
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_every_hook_is_waited_for() -> None:
    assert set(MODULES) == set(HOOKS)


def test_a_line_of_torch_is_observed_without_gonogo_on_its_path(tmp_path: Path) -> None:
    run = write_order(tmp_path)
    python(run, TRAINS)
    assert [row.msg for row in lines_of(run)][-1] == "done"


@pytest.mark.parametrize(
    ("code", "names"),
    [("import torch; torch.ones(2).sum()", {}), (TRAINS, {"GONOGO_OBSERVED_PID": "1"})],
    ids=["nothing is trained", "a child of the rank"],
)
def test_nothing_is_written(tmp_path: Path, code: str, names: dict[str, str]) -> None:
    run = write_order(tmp_path)
    python(run, code, **names)
    assert lines_of(run) == []
    assert {row.name for row in run.iterdir()} == {"order.json", ".GO"}


def test_the_sitecustomize_of_the_user_still_runs(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("print('theirs')\n")
    code = "import sitecustomize; print(sitecustomize.__file__)"
    said = python(write_order(tmp_path / "run"), code, theirs)
    assert said.split() == ["theirs", str(theirs / "sitecustomize.py")]


@pytest.mark.parametrize(("observe", "ordered"), [("", True), ("0", True), ("", False)])
def test_it_is_armed_in_a_run_unless_it_is_switched_off(
    tmp_path: Path, observe: str, ordered: bool
) -> None:
    code = "import sys; print([row for row in sys.meta_path if 'Finder' in repr(row)])"
    run = write_order(tmp_path) if ordered else None
    said = python(run, code, GONOGO_OBSERVE=observe)
    assert ("sitecustomize" in said) == (ordered and not observe)
