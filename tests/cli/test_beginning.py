"""The start of a command: Ctrl-C prints one line and exits with 130."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gonogo.cli import campaigns, experiments, judging
from gonogo.cli.output import err, out
from gonogo.contract.wire import short_id
from tests.cli.conftest import Gonogo
from tests.service.conftest import Plane

WHILE_LOADING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever this was started under

class Interrupter:
    def find_spec(self, name, *_):
        if name == "rich.table":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupter())
sys.argv = ["gonogo", "plans"]
from gonogo.cli.main import main
main()
"""


def test_an_interrupt_during_the_imports_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WHILE_LOADING], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr, done.stdout) == (130, "interrupted\n", "")


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_within_a_command_exits_with_130(
    gonogo: Gonogo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(judging, "judge_directory", interrupted)
    said = gonogo("judge", str(tmp_path))
    assert (said.code, said.out) == (130, "")


@pytest.mark.parametrize(
    ("words", "module", "follows", "again"),
    [
        (("submit", "demo"), experiments, "watch_experiment", "watch exp_"),
        (("campaign", "submit", "campaign-demo"), campaigns, "_follow", "campaign show cmp_"),
    ],
)
def test_who_no_longer_waits_for_what_was_submitted_knows_what_to_type(
    plane: Plane,
    gonogo: Gonogo,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    module: ModuleType,
    follows: str,
    again: str,
) -> None:
    monkeypatch.setattr(module, follows, interrupted)
    monkeypatch.setattr(err, "_width", 60)
    said = gonogo(*words, "--wait")
    made, _, last = said.err.splitlines()[-3:]
    made_id, _, address = made.partition("  ")
    assert address.startswith(plane.context.url)
    assert made_id == short_id(address.rpartition("/")[2])
    assert last.startswith(f"{made_id} continues; ")
    assert last.endswith(f"gonogo {again[:-4]}{made_id}")
    assert (said.code, said.out) == (130, "")
    monkeypatch.setattr(out, "_width", 60)
    first, second = gonogo(*words).out.splitlines()
    made_id, _, address = first.partition("  ")
    assert made_id == short_id(address.rpartition("/")[2])
    assert second.endswith(made_id)
