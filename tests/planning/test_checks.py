"""Submission refuses what would fail later: each error with its path, all of them at once."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from gonogo.contract.errors import Rejected
from gonogo.planning.resolve import build_order, resolve_plan, warnings_of
from gonogo.planning.source import bundled_plan, bundled_plan_names, parse_plan, with_overrides

DEMO = bundled_plan("demo")
VARIANTS = {"on": ["stall"], "variants": [{"env": {}}, {"train": {}}]}


def patched(**sets: Any) -> dict[str, Any]:
    """The demo with a confirmation and a remedy, and something of them changed."""
    plan = {**deepcopy(DEMO), "confirm": VARIANTS, "remedies": {"out_of_memory": {}}}
    return with_overrides(plan, {name.replace("__", "."): value for name, value in sets.items()})


REFUSED = [
    ({"phases.smoke.name": "end"}, "phases.end.name", "expected another name of a phase"),
    ({"halt.grace_s": 3601}, "halt.grace_s", "less than or equal to 3600"),
    ({"train.sede": 7}, "train.sede", "did you mean seed?"),
    ({"train.model": {"dims": 7}}, "train.model.dims", "did you mean dim?"),
    ({"train.seed": 2**53}, "train.seed", "at most 9007199254740991"),
    ({"train.model.dim": 128}, "train.params", "which is 1230792"),
    ({"train.data": "synthetic"}, "train.data", "phases.NAME.data"),
    ({"phases.smoke.train.data": "synthetic"}, "phases.smoke.train.data", "phases.NAME.data"),
    ({"phases.smoke.train.config": "m7c_125m"}, "phases.smoke.train.config", "the plan's"),
    ({"phases.smoke.train.optim.lr": -1}, "phases.smoke.train.optim.lr", "more than 0"),
    ({"phases.smoke.data": "wikipedia"}, "phases.smoke.data", "expected synthetic, local_text"),
    ({"phases.smoke.env.NSA_BOGUS": "1"}, "phases.smoke.env.NSA_BOGUS", "unknown key"),
    ({"phases.smoke.env.NSA_TB_DISABLE": 2}, "phases.smoke.env.NSA_TB_DISABLE", "one of 0, 1"),
    ({"workload.env.NCLL_ALGO": "Ring"}, "workload.env.NCLL_ALGO", "did you mean NCCL_ALGO?"),
    ({"remedies.out_of_memory.env.MY": "x"}, "remedies.out_of_memory.env.MY", "no worker"),
    ({"workload.env.NSA_TB_DISABEL": 1}, "workload.env.NSA_TB_DISABEL", "mean NSA_TB_DISABLE?"),
    ({"phases.smoke.env.NSA_LR": 0.5}, "phases.smoke.env.NSA_LR", "disagrees with optim.lr"),
    ({"workload.world_size": 3}, "train.batch.global_seqs", "shared evenly"),
    ({"workload.parallel": "single"}, "workload.world_size", "means one rank"),
    ({"phases.smoke.workload.world_size": 3}, "train.batch.global_seqs", "shared evenly"),
    ({"remedies.out_of_memori.train": {}}, "remedies.out_of_memori", "mean out_of_memory?"),
    ({"remedies.out_of_memory.train.model.dim": "x"}, "remedies.out_of_memory.train.model.dim", ""),
    ({"remedies.out_of_memory.env.NSA_X": 1}, "remedies.out_of_memory.env.NSA_X", "unknown key"),
    (
        {"remedies.out_of_memory.train.steps": 5},
        "remedies.out_of_memory.train.steps",
        "is the plan's",
    ),
    ({"remedies.out_of_memory.workload.world_size": 3}, "train.batch.global_seqs", "shared evenly"),
    ({"confirm.variants.0.env.NSA_USE_FA2": 7}, "confirm.variants.0.env.NSA_USE_FA2", "0, 1"),
    ({"confirm.variants.1.train.dtyp": "x"}, "confirm.variants.1.train.dtyp", "mean dtype?"),
    (
        {"confirm.variants.0.env.NSA_SDPA_NO_FLASH": 1, "phases.smoke.env.NSA_SDPA_FLASH_ONLY": 1},
        "confirm.variants.0.env",
        "exclude each other",
    ),
    ({"phases.smoke.init_from": "sanity"}, "phases.sanity.checkpoint", "begins with its weights"),
    (
        {"phases.smoke.gate": [{"id": "watch_ceiling", "metric": "loss", "pass_below": 5.0}]},
        "phases.smoke.gate.watch_ceiling",
        "expected another name",
    ),
]


@pytest.mark.parametrize(("sets", "path", "said"), REFUSED, ids=[str(row[0]) for row in REFUSED])
def test_what_would_fail_later_is_refused_with_its_path(
    sets: dict[str, Any], path: str, said: str
) -> None:
    with pytest.raises(Rejected) as refused:
        resolve_plan(patched(), sets)
    rows = {row.path: row.message for row in refused.value.problems}
    assert path in rows
    assert said in rows[path]


ACCEPTED = [
    {"halt.grace_s": 3600},
    {"train.optim.lr": 1e-4},
    {"train.engine.profile_steps": 2},
    {"train.model.gradient_checkpointing": "reentrant"},
    {"train.model.dim": 128, "train.params": 1230792},
    {"phases.smoke.data": "parquet:/data/some where"},
    {"phases.smoke.env.NSA_LR": "1e-3"},
    {"phases.smoke.train.optim.lr": 0.01, "phases.smoke.env.NSA_LR": 0.01},
    {"workload.world_size": 1, "workload.parallel": "single"},
    {"phases.smoke.workload": {"world_size": 1, "parallel": "single"}},
    {"remedies.out_of_memory": {"workload": {"parallel": "fsdp"}}},
    {"remedies.out_of_memory": {"train": {"data": "synthetic", "parallel": "fsdp"}}},
    {"phases.smoke.init_from": "sanity", "phases.sanity.checkpoint.every_steps": 1},
    {"phases.smoke.init_from": None},
]


@pytest.mark.parametrize("sets", ACCEPTED, ids=str)
def test_what_can_run_is_accepted(sets: dict[str, Any]) -> None:
    resolved = resolve_plan(patched(), sets)
    for phase in resolved.parsed().phases:
        build_order(resolved, phase.name, experiment="e", run="r", token=1)


def test_everything_is_told_at_once_and_each_place_once() -> None:
    sets = {
        "train.optim.lr": "fast",
        "train.dtype": "fp13",
        "workload.env.NSA_BOGUS": 1,
        "phases.smoke.data": "wikipedia",
        "phases.smoke.gate.finite.metric": "looss",
        "remedies.nonsense": {},
    }
    with pytest.raises(Rejected) as refused:
        resolve_plan(patched(), sets)
    paths = [row.path for row in refused.value.problems]
    assert sorted(paths) == sorted(sets)


LEARNS = {"id": "learns", "metric": "loss", "aggregate": "last", "pass_below": 9.0}
FOREIGN = {
    "v": 1,
    "name": "mine",
    "profile": "cpu",
    "workload": {"command": "python train.py", "cwd": "/src", "files": ["train.py"]},
    "train": {"lr": 1e-4, "anything": [1, {"x": None}]},
    "identity": {"params": 1000, "dtype": "fp32"},
    "phases": [{"name": "try", "steps": 10, "env": {"NCCL_DEBUG": "INFO"}, "gate": [LEARNS]}],
}


def test_a_foreign_workload_brings_its_own_configuration_and_identity() -> None:
    resolved = resolve_plan(FOREIGN)
    order = build_order(resolved, "try", experiment="e", run="r", token=1)
    assert order.train == FOREIGN["train"]
    assert (order.entry, order.command, order.cwd) == (None, ["python", "train.py"], "/src")
    assert (order.files, order.env) == (["train.py"], {"NCCL_DEBUG": "INFO"})
    said = {name: value for name, value in order.identity.model_dump().items() if value is not None}
    assert said == {"params": 1000, "dtype": "fp32", "world_size": 1}
    assert order.model_validate(order.document()) == order


@pytest.mark.parametrize(
    ("sets", "path"),
    [
        ({"train.eval.every_steps": "10"}, "train.eval.every_steps"),
        ({"train.big": 2**53 + 1}, "train"),
        ({"phases.try.env.LD_AUDIT": "x"}, "phases.try.env.LD_AUDIT"),
        ({"identity.tokens_per_step": -1}, "identity.tokens_per_step"),
    ],
)
def test_what_nobody_could_judge_of_a_foreign_workload_is_refused(
    sets: dict[str, Any], path: str
) -> None:
    with pytest.raises(Rejected) as refused:
        resolve_plan(FOREIGN, sets)
    assert path in [row.path for row in refused.value.problems]


def test_what_comes_to_nothing_is_a_warning() -> None:
    assert warnings_of(parse_plan(DEMO)) == []
    assert warnings_of(parse_plan(FOREIGN)) == []
    idle = with_overrides(DEMO, {"remedies": {"out_of_memory": {}}})
    assert warnings_of(parse_plan(idle)) == ["remedies: max_remedies is 0, so none is ever tried"]
    asking = with_overrides(DEMO, {"phases.extended.approve": "always"})
    assert warnings_of(parse_plan(asking)) == []
    asking = with_overrides(DEMO, {"phases.production.approve": "always"})
    (told,) = warnings_of(parse_plan(asking))
    assert told.startswith("phases.production.approve: no phase follows")
    empty = with_overrides(DEMO, {"phases.sanity.gate": [], "phases.smoke.gate": []})
    assert warnings_of(parse_plan(empty)) == [
        "phase smoke has no gate: its verdict is CONDITIONAL_GO at best"
    ], "the phase of one step needs none"


def test_data_of_a_phase_that_a_script_of_ones_own_must_tell_is_a_warning() -> None:
    asking = with_overrides(FOREIGN, {"phases.try.data": "synthetic"})
    (told,) = warnings_of(parse_plan(asking))
    assert told.startswith("phases.try.data: ")
    assert "attach(identity={'dataset': 'synthetic'})" in told
    declared = with_overrides(asking, {"identity.dataset": "synthetic"})
    assert warnings_of(parse_plan(declared)) == [], "its author knows"


@pytest.mark.parametrize("name", bundled_plan_names())
def test_no_bundled_plan_is_warned_of(name: str) -> None:
    assert warnings_of(parse_plan(bundled_plan(name))) == []
