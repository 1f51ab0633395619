"""`make bench` knows what it runs, and says when something of it failed."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.__main__ import LONG, SUITES, main

README = (Path(__file__).parents[2] / "bench/README.md").read_text()


@pytest.mark.parametrize("command", SUITES.values())
def test_every_suite_is_a_module_that_the_readme_explains(command: str) -> None:
    module = command.split()[0]
    assert find_spec(module)
    assert f"-m {module}" in README


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [("fine", "this", 0), ("broken", "no_such_module_of_ours", 1), ("gpu", "no_such_module", 1)],
)
def test_the_exit_code_tells_whether_all_ran(
    name: str,
    arguments: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for other in {*SUITES} - {*LONG}:
        monkeypatch.delitem(SUITES, other)
    monkeypatch.setitem(SUITES, name, arguments)
    assert main([]) == code
    assert (f"failed: {name}" in capfd.readouterr().err) == bool(code)
