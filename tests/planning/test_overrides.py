"""`--set` changes what its path names; paths go by name, and lead to lines of the file."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.errors import Rejected
from gonogo.contract.yaml_text import parse_document
from gonogo.planning.source import line_of, locate, named_path, with_overrides

TEXT = """\
v: 1
workload:
  env: {A: "1"}
watch: null
phases:
- name: smoke
  env: {A: "0"}
  gate:
  - {id: loss.finite, metric: loss}
  - {id: speed,
     metric: toks_per_s}
- steps: 3
"""
DOCUMENT = parse_document(TEXT)
DATA = DOCUMENT.data


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("v", ("v",)),
        ("phases.smoke.env.A", ("phases", 0, "env", "A")),
        ("phases.smoke.gate.speed.metric", ("phases", 0, "gate", 1, "metric")),
        ("phases.smoke.gate.loss.finite.metric", ("phases", 0, "gate", 0, "metric")),
        ("phases.1.steps", ("phases", 1, "steps")),
    ],
)
def test_a_path_names_a_location_and_back(path: str, location: tuple[str | int, ...]) -> None:
    assert locate(DATA, path) == (location, ())
    assert named_path(location, DATA) == path


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("v", 1), ("workload.env.A", 3), ("workload.env.B", 3), ("phases.smoke", 6),
        ("phases.smoke.env", 7), ("phases.smoke.stepz", 6),
        ("phases.smoke.gate.loss.finite.metric", 9), ("phases.smoke.gate.speed.metric", 11),
        ("phases.lunch.steps", 5), ("profile", None), ("", None),
    ],
)  # fmt: skip
def test_a_path_has_the_line_of_the_nearest_thing_that_is_there(
    path: str, line: int | None
) -> None:
    assert line_of(DOCUMENT, path) == line


def test_overrides_make_what_is_not_there_and_share_nothing() -> None:
    value = {"x": [1]}
    found = with_overrides(
        DATA, {"watch.stall.halt_s": 3, "phases.1.steps": 4, "new.deep": value, "v": 2}
    )
    assert found["watch"] == {"stall": {"halt_s": 3}}
    assert (found["phases"][1]["steps"], found["v"]) == (4, 2)
    value["x"].append(2)
    assert found["new"] == {"deep": {"x": [1]}}
    assert parse_document(TEXT).data == DATA


def test_a_variable_set_to_null_is_taken_away() -> None:
    found = with_overrides(DATA, {"workload.env.A": None, "phases.smoke.env.A": None})
    assert found["workload"]["env"] == {}
    assert found["phases"][0]["env"] == {"A": None}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("phases.smok.steps", "found 'smok'; did you mean smoke"),
        ("phases.smoke.gate.sped.metric", "found 'sped'"), ("phases.7.steps", "found '7'"),
        ("phases.smoke", "expected a path to a key"), ("v.x", "expected a path to a key"),
        ("v.x.y", "lies inside a value that has no parts"),
    ],
)  # fmt: skip
def test_a_path_that_leads_nowhere_is_refused_and_named(path: str, said: str) -> None:
    with pytest.raises(Rejected, match=said) as refused:
        with_overrides(DATA, {path: 1, "w.x": 1})
    assert [row.path for row in refused.value.problems] == [path]


@pytest.mark.parametrize("value", [None, 0, "", [], {}, {"a": None}])
def test_any_value_can_be_set(value: Any) -> None:
    assert with_overrides(DATA, {"train.x": value})["train"]["x"] == value
