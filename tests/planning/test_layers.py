"""The order of a run merges plan, phase and patch; the last value wins."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.canonical import digest
from gonogo.contract.errors import Rejected
from gonogo.contract.order import CarriedRemedy, Order, RunReason
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.workload import Patch
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import judge
from gonogo.planning.ordering import merged
from gonogo.planning.resolve import build_order, resolve_plan
from gonogo.planning.source import bundled_plan
from tests.judge.runs import exit_record, record_of


def ordered(
    change: dict[str, Any] | None = None, plan: str = "m7c-125m", phase: str = "smoke", **sets: Any
) -> Order:
    patch = None if change is None else Patch.model_validate(change)
    resolved = resolve_plan(bundled_plan(plan), {k.replace("__", "."): v for k, v in sets.items()})
    return build_order(
        resolved, phase, experiment="e", run="r", token=1, reason=RunReason.REMEDY, change=patch
    )


def test_without_a_patch_the_phase_is_told_what_the_plan_says() -> None:
    order = ordered()
    assert (order.train["parallel"], order.world_size) == ("ddp", 2)
    assert (order.train["data"], order.train["steps"]) == ("fineweb_edu", order.steps)
    assert order.env == {
        "NSA_PREFILL_BATCHED": "1",
        "NSA_DDP_STATIC_GRAPH": "1",
        "NSA_DDP_COMPRESS": "bf16",
        "NSA_TB_DISABLE": "1",
        "NSA_DISABLE_CSV_LOGS": "1",
        "NSA_DISABLE_AUX_STATS": "1",
    }
    assert order.identity.nsa_env == order.env


@pytest.mark.parametrize(
    "change", [{"workload": {"parallel": "fsdp"}}, {"train": {"parallel": "fsdp"}}]
)
def test_fsdp_answers_where_ddp_failed(change: dict[str, Any]) -> None:
    order = ordered(change)
    assert order.train["parallel"] == order.identity.parallel == "fsdp"
    assert order.identity.config_digest == digest(order.train)


def test_what_helped_in_an_earlier_phase_lies_under_what_a_rerun_changes() -> None:
    carried = CarriedRemedy(
        diagnosis="ddp_marked_ready_twice",
        patch={"workload": {"parallel": "fsdp"}, "env": {"NSA_TB_DISABLE": "0"}},
        since="smoke",
    )
    resolved = resolve_plan(bundled_plan("m7c-125m"), {})
    told = {"experiment": "e", "run": "r", "token": 1, "carried": [carried]}
    order = build_order(resolved, "production", **told)
    assert order.train["parallel"] == order.identity.parallel == "fsdp"
    assert order.identity.config_digest == digest(order.train)
    assert (order.env["NSA_TB_DISABLE"], order.carried) == ("0", [carried])
    change = Patch.model_validate({"env": {"NSA_TB_DISABLE": None}})
    rerun = build_order(resolved, "production", change=change, **told)
    assert rerun.train["parallel"] == "fsdp"
    assert "NSA_TB_DISABLE" not in rerun.env


def test_one_variable_of_one_phase_is_changed_or_taken_away() -> None:
    assert ordered({"env": {"NSA_TB_DISABLE": 0}}).env["NSA_TB_DISABLE"] == "0"
    order = ordered({"env": {"NSA_TB_DISABLE": None, "NSA_DDP_STATIC_GRAPH": None}})
    assert not {"NSA_TB_DISABLE", "NSA_DDP_STATIC_GRAPH"} & set(order.env)
    assert "NSA_DISABLE_CSV_LOGS" in order.env
    set_only = ordered(phases__smoke__env__NSA_TB_DISABLE=0)
    assert set_only.env == {**ordered().env, "NSA_TB_DISABLE": "0"}
    unset = ordered(phases__smoke__env__NSA_DDP_STATIC_GRAPH=None)
    assert "NSA_DDP_STATIC_GRAPH" not in unset.env


def test_a_section_that_the_configuration_lacks_begins_with_what_its_absence_means() -> None:
    order = ordered({"train": {"engine": {"profile_steps": 5}}}, plan="demo")
    assert order.train["engine"] == {
        "fused_adamw": None,
        "compile": False,
        "keep_checkpoints": 0,
        "profile_steps": 5,
    }
    assert ordered(plan="demo", train__packing__documents_apart=True).train["packing"] == {
        "documents_apart": True
    }
    assert "engine" not in ordered(plan="demo").train


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)
MAPPING = st.dictionaries(st.sampled_from("abc"), JSON)


@given(base=MAPPING, patch=MAPPING)
def test_a_patch_laid_over_twice_is_the_patch_laid_over_once(
    base: dict[str, Any], patch: dict[str, Any]
) -> None:
    once = merged(base, patch)
    assert merged(once, patch) == once
    assert merged(base, {}) == base
    for key, value in patch.items():
        if not isinstance(value, dict):
            assert once[key] == value
    assert set(once) == set(base) | set(patch)


ROW = {"name": "tokens_expired", "pattern": r"token .{0,40}expired", "cause": "c", "remedy": "r"}


def test_failures_of_a_plan_travel_in_the_order_and_name_the_end_of_its_runs() -> None:
    order = ordered(failures=[ROW], remedies__tokens_expired={"env": {"NSA_TB_DISABLE": "0"}})
    assert Order.model_validate(order.document()).failures == order.failures
    rules = build_rules(order)
    ended = exit_record(OutcomeCode.NONZERO_EXIT, code=1)
    said = ended.model_copy(update={"error": ["OSError: token of the data service expired"]})
    facts = build_facts(record_of(order, exit=said), rules)
    assert judge(facts, rules).diagnosis == "tokens_expired"
    assert "failures" not in ordered().document()


def test_a_remedy_names_a_failure_of_the_library_or_of_the_plan() -> None:
    with pytest.raises(Rejected, match="unknown diagnosis 'tokens_expired'"):
        ordered(remedies__tokens_expired={"env": {"NSA_TB_DISABLE": "0"}})
    with pytest.raises(Rejected, match="repeats a group"):
        ordered(failures=[{**ROW, "pattern": "(a+)+b"}])
