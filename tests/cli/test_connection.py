"""`k=v` arguments: values of --set are typed, labels are text, a fault SPEC is never parsed."""

import pytest

from gonogo.cli.plan_arguments import parse_grid, parse_pairs, parse_sets
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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", "0"),
        ("50", "50"),
        ("1e-4", "1e-4"),
        ("050", "050"),
        ("true", "true"),
        ("bf16", "bf16"),
        ("'0'", "0"),
        ('"a b"', "a b"),
        ("null", None),
        ("", None),
        ("a: b: c", "a: b: c"),
        ("[1", "[1"),
        ("1.0", "1.0"),
    ],
)
def test_what_a_variable_is_set_to_is_a_text(text: str, value: str | None) -> None:
    path = "phases.smoke.env.NSA_TB_DISABLE"
    assert parse_sets([f"{path}={text}"]) == {path: value}
    assert parse_sets([f"workload.env.A={text}"]) == {"workload.env.A": value}


@pytest.mark.parametrize(
    ("text", "value"), [("1e-4", 1e-4), ("010", 10), ("on", "on"), ("1:30", "1:30"), ("", None)]
)
def test_other_values_are_what_yaml_1_2_says(text: str, value: object) -> None:
    assert parse_sets([f"train.optim.lr={text}"]) == {"train.optim.lr": value}


def test_a_value_that_is_no_yaml_names_the_option() -> None:
    with pytest.raises(Rejected, match=r"--set train\.x: not YAML") as refused:
        parse_sets(["train.x=[1"])
    (problem,) = refused.value.problems
    assert (problem.path, problem.source) == ("train.x", "--set")


def test_a_value_may_hold_equals_signs() -> None:
    assert parse_pairs(["a=b=c"], "--label") == {"a": "b=c"}


@pytest.mark.parametrize("text", ["steps", "=3"])
def test_a_pair_without_a_name_or_value_is_one_clear_error(text: str) -> None:
    with pytest.raises(Rejected, match="expected KEY=VALUE"):
        parse_pairs([text], "--set")


def test_the_values_of_a_grid_are_a_list_and_those_of_a_variable_texts() -> None:
    assert parse_grid(["train.lr=1e-3, 2", "env.A=1,2"]) == {
        "campaign.grid.train.lr": [1e-3, 2],
        "campaign.grid.env.A": ["1", "2"],
    }
    with pytest.raises(Rejected, match=r"--grid train.lr: not YAML"):
        parse_grid(["train.lr=["])
