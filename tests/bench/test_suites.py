"""`make bench` knows what it runs, and says when something of it failed."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import bench.__main__ as suites
from bench.__main__ import SUITES, Suite, chosen_suites, main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_every_suite_is_a_module_that_the_readme_explains(suite: Suite) -> None:
    module = suite.arguments.split()[0]
    assert find_spec(module)
    assert f"-m {module}" in (ROOT / "bench/README.md").read_text()


def test_what_trains_for_hours_must_be_asked_for() -> None:
    assert {suite.name for suite in chosen_suites(None, with_long=True)} - {
        suite.name for suite in chosen_suites(None, with_long=False)
    } == {"needle", "quality"}
    assert [suite.name for suite in chosen_suites("quality,gpu", with_long=False)] == [
        "quality",
        "gpu",
    ]
    with pytest.raises(ValueError, match="no benchmark 'nope'; there are attention"):
        chosen_suites("attention,nope", with_long=False)


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
    monkeypatch.setattr(suites, "SUITES", (Suite(name=name, arguments=arguments, minutes=1),))
    assert main([]) == code
    told = capfd.readouterr()
    assert f"[1/1] {name}: about 1 min left" in told.out
    assert (f"failed: {name}" in told.err) == bool(code)
    assert sys.executable not in told.out
