"""A typo in a plan is an error that names the path, what was found and what was expected."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from pydantic import ValidationError

from gonogo.contract.criterion import Criterion
from gonogo.contract.errors import NotFound, Rejected
from gonogo.contract.plan import hardware_profiles
from gonogo.planning.source import (
    bundled_campaign_names,
    bundled_plan,
    bundled_plan_names,
    parse_plan,
    with_overrides,
)

DEMO = bundled_plan("demo")


def test_the_bundled_plans_are_valid() -> None:
    assert {"demo", "m7c-125m", "m7c-125m-fsdp"} <= set(bundled_plan_names())
    assert bundled_plan_names() == sorted(bundled_plan_names())
    for name in (*bundled_plan_names(), *bundled_campaign_names()):
        plan = parse_plan(bundled_plan(name))
        assert (plan.name, plan.campaign is None) == (name, name in bundled_plan_names())


def test_a_bundled_plan_is_its_caller_s_to_change() -> None:
    bundled_plan("demo")["phases"][0]["gate"].clear()
    assert bundled_plan("demo") == DEMO


def test_the_real_plan_is_the_one_of_the_field_reports() -> None:
    plan = parse_plan(bundled_plan("m7c-125m"))
    steps = {phase.name: phase.steps for phase in plan.phases}
    assert steps == {
        "sanity": 1,
        "synthetic": 200,
        "smoke": 300,
        "extended": 1000,
        "production": 50_000,
    }
    smoke = plan.phase("smoke")
    assert (smoke.checkpoint.every_steps, smoke.checkpoint.every_s) == (5000, 3600)
    (throughput,) = [row for row in smoke.gate if row.id == "throughput"]
    assert (throughput.pass_above, throughput.fail_below) == ("profile", 39)
    assert hardware_profiles()[plan.profile].floor_tok_s == 45


PROBLEMS = [
    ({"watchdog": {}}, "watchdog", "unknown key"),
    ({"phases.smoke.stepz": 3}, "phases.smoke.stepz", "did you mean steps?"),
    ({"phases.smoke.steps": 0}, "phases.smoke.steps", "found 0"),
    ({"phases.smoke.data": None}, "phases.smoke.data", "missing"),
    ({"phases.smoke.steps": 10**18}, "phases.smoke.steps", "less than or equal to"),
    ({"phases.smoke.env": {"LD_PRELOAD": "x"}}, "phases.smoke.env", "LD_PRELOAD"),
    ({"phases.smoke.gate.finite.metric": "looss"}, "phases.smoke.gate.finite.metric", "looss"),
    ({"phases.smoke.gate.finite.pass_above": 1}, "phases.smoke.gate.finite", "no threshold"),
    ({"phases.smoke.gate.throughput.pass_above": None}, "phases.smoke.gate.throughput", "expected"),
    ({"phases.smoke.gate.finite.id": "coverage"}, "phases.smoke.gate", "built-in"),
    ({"phases.smoke.gate.finite.id": "throughput"}, "phases.smoke.gate.throughput", "same id"),
    ({"phases.smoke.name": "sanity"}, "phases.sanity", "same name"),
    ({"phases.smoke.init_from": "production"}, "phases.smoke.init_from", "earlier phase (sanity"),
    ({"phases.sanity.init_from": "smoke"}, "phases.sanity.init_from", "there is none"),
    ({"profile": "a100"}, "profile", "did you mean a100-pcie-gen3 or a100-pcie-gen4?"),
    ({"profile": "lunch"}, "profile", "found 'lunch'; expected one of a100-pcie-gen3"),
    ({"watch.stall.halts": 3}, "watch.stall.halts", "halt_s"),
    ({"workload.entry": "os.system('x')"}, "workload.entry", "expected a module"),
    ({"workload.entry": "-m"}, "workload.entry", "expected a module"),
    ({"workload.entry": None}, "workload", "found neither"),
    ({"workload.command": "echo"}, "workload", "found both"),
    ({"workload.parallel": "dpp"}, "workload.parallel", "expected one of ddp, fsdp, single"),
    ({"workload.cwd": "src"}, "workload.cwd", "absolute"),
    ({"identity": {"params": 1}}, "identity", "nsa.train says"),
    ({"waive": ["completed"]}, "waive", "without it nothing is proved"),
    ({"waive": ["thruput"]}, "waive", "found 'thruput'"),
    ({"remedies": {"x": {"envv": 1}}}, "remedies.x.envv", "unknown key 'envv'"),
    ({"remedies": {"x": {"workload": {"entry": "y"}}}}, "remedies.x.workload.entry", "unknown key"),
    ({"confirm": {"on": ["stal"], "variants": []}}, "confirm.on.0", "did you mean stall?"),
    (
        {"confirm": {"on": [], "variants": [{"tarin": {}}]}},
        "confirm.variants.0.tarin",
        "did you mean train?",
    ),
    ({"workload.world_size": 0}, "workload.world_size", "found 0"),
    ({"heartbeat.alive_every_s": 1.0}, "heartbeat.alive_every_s", "a third of watch.alive_lost"),
    ({"limits.isolated_limit_s": 20}, "limits.isolated_limit_s", "found 20"),
    ({"retry.infra": 99}, "retry.infra", "found 99"),
    ({"v": 2}, "v", "found 2"),
    ({"train": {}}, "train.config", "name of a configuration"),
]


@pytest.mark.parametrize(("sets", "path", "said"), PROBLEMS, ids=[str(row[0]) for row in PROBLEMS])
def test_what_is_wrong_is_named_with_its_path(sets: dict[str, Any], path: str, said: str) -> None:
    with pytest.raises(Rejected) as refused:
        parse_plan(with_overrides(DEMO, sets))
    problems = refused.value.problems
    assert any(row.path.startswith(path) for row in problems)
    assert said in " ".join(
        [refused.value.detail, *(f"{row.path} {row.message}" for row in problems)]
    )


def test_everything_that_is_wrong_is_told_at_once() -> None:
    sets = {"profile": "tpu", "phases.smoke.stepz": 1, "phases.smoke.steps": 0, "v": 2}
    with pytest.raises(Rejected, match="and 3 more") as refused:
        parse_plan(with_overrides(DEMO, sets))
    assert {row.path for row in refused.value.problems} == set(sets)


PLACES = [
    ({"evidence_from": "smoke"}, "later phase"),
    ({"due": "sanity"}, "later phase"),
    ({"evidence_from": "end"}, "expected a phase"),
    ({"evidence_from": "production", "due": "extended"}, "does not come before due"),
    ({"evidence_from": "extended", "due": "extended"}, "does not come before due"),
    ({"evidence_from": "extended", "due": "production"}, None),
    ({"evidence_from": "production", "due": "end"}, None),
]


@pytest.mark.parametrize(("fields", "said"), PLACES)
def test_the_evidence_of_a_condition_comes_before_it_is_due(
    fields: dict[str, str], said: str | None
) -> None:
    sets = {f"phases.smoke.gate.throughput.{name}": value for name, value in fields.items()}
    data = with_overrides(DEMO, sets)
    if said is None:
        parse_plan(data)
        return
    with pytest.raises(Rejected, match=said):
        parse_plan(data)


THRESHOLDS = [
    ({"pass_above": 4, "fail_below": 5}, "pass side"),
    ({"pass_below": 6, "fail_above": 5}, "pass side"),
    ({"pass_above": 4, "pass_below": 5}, "expected pass_above"),
    ({}, "expected pass_above"),
]


@pytest.mark.parametrize(("fields", "said"), THRESHOLDS)
def test_thresholds_that_contradict_are_refused(fields: dict[str, float], said: str) -> None:
    data = deepcopy(DEMO)
    data["phases"][0]["gate"].append({"id": "c", "metric": "loss", **fields})
    with pytest.raises(Rejected, match=said):
        parse_plan(data)


def test_overrides_go_by_name_and_leave_the_original_alone() -> None:
    before = deepcopy(DEMO)
    data = with_overrides(DEMO, {"phases.smoke.steps": 7, "train.seed": 9, "confirm.on": ["stall"]})
    plan = parse_plan(data)
    assert (plan.phase("smoke").steps, plan.train["seed"]) == (7, 9)
    assert plan.confirm is not None
    assert before == DEMO


@pytest.mark.parametrize("path", ["phases.smok.steps", "phases.smoke.steps.x", "phases.smoke"])
def test_an_override_that_leads_nowhere_is_refused(path: str) -> None:
    with pytest.raises(Rejected, match=path.split(".")[0]):
        parse_plan(with_overrides(DEMO, {path: 1}))


def test_an_unknown_plan_or_phase_is_not_found() -> None:
    with pytest.raises(NotFound, match="demo"):
        bundled_plan("../demo")
    with pytest.raises(NotFound):
        parse_plan(DEMO).phase("none")


def test_the_digest_is_of_what_was_said_and_changes_with_it() -> None:
    plan = parse_plan(DEMO)
    assert parse_plan(plan.canonical()).digest() == plan.digest()
    assert parse_plan(with_overrides(DEMO, {"train.seed": 1})).digest() != plan.digest()


@pytest.mark.parametrize("name", ["pass_above", "pass_below", "fail_above", "fail_below"])
@pytest.mark.parametrize("said", [True, False, "0.5", "true", float("nan"), float("inf"), [1.0]])
def test_a_threshold_is_a_number_and_not_what_could_be_read_as_one(name: str, said: Any) -> None:
    """`pass_above: true` was 1, and `false` a bound that any loss is above."""
    with pytest.raises(ValidationError):
        Criterion.model_validate({"id": "c", "metric": "loss", name: said})
    assert getattr(Criterion.model_validate({"id": "c", "metric": "loss", name: 1}), name) == 1.0
