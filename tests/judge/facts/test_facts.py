"""Facts are small, exact, and the digest is that of the canonical heartbeats."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.canonical import digest
from gonogo.contract.decision import Decision
from gonogo.contract.facts import Facts
from gonogo.contract.finding import Act, Finding, Severity
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.order import Order, Rules
from gonogo.contract.outcome import Actor, Detector, OutcomeCode
from gonogo.contract.records import Check, CheckOutcome, ExitRecord, Preflight
from gonogo.judge.facts.facts import build_facts, outcome_of
from gonogo.judge.facts.record import RunRecord
from gonogo.judge.gate.rules import build_rules
from gonogo.timeline.rank_steps import RankSteps
from tests.data.make_runs import HERE, STEPS, Rank, healthy_ranks, non_finite_ranks, order_of
from tests.judge.runs import PREFLIGHT, facts_of, finding, lines_of, record_of, watch_of


@pytest.mark.parametrize("ranks", [healthy_ranks, non_finite_ranks])
def test_the_digest_is_that_of_the_chain_of_lines(ranks: Callable[[Order], list[Rank]]) -> None:
    lines = lines_of(ranks(order_of()))[0]
    chain = bytes(32)
    for line in lines:
        chain = hashlib.sha256(chain + hashlib.sha256(line.strip()).digest()[:16]).digest()
    found = facts_of(record_of(lines={0: lines})).ranks["0"]
    assert found.digest == digest([["boot0", len(lines), chain.hex()]])


RECORDED = sorted((HERE / "decisions").glob("*.json"))


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_recorded_facts_and_rules_are_read_and_written_without_a_change(file: Path) -> None:
    decision = Decision.model_validate_json(file.read_bytes())
    assert digest(Facts.model_validate(decision.facts).wire()) == decision.facts_digest
    assert digest(Rules.model_validate(decision.rules).wire()) == digest(decision.rules)


def beat(seq: int, mono: float, msg: str, step: int, **fields: Any) -> Heartbeat:
    base = {"pid": 1, "rank": 0, "boot": "b", **fields}
    return Heartbeat(ts=mono, mono=mono, seq=seq, msg=msg, step=step, **base)


def facts_with(beats: list[Heartbeat], order: Order | None = None, **fields: Any) -> Facts:
    """The facts of one rank's lines."""
    order = order or order_of()
    record = RunRecord(order=order, ranks={0: RankSteps(beats)}, **fields)
    return build_facts(record, build_rules(order))


def ends(*monos: float) -> list[Heartbeat]:
    return [beat(step, mono, "step_end", step) for step, mono in enumerate(monos, start=1)]


def test_the_first_three_missing_lines_are_named_and_all_are_counted() -> None:
    missing = facts_with(ends(*range(1, STEPS + 1))).ranks["0"].missing
    assert missing is not None
    assert missing.count == 2 * STEPS
    assert missing.first == ["step_start 1", "progress 1", "step_start 2"]


def test_a_preflight_is_counted_by_how_its_checks_ended() -> None:
    checks = [Check(id=row.value, outcome=row, text="") for row in CheckOutcome]
    found = facts_of(record_of(preflight=Preflight(passed=False, checks=checks))).preflight
    assert found is not None
    assert found.nodes["0"].outcomes == {row.value: row for row in CheckOutcome}


TWO_NODES = order_of().model_copy(update={"nodes": 2})


@pytest.mark.parametrize(
    ("made", "unchecked", "checked"),
    [
        ({0: PREFLIGHT, 1: PREFLIGHT}, [], ["0", "1"]),
        ({0: PREFLIGHT}, [1], ["0"]),
        ({1: PREFLIGHT}, [0], ["1"]),
    ],
)
def test_a_node_without_a_preflight_is_unchecked(
    made: dict[int, Preflight], unchecked: list[int], checked: list[str]
) -> None:
    others = {node: row for node, row in made.items() if node}
    record = replace(record_of(TWO_NODES, preflight=made.get(0)), preflights=others)
    found = facts_of(record).preflight
    assert found is not None
    assert (found.unchecked, sorted(found.nodes)) == (unchecked, checked)


HALT, WARN = finding(Detector.STALL), finding(Detector.SLOW, Severity.WARN)


@pytest.mark.parametrize(
    ("done", "findings", "outcome"),
    [
        ((1, 2), (), ("completed", "trainer")), ((1, None), (), None), ((1,), (), None),
        ((), (), None), ((1, 2), (WARN,), ("completed", "trainer")),
        ((1, 2), (WARN, HALT), ("stalled", "watchdog")),
    ],
    ids=["all done", "one not", "one silent", "all silent", "warned", "halted"],
)  # fmt: skip
def test_without_exit_json_a_halt_or_every_ranks_done_says_how_it_ended(
    done: tuple[int | None, ...], findings: tuple[Finding, ...], outcome: tuple[str, str] | None
) -> None:
    lines = {
        rank: [beat(1, 1.0, "alive" if step is None else "done", step or 1, rank=rank)]
        for rank, step in enumerate(done)
    }
    ranks = {rank: RankSteps(beats) for rank, beats in lines.items()}
    record = RunRecord(order=order_of(), ranks=ranks, findings=findings)
    found = outcome_of(record, build_rules(record.order))
    assert (None if found is None else (found.code, found.actor)) == outcome
    assert outcome_of(replace(record, findings=()), build_rules(None)) is None, "how many ranks?"


@pytest.mark.parametrize(
    ("detector", "act", "reason", "code"),
    [
        (Detector.NON_FINITE, Act.NOW, OutcomeCode.KEEPER_LOST, "non_finite"),
        (Detector.NON_FINITE, Act.PAGE, OutcomeCode.KEEPER_LOST, "keeper_lost"),
        (Detector.STALL, Act.NOW, OutcomeCode.KEEPER_LOST, "keeper_lost"),
        (Detector.SLOW, Act.AT_CHECKPOINT, OutcomeCode.PREEMPTED, "preempted"),
        (Detector.NON_FINITE, Act.NOW, OutcomeCode.NONZERO_EXIT, "nonzero_exit"),
        (Detector.STALL, Act.NOW, OutcomeCode.HALTED, "halted"),
        (Detector.NON_FINITE, Act.NOW, OutcomeCode.CANCELLED, "cancelled"),
    ],
)
def test_an_accident_does_not_excuse_what_the_lines_had_shown_before(
    detector: str, act: Act, reason: OutcomeCode, code: str
) -> None:
    """A halt waits for a checkpoint or for its keeper, and meanwhile the host may be taken."""
    halts = [finding(name).model_copy(update={"act": act}) for name in (detector, "stall")]
    told = ExitRecord(run="run_1", attempt=1, ended_at=2.0, ended_by=Actor.INFRA, reason=reason)
    record = RunRecord(order=order_of(), ranks={}, findings=tuple(halts), exit=told)
    rules = build_rules(record.order)
    found = outcome_of(record, rules)
    assert found is not None
    assert found.code == code
    later = replace(record, findings=(finding("stall"), *halts))
    assert outcome_of(later, rules) == outcome_of(replace(record, findings=()), rules)


def test_a_process_is_what_its_boot_line_says() -> None:
    boot = beat(1, 1.0, "boot", 0, run="run_1", attempt=2, dim=64)
    (found,) = facts_with([boot, beat(2, 2.0, "step_end", 1)]).boots["0"]
    assert (found.said, found.run, found.attempt, found.ended_steps) == (True, "run_1", 2, 1)
    assert found.identity is not None
    assert found.identity.dim == 64
    (found,) = facts_with([beat(1, 1.0, "alive", 1)]).boots["0"]
    assert (found.said, found.run, found.attempt, found.identity) == (False, None, None, None)


def test_a_finding_is_a_fact_without_its_times_and_texts() -> None:
    row = finding(Detector.STALL, rank=1, section="backward", step=8, value=1 / 3, threshold=5.0)
    (found,) = facts_of(record_of(findings=[row])).wire()["findings"]
    assert found == {
        "detector": "stall", "severity": "halt", "rank": 1, "section": "backward", "step": 8,
        "value": 0.333333333, "threshold": 5.0, "source": "default",
        "act": None,
    }  # fmt: skip


def test_a_watch_whose_ticks_disagree_with_the_lines_does_not_reach_them() -> None:
    watch = replace(watch_of(order_of()), agrees=False)
    found = facts_of(replace(record_of(), watch=watch)).watch
    assert found is not None
    assert not found.reaches


def test_steps_are_timed_by_section_and_fp16_may_skip_their_losses() -> None:
    times = dict.fromkeys(("data", "forward", "backward", "optimizer", "wait"), 0.25)
    end = beat(1, 1.0, "step_end", 1, step_sections=times)
    assert facts_with([end]).pace["0"].sections_s == times
    skips = beat(2, 1.0, "progress", 1, skipped=True)
    for dtype, count in (("fp16", 0), ("fp32", 1)):
        missing = facts_with([skips], order_of(sets={"train.dtype": dtype})).ranks["0"].without_loss
        assert missing is not None
        assert missing.count == count


def test_without_a_second_node_none_is_unchecked() -> None:
    for record in (record_of(), replace(record_of(), order=None)):
        found = facts_of(record).preflight
        assert found is not None
        assert found.unchecked == []
