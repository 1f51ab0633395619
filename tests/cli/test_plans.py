"""A problem of a plan's file is reported by file, line, path, value and near miss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gonogo.cli.app import refusal_text, run
from gonogo.cli.plans import parse_grid, parse_pairs, parse_sets, placed, read_plan
from gonogo.contract.errors import NotFound, Problem, Rejected

BROKEN = """\
v: 1
name: x
profile: cpu
workload: {entry: nsa.train, world_size: 2, parallel: ddp}
train:
  config: demo
  optim:
    lr: fast
    beta: 1
phases:
- name: smoke
  steps: 10
  data: wikipedia
  env: {NSA_TB_DISABL: 1}
  gate: []
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    path.write_text(BROKEN)
    return path


def test_every_problem_is_one_line(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["plans", str(file)]) == 2
    told = capfd.readouterr().err.splitlines()
    assert told == [
        "gonogo: 4 problems",
        f"  {file}:8: train.optim.lr: found 'fast'; expected a number",
        f"  {file}:9: train.optim.beta: unknown key 'beta'; did you mean beta1 or beta2?",
        f"  {file}:13: phases.smoke.data: found 'wikipedia'; expected synthetic, local_text,"
        " fineweb_edu or parquet:PATH",
        f"  {file}:14: phases.smoke.env.NSA_TB_DISABL: unknown key 'NSA_TB_DISABL'; did you mean"
        " NSA_TB_DISABLE?",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("v: 1\nname: x\n  y: 2\n", ":3: not YAML"),
        ("v: 1\nname: x\nname: y\n", ":3: second 'name'; the first is in line 2"),
        ("v: 1\nprofil: cpu\n", ":2: profil: unknown key 'profil'; did you mean profile?"),
        ("- 1\n", ":1: found a list; expected a plan"),
        ("", ":1: found nothing; expected a plan"),
    ],
)
def test_a_file_that_is_no_plan_is_told_by_its_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    file = tmp_path / "plan.yaml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert run(["plans", str(file)]) == 2
    assert f"{file}{told}" in capfd.readouterr().err


def test_a_plan_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="neither a plan file nor one of demo"):
        read_plan(str(tmp_path / "none.yaml"))
    with pytest.raises(NotFound, match="did you mean demo"):
        read_plan("demoo")


def test_a_plan_is_sent_by_its_name_or_as_its_data(file: Path) -> None:
    assert read_plan("demo").document is None
    assert read_plan("demo").data()["name"] == "demo"
    sent = read_plan(str(file)).data()
    assert isinstance(sent, dict)
    assert sent["train"]["optim"] == {"lr": "fast", "beta": 1}


PLACES = [
    ("train.optim.lr", [], ("{file}", 8)),
    ("train.optim.lr", ["train.optim.lr"], ("--set", None)),
    ("train.optim.lr", ["train.optim"], ("--set", None)),
    ("phases.smoke.stepz", [], ("{file}", 11)),
    ("", [], ("{file}", None)),
]


@pytest.mark.parametrize(("path", "sets", "place"), PLACES)
def test_a_problem_is_of_the_file_or_of_what_was_set(
    file: Path, path: str, sets: list[str], place: tuple[str, int | None]
) -> None:
    plan = read_plan(str(file))
    with pytest.raises(Rejected) as refused, placed(plan, sets):
        raise Rejected("no", problems=(Problem(path=path, message="wrong"),))
    (row,) = refused.value.problems
    assert (row.source, row.line) == (place[0].format(file=file), place[1])


@pytest.mark.parametrize(
    ("problems", "text"),
    [
        ((Problem(path="a", message="b"),), "detail"),
        ((Problem(path="a", message="b", source="f", line=3),), "f:3: a: b"),
        ((Problem(path="", message="b", source="f"),), "f: b"),
        (
            (Problem(path="a", message="b\n c"), Problem(path="d", message="e", line=2)),
            "2 problems\n  a: b c\n  line 2: d: e",
        ),
    ],
)
def test_an_error_is_one_line_and_each_of_several_problems_is_one(
    problems: tuple[Problem, ...], text: str
) -> None:
    assert refusal_text(Rejected("detail", problems=problems)) == text


@pytest.mark.parametrize(
    ("typed", "sets"),
    [
        ("phases.smoke.steps=20", {"phases.smoke.steps": 20}),
        ("train.optim.lr=1e-4", {"train.optim.lr": 1e-4}),
        ("x={a: 1}", {"x": {"a": 1}}),
        ("y=on", {"y": "on"}),
        ("z=", {"z": None}),
        ("fault=slow:factor=5,from=20", {"fault": "slow:factor=5,from=20"}),
        ("workload.env.A=0", {"workload.env.A": "0"}),
        ("workload.env.A=1e-4", {"workload.env.A": "1e-4"}),
        ("workload.env.A='0'", {"workload.env.A": "0"}),
        ("workload.env.A=null", {"workload.env.A": None}),
        ("workload.env.A=[1", {"workload.env.A": "[1"}),
    ],
)
def test_values_are_typed_and_variables_are_texts(typed: str, sets: dict[str, Any]) -> None:
    assert parse_sets([typed]) == sets


def test_what_is_no_pair_or_no_yaml_names_the_option() -> None:
    with pytest.raises(Rejected, match=r"--set train\.x: not YAML") as refused:
        parse_sets(["train.x=[1"])
    (problem,) = refused.value.problems
    assert (problem.path, problem.source) == ("train.x", "--set")
    assert parse_pairs(["a=b=c"], "--label") == {"a": "b=c"}
    for text in ("steps", "=3"):
        with pytest.raises(Rejected, match="expected KEY=VALUE"):
            parse_pairs([text], "--set")


def test_the_values_of_a_grid_are_a_list_and_those_of_a_variable_texts() -> None:
    assert parse_grid(["train.lr=1e-3, 2", "env.A=1,2"]) == {
        "campaign.grid.train.lr": [1e-3, 2],
        "campaign.grid.env.A": ["1", "2"],
    }
    with pytest.raises(Rejected, match=r"--grid train.lr: not YAML"):
        parse_grid(["train.lr=["])


def test_submitting_tells_the_line_of_what_the_service_refuses(
    gonogo: Any, plane: Any, file: Path
) -> None:
    file.write_text(BROKEN.replace("wikipedia", "synthetic").replace("NSA_TB_DISABL:", "A:"))
    said = gonogo("submit", str(file), "--set", "train.dtype=fp13")
    assert said.code == 2
    assert f"{file}:8: train.optim.lr: found 'fast'" in said.err
    assert "--set: train.dtype: found 'fp13'; expected one of bf16, fp16, fp32" in said.err
    assert plane.get("/experiments")["items"] == []


def test_a_numeric_toggle_and_an_exponent_mean_what_they_look_like(gonogo: Any, plane: Any) -> None:
    said = gonogo(
        *("submit", "demo", "--dry-run", "--json"),
        *("--set", "phases.smoke.env.NSA_TB_DISABLE=0", "--set", "train.optim.lr=1e-4"),
        *("--set", "phases.smoke.env.NSA_DDP_BUCKET_MB=050"),
        *("--set", "phases.smoke.env.NSA_DISABLE_CSV_LOGS=null"),
    )
    assert said.code == 0, said.err
    dry = said.json()
    (smoke,) = [order for order in dry["orders"] if order["phase"] == "smoke"]
    assert smoke["env"] == {
        "NSA_TB_DISABLE": "0",
        "NSA_DDP_BUCKET_MB": "050",
        "NSA_DISABLE_AUX_STATS": "1",
    }
    assert smoke["train"]["optim"]["lr"] == 1e-4


def test_a_warning_is_told_on_the_side(gonogo: Any, plane: Any) -> None:
    said = gonogo("submit", "demo", "--json", "--set", "remedies.out_of_memory.train.dtype=bf16")
    assert said.code == 0
    assert said.err == "warning: remedies: max_remedies is 0, so none is ever tried\n"
    assert said.json()["warnings"]
