"""A shell completes commands, ids, names and plans; without a service it completes what it can."""

from __future__ import annotations

import pytest

from gonogo.cli.completing import (
    complete_decisions,
    complete_experiments,
    complete_plans,
    complete_runs,
)
from tests.cli.conftest import Gonogo
from tests.service.conftest import Plane


def typed(gonogo: Gonogo, line: str) -> list[str]:
    """What bash would offer for a command line whose last word is not finished."""
    count = line.count(" ")
    said = gonogo(_GONOGO_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(count))
    return said.out.split()


def test_the_shell_gets_a_script(gonogo: Gonogo) -> None:
    said = gonogo(_GONOGO_COMPLETE="source_bash")
    assert "complete_bash" in said.out
    assert "-F _gonogo_completion gonogo" in said.out


def test_commands_options_and_plans_are_completed(gonogo: Gonogo) -> None:
    assert typed(gonogo, "gonogo sta") == ["status"]
    assert "--label" in typed(gonogo, "gonogo submit --la")
    assert typed(gonogo, "gonogo submit de") == ["demo"]


def test_ids_and_names_are_completed(plane: Plane, gonogo: Gonogo) -> None:
    first = plane.submit(name="nightly")
    run = plane.experiment(first)["phases"][0]["runs"][0]
    assert typed(gonogo, "gonogo show exp_") == [first]
    assert typed(gonogo, "gonogo show nigh") == ["nightly"]
    assert typed(gonogo, "gonogo watch la") == ["last"]
    assert typed(gonogo, "gonogo halt zzz") == []
    assert typed(gonogo, "gonogo logs run_") == [run]


@pytest.mark.parametrize("complete", [complete_experiments, complete_runs, complete_decisions])
def test_without_a_service_nothing_is_said(
    complete: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GONOGO_URL", "http://127.0.0.1:9")
    assert callable(complete)
    assert complete("exp_") == []
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")


def test_plans_are_the_bundled_ones() -> None:
    assert "demo" in complete_plans("")
    assert complete_plans("nope") == []
