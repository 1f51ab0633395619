"""What the judge adds to a gate: other runs, taints, and what weakens an order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.decision import CriterionResult
from gonogo.contract.facts import Confirmation, FailedBefore, FindingFacts, History, Remedy
from gonogo.contract.finding import Act, Doubt, DoubtKind, Severity
from gonogo.contract.heartbeat import Identity
from gonogo.contract.order import Order, Rules, RunReason, Taint, TaintKind, carried_on
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.plan import HeartbeatCadence
from gonogo.contract.watch import Patience, Place, Watch, setting_at
from gonogo.judge.gate.added_criteria import (
    CEILINGS,
    CHECKS,
    CHECKS_OF_RANKS,
    LONGEST_S,
    WEAKENED,
    added_criteria,
    weaknesses,
)
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import judge
from gonogo.judge.words import sentence
from gonogo.planning.resolve import build_order, resolve_plan
from gonogo.planning.source import bundled_plan, bundled_plan_names
from gonogo.watch.registry import detector_names
from tests.data.make_runs import order_of
from tests.judge.runs import facts_of, judged, record_of

# What the judge adds to a gate: what other runs say, and notes that change no verdict.


NO_FLASH = {"env": {"NSA_SDPA_NO_FLASH": "1"}, "train": {}}
FLASH_ONLY = {"env": {"NSA_SDPA_FLASH_ONLY": "1"}, "train": {}}


def confirmations(*rows: tuple[str, dict[str, Any] | None], step: int | None = 7) -> History:
    """A failure at a step, and what its reruns came to."""
    told = [("NO_GO", None), *rows]
    found = [
        Confirmation.model_validate(
            {"run": f"run_{n}", "verdict": verdict, "variant": variant, "code": "completed"}
            | {"step": step}
        )
        for n, (verdict, variant) in enumerate(told)
    ]
    return History(confirmations=found)


def added(history: History | None, reason: RunReason = RunReason.FIRST) -> list[CriterionResult]:
    facts = facts_of(record_of()).model_copy(update={"history": history})
    rules = build_rules(order_of()).model_copy(update={"reason": reason})
    return list(added_criteria(facts, rules))


@pytest.mark.parametrize(
    ("rows", "outcome", "evidence"),
    [
        ([("GO", None)], "fail", "not reproduced: failed in 1 of 2 unchanged runs"),
        ([("NO_GO", None)], "inconclusive", "failed in 2 of 2 unchanged runs"),
        ([("INCONCLUSIVE", None)], "inconclusive", "failed in 1 of 2 unchanged runs"),
        (
            [("NO_GO", None), ("NO_GO", NO_FLASH), ("GO", FLASH_ONLY)],
            "fail",
            "failed in 2 of 2 unchanged runs; passed 0 of 1 with NSA_SDPA_NO_FLASH=1;"
            " passed 1 of 1 with NSA_SDPA_FLASH_ONLY=1",
        ),
    ],
)
def test_confirmations_are_one_condition_with_its_counts(
    rows: list[tuple[str, dict[str, Any] | None]], outcome: str, evidence: str
) -> None:
    (found,) = added(confirmations(*rows))
    assert (found.id, found.severity, found.outcome) == ("reproduced", "conditional", outcome)
    assert found.evidence == evidence


def test_what_other_runs_failed_and_a_remedy_are_conditions() -> None:
    remedy = Remedy(diagnosis="fp16_overflow", patch={"train": {"dtype": "bf16"}})
    rows = [
        FailedBefore(run="run_1", code=OutcomeCode.PREEMPTED, criteria=["spikes", "memory"]),
        FailedBefore(run="run_2", code=OutcomeCode.HALTED, criteria=["spikes"]),
    ]
    found = added(History(remedy=remedy, failed_before=rows))
    assert [(row.id, row.severity, row.outcome) for row in found] == [
        ("remedied", "conditional", "fail"),
        ("failed_before", "conditional", "fail"),
    ]
    assert found[0].observed == remedy.patch
    assert "(run_1 (preempted): spikes, memory; run_2 (halted): spikes)" in found[1].evidence
    assert added(History()) == added(None) == []


@pytest.mark.parametrize(
    ("reason", "name"), [(RunReason.CONFIRM, "reproduced"), (RunReason.REMEDY, "remedied")]
)
def test_a_rerun_that_is_judged_by_itself_is_no_plain_go(reason: RunReason, name: str) -> None:
    (found,) = added(None, reason)
    assert (found.id, found.outcome) == (name, "fail")
    rules = build_rules(order_of()).model_copy(update={"reason": reason})
    assert judge(facts_of(record_of()), rules).verdict == "CONDITIONAL_GO"


# ---- notes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "kind"), [(None, DoubtKind.FAULTS_ALLOWED), ("hang:step=3", DoubtKind.FAULT_INJECTED)]
)
def test_what_an_order_allows_to_be_made_up_is_listed(fault: str | None, kind: DoubtKind) -> None:
    order = order_of().model_copy(update={"allow_faults": True, "fault": fault})
    found = judge(facts_of(record_of()), build_rules(order))
    assert found.verdict == "GO"
    assert Doubt(kind=kind, name=fault) in found.weakened


def test_no_ceiling_is_longer_than_four_hours_nor_tolerates_more_than_a_tenth() -> None:
    assert max(CEILINGS.values()) == LONGEST_S == 14_400.0
    assert CEILINGS["identity.params_tolerance_ratio"] == 0.1


# A taint never disappears along a resume, and a tainted run is never a plain GO.


NAMES = st.sampled_from(["a", "b", "c"])
TAINTS = st.lists(
    st.builds(
        Taint,
        kind=st.sampled_from(TaintKind),
        experiment=NAMES.map("exp_{}".format),
        run=NAMES.map("run_{}".format),
        step=st.integers(1, 100),
        found=st.sampled_from([None, "NO_GO", "non_finite"]),
    ),
    max_size=5,
)


ORDER = order_of()


@settings(deadline=None, max_examples=50)
@given(st.lists(TAINTS, min_size=1, max_size=5))
def test_whoever_resumes_carries_every_run_that_was_tainted(steps: list[list[Taint]]) -> None:
    """Each step of the chain resumes from the one before, and adds its own."""
    carried: list[Taint] = []
    for own in steps:
        order = ORDER.model_copy(update={"taints": carried_on(own, carried)})
        carried = Order.model_validate(order.document()).taints  # as the next one reads it
    tainted = {(row.experiment, row.run) for own in steps for row in own}
    assert {(row.experiment, row.run) for row in carried} == tainted


@pytest.mark.parametrize("kinds", [[], *([kind] for kind in TaintKind), list(TaintKind)])
def test_a_healthy_run_is_go_without_taints_and_conditional_with_any(
    kinds: list[TaintKind],
) -> None:
    taints = [Taint(kind=kind, experiment="exp_1", run=f"run_{kind}", step=9) for kind in kinds]
    order = order_of().model_copy(update={"taints": taints})
    assert build_rules(order).taints == taints
    judgement = judged(record_of(order))
    assert judgement.verdict == ("CONDITIONAL_GO" if taints else "GO")
    assert [row.criterion for row in judgement.conditions] == ["unpassed"] * bool(taints)


@pytest.mark.parametrize(
    ("kind", "found", "text"),
    [
        ("unpassed", "NO_GO", "run_1 of exp_1 went to its last step, 40, and is NO_GO"),
        ("unpassed", None, "run_1 of exp_1 went to its last step, 40, and has no verdict"),
        ("failed", "stalled", "run_1 of exp_1 failed (stalled)"),
        ("drifted", None, "run_1 of exp_1 trained the checkpoint, and was not as ordered"),
    ],
)
def test_the_condition_names_the_run_and_what_was_found(
    kind: str, found: str | None, text: str
) -> None:
    taint = Taint(kind=TaintKind(kind), experiment="exp_1", run="run_1", step=40, found=found)
    rules = build_rules(order_of()).model_copy(update={"taints": [taint]})
    (row,) = added_criteria(facts_of(record_of()), rules)
    assert row.evidence == f"it resumes from a checkpoint: {text}"
    assert row.observed == [found]


# What weakens an order is listed; what goes too far is a condition that names it.


DETECTOR_NAMES = detector_names()
FACTS = facts_of(record_of())


def test_no_default_is_its_ceiling() -> None:
    assert CEILINGS.keys() <= build_rules(order_of()).watch.keys()
    for path in CEILINGS:
        assert CEILINGS[path] > setting_at(Watch(), path)


def conditions(rules: Rules) -> list[str]:
    """What makes an order weak, as the condition reports it."""
    return [row.evidence for row in added_criteria(FACTS, rules) if row.id == WEAKENED]


@pytest.mark.parametrize("name", bundled_plan_names())
def test_bundled_plans_stay_below_every_ceiling(name: str) -> None:
    resolved = resolve_plan(bundled_plan(name))
    for phase in resolved.parsed().phases:
        order = build_order(resolved, phase.name, experiment="e", run="r", token=1)
        assert conditions(build_rules(order)) == []


@pytest.mark.parametrize(
    ("path", "value", "listed", "beyond"),
    [
        ("stall.halt_s", 1_000.0, True, False), ("stall.halt_s", 1e9, True, True),
        ("stall.halt_s", 30.0, False, False), ("slow.floor_ratio", 0.01, False, False),
        ("divergence.spike_count", 8, False, False),
    ],
)  # fmt: skip
def test_a_looser_setting_is_listed_and_beyond_its_ceiling_a_condition(
    path: str, value: float, listed: bool, beyond: bool
) -> None:
    order = order_of(sets={f"watch.{path}": value})
    assert (
        any(row.name == path and row.found == value for row in weaknesses(build_rules(order)))
        is listed
    )
    assert bool(conditions(build_rules(order))) is beyond
    if beyond:
        assert judged(record_of(order)).verdict == "CONDITIONAL_GO"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"heartbeat": HeartbeatCadence(alive_every_s=1e9)}, "heartbeat.alive_every_s"),
        ({"allow_drift": [*Identity.model_fields]}, "allow_drift"),
        ({"patience": {Place.COMPUTE: Patience(seconds=1_900)}}, "patience.compute"),
        ({"patience": {Place.COMPUTE: Patience(seconds=None)}}, "patience.compute"),
        ({"gate": []}, "the gate is empty"),
        ({"detectors": ["first_loss"]}, "stall does not watch"),
        ({"detectors": [row for row in DETECTOR_NAMES if row != "stall"]}, "stall does not watch"),
        ({"preflight": ["devices"]}, "the preflight does not check"),
        ({"watch": Watch.model_validate({"stall": {"action": "warn"}})}, "stall only warns"),
    ],
)
def test_what_disarms_an_order_is_a_condition_that_names_it(
    changes: dict[str, Any], named: str
) -> None:
    found = judged(record_of(order_of().model_copy(update=changes)))
    assert found.verdict == "CONDITIONAL_GO"
    assert any(named in row.text for row in found.conditions)
    assert any(named in sentence(row) for row in found.weakened)


WARNING = FindingFacts(
    detector="divergence", severity=Severity.WARN, act=Act.GATE, step=301, value=9.4, threshold=4.5
)


@pytest.mark.parametrize(
    ("row", "asked", "verdict"),
    [
        (WARNING, False, "CONDITIONAL_GO"),
        (WARNING, True, "GO"),
        (WARNING.model_copy(update={"act": None}), False, "GO"),
        (WARNING.model_copy(update={"detector": "loader"}), False, "GO"),
    ],
)
def test_a_failed_training_that_only_warned_is_a_condition(
    row: FindingFacts, asked: bool, verdict: str
) -> None:
    order = order_of(sets={"watch.divergence.action": "warn"} if asked else None)
    found = judge(FACTS.model_copy(update={"findings": [row]}), build_rules(order))
    assert found.verdict == verdict
    told = [told.text for told in found.conditions]
    assert any("divergence (step 301, value 9.4, limit 4.5)" in text for text in told) is (
        verdict != "GO"
    )


@pytest.mark.parametrize(("path", "limit"), CEILINGS.items())
def test_a_setting_at_its_ceiling_is_no_condition_yet(path: str, limit: float) -> None:
    for value, beyond in ((limit, False), (limit + 1.0, True)):
        rules = build_rules(order_of(sets={f"watch.{path}": value}))
        assert (f"{path} is" in "".join(conditions(rules))) is beyond
        (row,) = (row for row in weaknesses(rules) if row.name == path)
        kind = DoubtKind.SETTING_BEYOND if beyond else DoubtKind.SETTING_LOOSER
        than = limit if beyond else setting_at(Watch(), path)
        assert (row.kind, row.found, row.expected) == (kind, value, than)


@pytest.mark.parametrize(("every_s", "named"), [(10.0, False), (10.1, True)])
def test_a_living_rank_has_time_for_three_lines_before_it_is_suspect(
    every_s: float, named: bool
) -> None:
    order = order_of(sets={"watch.alive_lost.suspect_s": 30.0})
    order = order.model_copy(update={"heartbeat": HeartbeatCadence(alive_every_s=every_s)})
    assert bool(conditions(build_rules(order))) is named


def test_three_warnings_that_would_have_halted_are_listed() -> None:
    rows = [WARNING.model_copy(update={"step": step}) for step in range(301, 306)]
    found = judge(FACTS.model_copy(update={"findings": rows}), build_rules(order_of()))
    (text,) = [row.text for row in found.conditions if "would have halted" in row.text]
    assert text.count("divergence (step") == 3


@pytest.mark.parametrize(("steps", "listed"), [(1, False), (2, True)])
def test_a_run_of_one_step_needs_no_gate(steps: int, listed: bool) -> None:
    rules = build_rules(order_of().model_copy(update={"steps": steps, "gate": []}))
    assert (DoubtKind.GATE_EMPTY in [row.kind for row in weaknesses(rules)]) is listed


@pytest.mark.parametrize(("programs", "absent"), [(None, [*CHECKS_OF_RANKS]), (1, None)])
def test_only_our_trainer_has_checks_of_its_ranks(
    programs: int | None, absent: list[str] | None
) -> None:
    rules = build_rules(order_of().model_copy(update={"preflight": [*CHECKS]}))
    rows = weaknesses(rules.model_copy(update={"programs": programs}))
    found = [row.found for row in rows if row.kind is DoubtKind.CHECKS_LEFT_OUT]
    assert found == ([] if absent is None else [absent])
