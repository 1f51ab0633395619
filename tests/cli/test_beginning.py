"""The start of a command: Ctrl-C at any moment prints one line and exits with 130."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gonogo.cli import campaigns, experiments, judging
from gonogo.cli.output import err, out
from gonogo.contract.ids import short_id
from tests.cli.conftest import Gonogo
from tests.service.conftest import Plane

WHILE_LOADING = """
import os, signal, sys

signal.signal(signal.SIGINT, {handler})  # whatever this was started under

class Interrupter:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupter())
sys.argv = ["gonogo", "plans"]
from gonogo.cli.main import main
main()
"""
CANNOT = "stdout or a file cannot be written"
DEFAULT = "signal.default_int_handler"


@pytest.mark.parametrize("module", ["typer", "pydantic", "rich.table", "gonogo.cli.watching"])
def test_an_interrupt_while_the_command_line_is_loaded_is_one_line(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WHILE_LOADING.format(module=module, handler=DEFAULT)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr, done.stdout) == (130, "interrupted\n", "")


def test_an_interrupt_that_is_ignored_from_outside_stays_ignored() -> None:
    ignoring = WHILE_LOADING.format(module="typer", handler="signal.SIG_IGN")
    done = subprocess.run(
        [sys.executable, "-c", ignoring],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "demo" in done.stdout


@pytest.mark.parametrize("words", ["plans --json", "plans", "flags", "--help", "run --help"])
def test_a_stdout_that_no_disk_takes_is_one_line(words: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gonogo.cli.main", *words.split()],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, f"gonogo: {CANNOT}: No space left on device\n")


def test_an_interrupt_within_a_command_is_one_line(
    gonogo: Gonogo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(judging, "judge_directory", interrupted)
    said = gonogo("judge", str(tmp_path))
    assert (said.code, said.err, said.out) == (130, "interrupted\n", "")


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
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

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


@pytest.mark.parametrize("words", [("submit", "demo"), ("campaign", "submit", "campaign-demo")])
def test_addresses_and_commands_are_whole_on_a_narrow_terminal(
    plane: Plane, gonogo: Gonogo, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(out, "_width", 60)
    first, second = gonogo(*words).out.splitlines()
    made_id, _, address = first.partition("  ")
    assert address.startswith(plane.context.url)
    assert second.endswith(made_id)
    whole = address.rpartition("/")[2]
    assert made_id == short_id(whole)
    if words[0] == "submit":
        plane.call("POST", f"/experiments/{whole}/halt", json={"reason": "look"})
        plane.wait_state(whole, "awaiting_decision")
        lines = gonogo("status").out.splitlines()
        assert any(f"gonogo override {made_id} GO --reason WHY  # " in line for line in lines)
