"""What `gonogo.judge` promises to others is there, and costs nothing until it is asked for."""

import subprocess
import sys

import pytest

import gonogo.judge


@pytest.mark.parametrize("name", gonogo.judge.__all__)
def test_what_is_promised_is_there(name: str) -> None:
    assert getattr(gonogo.judge, name) is not None


def test_what_is_not_promised_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = gonogo.judge.no_such_name


def test_a_watcher_imports_no_gate_and_no_ledger() -> None:
    code = (
        "import gonogo.watch, sys;"
        "print([m for m in sys.modules if m.startswith('gonogo.judge.gate.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
