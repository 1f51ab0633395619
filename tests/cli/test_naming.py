"""Experiments, runs and decisions are named by id or the beginning of one; experiments by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gonogo.contract.ids import Kind, new_id
from service.rest.find import _beginning
from tests.cli.conftest import Gonogo
from tests.service.conftest import Plane

ROOT = Path(__file__).parents[2]


def submit_two(plane: Plane, *names: str) -> list[str]:
    return [plane.submit(name=name) for name in names]


def shared(*ids: str) -> str:
    """The longest common beginning, at least three characters beyond the kind."""
    count = next((n for n, group in enumerate(zip(*ids, strict=False)) if len(set(group)) > 1), 0)
    assert count > len("exp_01K")
    return ids[0][:count]


@pytest.mark.parametrize(
    "named", ["id", "whole name", "beginning", "without kind", "small", "last"]
)
def test_an_experiment_has_many_names(named: str, plane: Plane, gonogo: Gonogo) -> None:
    first, second = submit_two(plane, "first", "second run")
    unique = second[: len(shared(first, second)) + 1]
    text = {
        "id": second,
        "whole name": "second run",
        "beginning": unique,
        "without kind": unique.removeprefix("exp_"),
        "small": unique.lower(),
        "last": "last",
    }[named]
    assert gonogo("show", text, "--json").json()["id"] == second


def test_the_commands_of_prometheus_alerts_work(plane: Plane, gonogo: Gonogo) -> None:
    """They know nothing of a run but its id."""
    experiment = plane.submit()
    run = plane.next_order(plane.worker()).run
    rules = (ROOT / "docker" / "prometheus" / "rules.yml").read_text()
    commands = set(re.findall(r"`gonogo (\w+) \{\{ \$labels\.run \}\}", rules))
    assert commands == {"show", "takeover"}
    assert gonogo("show", run, "--json").json()["id"] == experiment
    taken = gonogo("takeover", run, "--reason", "its host is gone", "--json")
    assert (taken.code, taken.json()["id"]) == (0, experiment)
    unknown = gonogo("show", new_id(Kind.RUN))
    assert unknown.code == 3
    assert "there is no run" in unknown.err


def test_an_ambiguous_text_lists_the_candidates(plane: Plane, gonogo: Gonogo) -> None:
    first, second = submit_two(plane, "twin", "twin")
    for text in ("twin", shared(first, second)):
        said = gonogo("show", text)
        assert said.code == 2
        assert said.out == ""
        head, *rows = said.err.splitlines()
        assert "may mean 2 things" in head
        assert [row.split()[0] for row in rows] == [second, first]
        assert all("twin, queued" in row for row in rows)


def test_nothing_of_that_name_is_not_found(plane: Plane, gonogo: Gonogo) -> None:
    plane.submit(name="first")
    for text in ("fist", "exp_ZZZ", "fir", "%", "_", "fir%", ""):
        said = gonogo("show", text)
        assert said.code == 3, text
        assert "there is no experiment" in said.err


def test_an_experiment_that_is_called_like_another_s_id_needs_its_id(
    plane: Plane, gonogo: Gonogo
) -> None:
    first = plane.submit(name="first")
    second = plane.submit(name=first[:-1])
    assert gonogo("show", first, "--json").json()["id"] == first
    said = gonogo("show", first[:-1])
    assert said.code == 2
    assert {row.split()[0] for row in said.err.splitlines()[1:]} == {first, second}


def test_verbs_take_a_name(plane: Plane, gonogo: Gonogo) -> None:
    first = plane.submit(name="first")
    assert gonogo("cancel", "first", "--reason", "no").code == 0
    assert plane.wait_state(first, "finished")["outcome"]["code"] == "cancelled"


def test_a_run_is_named_by_its_beginning_or_its_experiment(plane: Plane, gonogo: Gonogo) -> None:
    experiment = plane.submit(name="first")
    order = plane.next_order(plane.worker())
    for text in (order.run, order.run[:-2], "first", experiment, "last"):
        assert gonogo("logs", text, "--json").json()["run"] == order.run
    assert gonogo("logs", "run_ZZ").code == 3


def test_what_a_text_may_begin() -> None:
    name = new_id(Kind.RUN)
    assert _beginning(Kind.RUN, name.lower()) == name
    assert _beginning(Kind.RUN, name[4:12]) == name[:12]
    assert _beginning(Kind.RUN, "ru") == "run_"
    assert _beginning(Kind.RUN, "exp_01") == "run_EXP_01"
