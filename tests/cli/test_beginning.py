"""Where the command begins: whenever Ctrl-C comes, it is one line and 130."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gonogo.cli import judging
from tests.cli.conftest import Gonogo

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


def test_an_interrupt_within_a_command_is_one_line(
    gonogo: Gonogo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(judging, "judge_directory", interrupted)
    said = gonogo("judge", str(tmp_path))
    assert (said.code, said.err, said.out) == (130, "interrupted\n", "")
