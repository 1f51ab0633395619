"""`k=v` arguments: values of --set are typed, labels are text, a fault SPEC is never parsed."""

import pytest

from gonogo.cli.connection import parse_pairs, parse_sets
from gonogo.contract.errors import Rejected


def test_set_values_are_typed_as_in_a_plan() -> None:
    pairs = ["phases.smoke.steps=20", "train.dtype=bf16", "allow_faults=true", "x={a: 1}", "y=on"]
    assert parse_sets(pairs) == {
        "phases.smoke.steps": 20,
        "train.dtype": "bf16",
        "allow_faults": True,
        "x": {"a": 1},
        "y": "on",
    }


def test_a_fault_spec_stays_text() -> None:
    assert parse_sets(["fault=slow:factor=5,from=20"]) == {"fault": "slow:factor=5,from=20"}


def test_a_value_may_hold_equals_signs() -> None:
    assert parse_pairs(["a=b=c"], "--label") == {"a": "b=c"}


@pytest.mark.parametrize("text", ["steps", "=3"])
def test_a_pair_without_a_name_or_value_is_one_clear_error(text: str) -> None:
    with pytest.raises(Rejected, match="expected KEY=VALUE"):
        parse_pairs([text], "--set")
