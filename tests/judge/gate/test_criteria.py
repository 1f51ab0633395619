"""A criterion passes on evidence only; the tables are its definition."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.criterion import Criterion, Metric
from gonogo.contract.decision import CriterionResult
from gonogo.contract.facts import Measure, MeasureRow
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.order import Rules
from gonogo.judge.facts.metrics import METRICS, build_measure
from gonogo.judge.gate.criteria import evaluate, never_passes
from gonogo.timeline.rank_steps import RankSteps


def progress(step: int, **fields: Any) -> Heartbeat:
    stamp = {"ts": float(step), "mono": float(step), "pid": 1, "rank": 0, "boot": "b"}
    return Heartbeat(**stamp, seq=step, step=step, msg="progress", **fields)


def ranks_with(losses: dict[int, dict[int, float]]) -> dict[int, RankSteps]:
    return {
        rank: RankSteps(progress(step, loss=loss) for step, loss in rows.items())
        for rank, rows in losses.items()
    }


def said(
    losses: dict[int, dict[int, float]], *, steps: int = 10, world_size: int = 1, **fields: Any
) -> CriterionResult:
    """What a criterion on `loss` says about these losses by rank and step."""
    criterion = Criterion.model_validate({"id": "c", "metric": "loss", **fields})
    rules = Rules(steps=steps, world_size=world_size, built_in=[], gate=[], conditions=[])
    return evaluate(criterion, build_measure(criterion, ranks_with(losses), rules), world_size)


def flat(value: float, steps: int = 10) -> dict[int, float]:
    return dict.fromkeys(range(1, steps + 1), value)


@pytest.mark.parametrize("more", [{}, {"fail_below": 1.0}, {"severity": "advisory"}])
def test_a_floor_that_nobody_filled_in_passes_nothing(more: dict[str, Any]) -> None:
    """An order by hand may name the profile's floor; the one that a plan gives holds its number."""
    found = said({0: flat(5.0)}, metric="toks_per_s", pass_above="profile", **more)
    assert (found.outcome, found.observed) == ("inconclusive", None)
    assert "the order does not say what that is" in found.evidence


@pytest.mark.parametrize("bound", [{"pass_below": 0.0}, {"pass_above": 0.5}])
def test_one_sample_has_no_slope(bound: dict[str, float]) -> None:
    """Else a run with one evaluation, or with one step after a resume, would have learned."""
    found = said({0: flat(5.0, 1)}, steps=1, aggregate="slope", **bound)
    assert (found.outcome, found.observed) == ("inconclusive", None)
    assert found.evidence == "slope of loss: 1 sample, 2 are needed"
    falling = said({0: {1: 5.0, 2: 4.0}}, steps=2, aggregate="slope", **bound)
    expected = "pass" if "pass_below" in bound else "fail"
    assert (falling.outcome, falling.observed) == (expected, -1.0)
    assert said({0: flat(5.0, 1)}, steps=1, aggregate="last", pass_below=5.0).outcome == "pass"


THRESHOLDS = [
    ("pass_above is inclusive", {"pass_above": 5.0}, 5.0, "pass"),
    ("one threshold has no grey zone", {"pass_above": 5.0}, 4.999, "fail"),
    ("pass_below is inclusive", {"pass_below": 5.0}, 5.0, "pass"),
    ("above pass_below fails", {"pass_below": 5.0}, 5.001, "fail"),
    ("fail_below is exclusive", {"fail_below": 5.0}, 5.0, "pass"),
    ("under fail_below fails", {"fail_below": 5.0}, 4.999, "fail"),
    ("fail_above is exclusive", {"fail_above": 5.0}, 5.0, "pass"),
    ("over fail_above fails", {"fail_above": 5.0}, 5.001, "fail"),
    ("between the thresholds is grey", {"pass_above": 6.0, "fail_below": 4.0}, 5.0, "inconclusive"),
    ("at fail_below is grey", {"pass_above": 6.0, "fail_below": 4.0}, 4.0, "inconclusive"),
    ("at pass_above passes", {"pass_above": 6.0, "fail_below": 4.0}, 6.0, "pass"),
    ("grey from above", {"pass_below": 4.0, "fail_above": 6.0}, 5.0, "inconclusive"),
    ("at fail_above is grey", {"pass_below": 4.0, "fail_above": 6.0}, 6.0, "inconclusive"),
]


@pytest.mark.parametrize(
    ("fields", "value", "outcome"),
    [row[1:] for row in THRESHOLDS],
    ids=[row[0] for row in THRESHOLDS],
)
def test_thresholds(fields: dict[str, float], value: float, outcome: str) -> None:
    assert said({0: flat(value)}, **fields).outcome == outcome


@pytest.mark.parametrize(
    ("grey", "severity", "effective"),
    [
        ("conditional", "required", "conditional"),
        ("inconclusive", "required", "required"),
        ("conditional", "advisory", "advisory"),
    ],
)
def test_a_grey_value_of_a_required_criterion_is_conditional_where_the_plan_says_so(
    grey: str, severity: str, effective: str
) -> None:
    found = said({0: flat(5.0)}, pass_above=6.0, fail_below=4.0, grey=grey, severity=severity)
    assert (found.severity, found.outcome) == (effective, "inconclusive")
    unseen = said({}, pass_above=6.0, fail_below=4.0, grey=grey, severity=severity)
    assert unseen.severity == severity


AGGREGATES = [
    ("min", 1.0), ("max", 10.0), ("mean", 5.5), ("median", 5.5), ("p95", 9.55), ("last", 10.0),
    ("count", 10.0), ("slope", 1.0),
]  # fmt: skip


@pytest.mark.parametrize(("aggregate", "value"), AGGREGATES)
def test_aggregates(aggregate: str, value: float) -> None:
    losses = {step: float(step) for step in range(1, 11)}
    found = said({0: losses}, aggregate=aggregate, pass_above=-1.0)
    assert (found.observed, found.outcome) == (pytest.approx(value), "pass")


@pytest.mark.parametrize(
    ("over", "value"), [("min", 2.0), ("max", 6.0), ("mean", 4.0), ("sum", 8.0)]
)
def test_ranks_are_joined_as_the_criterion_says(over: str, value: float) -> None:
    found = said({0: flat(2.0), 1: flat(6.0)}, world_size=2, over_ranks=over, pass_above=0.0)
    assert found.observed == value


def test_the_window_is_the_last_steps_after_warm_up() -> None:
    losses = {step: float(step) for step in range(1, 11)}
    found = said({0: losses}, aggregate="min", warmup_steps=4, pass_above=0.0)
    assert (found.window, found.observed, found.samples) == ("5..10", 5.0, 6)
    found = said({0: losses}, aggregate="min", warmup_steps=4, window=3, pass_above=0.0)
    assert (found.window, found.observed, found.samples) == ("8..10", 8.0, 3)


MISSING = [
    ("min", {"pass_above": 1.0}, 1, "inconclusive"),
    ("max", {"pass_below": 9.0}, 1, "inconclusive"),
    ("count", {"pass_above": 10.0}, 1, "inconclusive"),
    ("all_finite", {}, 1, "inconclusive"),
    ("median", {"pass_below": 9.0}, 1, "pass"),
    ("p95", {"pass_below": 9.0}, 1, "pass"),
    ("median", {"pass_below": 9.0}, 2, "inconclusive"),
    ("slope", {"pass_below": 9.0}, 2, "inconclusive"),
]


@pytest.mark.parametrize(("aggregate", "fields", "missing", "outcome"), MISSING)
def test_one_missing_sample_of_twenty_is_too_many_for_what_it_could_change(
    aggregate: str, fields: dict[str, float], missing: int, outcome: str
) -> None:
    losses = {step: 5.0 for step in range(1, 21 - missing)}
    found = said({0: losses}, steps=20, aggregate=aggregate, **fields)
    assert found.outcome == outcome, found.evidence


CERTAIN = [
    ("a maximum already too high", "max", {"pass_below": 4.0}, "fail"),
    ("a minimum already too low", "min", {"pass_above": 6.0}, "fail"),
    ("a count already too high", "count", {"fail_above": 3.0}, "fail"),
    ("a median can always be saved", "median", {"pass_below": 4.0}, "inconclusive"),
    ("a mean can always be saved", "mean", {"pass_below": 4.0}, "inconclusive"),
    ("a grey bound is no failure", "max", {"pass_below": 4.0, "fail_above": 6.0}, "inconclusive"),
]


@pytest.mark.parametrize(
    ("aggregate", "fields", "outcome"),
    [row[1:] for row in CERTAIN],
    ids=[row[0] for row in CERTAIN],
)
def test_what_fails_whatever_is_missing_fails(
    aggregate: str, fields: dict[str, float], outcome: str
) -> None:
    losses = {step: 5.0 for step in range(1, 9)}
    assert said({0: losses}, aggregate=aggregate, **fields).outcome == outcome


FAILED = [
    ("a maximum already too high", {"aggregate": "max", "pass_below": 4.0}, True),
    ("a condition is as good", {"aggregate": "max", "pass_below": 4.0, "severity": "conditional"},
     True),
    ("an advice is none", {"aggregate": "max", "pass_below": 4.0, "severity": "advisory"}, False),
    ("a mean can be saved", {"aggregate": "mean", "pass_below": 4.0}, False),
    ("a last value that is not there", {"aggregate": "last", "pass_below": 4.0}, False),
    ("what is required at the end", {"metric": "steps_completed", "pass_above": 10.0}, False),
    ("a first loss that is too high", {"metric": "loss_first", "pass_below": 4.0}, False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "failed"), [row[1:] for row in FAILED], ids=[row[0] for row in FAILED]
)
def test_a_run_that_was_ended_has_failed_what_no_further_step_could_save(
    fields: dict[str, Any], failed: bool
) -> None:
    criterion = Criterion.model_validate(
        {"id": "c", "metric": "loss", "on_missing": "fail", **fields}
    )
    rules = Rules(
        steps=10, world_size=2, built_in=[], gate=[], conditions=[],
    )  # fmt: skip
    measure = build_measure(criterion, ranks_with({0: flat(5.0, 8), 1: flat(5.0, 8)}), rules)
    assert never_passes(criterion, measure, rules) is failed
    assert not never_passes(criterion, None, rules)
    uncounted = rules.model_copy(update={"world_size": None})
    assert not never_passes(criterion, measure, uncounted)


def test_too_few_samples_are_inconclusive_even_when_all_are_there() -> None:
    assert said({0: flat(5.0, 3)}, steps=3, min_samples=4, pass_below=9).outcome == "inconclusive"
    assert said({0: flat(5.0, 4)}, steps=4, min_samples=4, pass_below=9).outcome == "pass"


@pytest.mark.parametrize("on_missing", ["inconclusive", "error", "fail"])
def test_a_rank_without_any_sample_is_what_on_missing_says(on_missing: str) -> None:
    found = said({0: flat(5.0)}, world_size=2, pass_below=9.0, on_missing=on_missing)
    assert (found.outcome, found.samples, found.observed) == (on_missing, 0, None)
    assert "rank 1" in found.evidence


@pytest.mark.parametrize(
    ("made", "bound"),
    [
        (math.inf, {"aggregate": "mean", "pass_above": 0.5}),
        (-math.inf, {"aggregate": "mean", "pass_below": 0.5}),
        *((bad, {"aggregate": "all_finite"}) for bad in (math.nan, math.inf, -math.inf)),
    ],
)
def test_a_number_that_none_is_passes_nothing(made: float, bound: dict[str, Any]) -> None:
    """Another package's statistic may divide by zero: its samples are well, and it is not."""
    row = MeasureRow(samples=10, owed=10, value=made)
    criterion = Criterion.model_validate({"id": "c", "metric": "step_cv", **bound})
    found = evaluate(criterion, Measure(window="1..10", ranks={"0": row}), 1)
    assert (found.outcome, found.observed) == ("inconclusive", None)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("on_nan", ["fail", "error"])
def test_a_value_that_is_not_finite_is_what_on_nan_says(bad: float, on_nan: str) -> None:
    losses = {**flat(5.0), 4: bad}
    assert said({0: losses}, pass_below=9.0, on_nan=on_nan).outcome == on_nan
    assert said({0: losses}, aggregate="all_finite", on_nan=on_nan).outcome == "fail"


def test_a_run_without_steps_cannot_be_all_finite() -> None:
    assert said({0: {}}, aggregate="all_finite").outcome == "inconclusive"
    assert said({}, aggregate="all_finite").outcome == "inconclusive"


@given(
    losses=st.dictionaries(st.integers(1, 10), st.floats(0, 10), max_size=10),
    lost=st.integers(1, 10),
    aggregate=st.sampled_from(["min", "max", "mean", "median", "p95", "last", "count", "slope"]),
    low=st.floats(0, 10),
    above=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_losing_a_sample_of_complete_evidence_never_makes_a_criterion_pass(
    losses: dict[int, float], lost: int, aggregate: str, low: float, above: bool
) -> None:
    whole = {**flat(5.0), **losses}
    part = {step: loss for step, loss in whole.items() if step != lost}
    fields: dict[str, Any] = {"pass_above": low} if above else {"pass_below": low}
    before = said({0: whole}, aggregate=aggregate, **fields).outcome
    after = said({0: part}, aggregate=aggregate, **fields).outcome
    assert after != "pass", "9 of 10 samples are below every coverage that may pass"
    if after == "fail":
        assert before == "fail", "only what fails whatever is missing may fail"


def test_every_metric_of_the_plan_language_has_a_row() -> None:
    assert set(METRICS) == set(Metric)


@pytest.mark.parametrize("bound", [{"pass_below": 4.0}, {"pass_above": 6.0}])
def test_of_a_script_that_evaluates_when_it_likes_nobody_knows_what_was_still_to_come(
    bound: dict[str, float],
) -> None:
    """A healthy run that was preempted had failed by the loss of its first evaluation."""
    row = {"id": "c", "metric": "val_loss", "aggregate": "last", **bound}
    criterion = Criterion.model_validate(row)
    rules = Rules(steps=10, world_size=1, built_in=[], gate=[], conditions=[])
    lines = (progress(step).model_copy(update={"msg": "eval", "val_loss": 5.0}) for step in (2, 4))
    measure = build_measure(criterion, {0: RankSteps(lines)}, rules)
    assert not never_passes(criterion, measure, rules)


def test_without_an_expected_rank_nothing_was_seen() -> None:
    found = said({0: flat(5.0)}, world_size=0, pass_below=9.0)
    assert (found.outcome, found.samples, found.observed) == ("inconclusive", 0, None)
    assert "any rank" in found.evidence
