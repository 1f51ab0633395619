"""Records built in memory from the generator's lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gonogo.contract.canonical import wire_line
from gonogo.contract.criterion import Criterion
from gonogo.contract.facts import Facts
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.order import Order
from gonogo.contract.outcome import Actor, Detector, OutcomeCode
from gonogo.contract.records import (
    PREFLIGHT_CHECKS,
    SANITY,
    Check,
    CheckOutcome,
    ExitRecord,
    FileSeal,
    Preflight,
    RankExit,
    WatchStart,
)
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.facts.record import RunRecord, with_lines, with_steps
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import Judgement, judge
from gonogo.watch.offline_fold import WatchRecord
from tests.data.make_runs import Rank, healthy_ranks, order_of

# Build the record of a run from lines and small records in memory.


def build_run_record(
    order: Order | None,
    lines: Mapping[int, Iterable[bytes | str]],
    exit: ExitRecord | None = None,
    rank_exits: Mapping[int, RankExit] | None = None,
    preflight: Preflight | None = None,
    findings: Iterable[Finding] = (),
    watch: WatchRecord | None = None,
) -> RunRecord:
    """Return the record of a run from lines and small records in memory; nothing is folded.

    Args:
        order: what was ordered.
        lines: rank → its heartbeat lines (raw, or their canonical JSON), in any order.
        exit: how the run ended; None while it has not, or when nobody wrote it down.
        rank_exits: rank → its own exit record; those of `exit` when None.
        preflight: what was checked before the launch.
        findings: every finding of the run.
        watch: what the recorded ticks amount to; None without a watcher.
    """
    if rank_exits is None and exit is not None:
        rank_exits = {int(rank): row for rank, row in exit.ranks.items()}
    record = RunRecord(
        order=order,
        ranks={},
        exit=exit,
        rank_exits=rank_exits or {},
        preflight=preflight,
        findings=tuple(sorted(findings, key=lambda row: (row.at, row.key))),
    )
    record = with_lines(record, lines)
    return with_steps(record, record.ranks, watch)


# Records built in memory from the generator's lines.


PREFLIGHT = Preflight(
    passed=True,
    checks=[
        Check(id=name, outcome=CheckOutcome.PASS, text="well")
        for name in (*PREFLIGHT_CHECKS, SANITY)
    ],
)
SEAL = FileSeal(bytes=1, sha256="5" * 64)
"""Stands for every small file."""


def exit_record(
    reason: OutcomeCode = OutcomeCode.COMPLETED, *, by: Actor = Actor.TRAINER, code: int = 0
) -> ExitRecord:
    ranks = {str(rank): RankExit(code=code, at=1.0) for rank in (0, 1)}
    order = order_of()
    return ExitRecord(
        code=code,
        ended_at=1.0,
        ended_by=by,
        reason=reason,
        ranks=ranks,
        run=order.run,
        attempt=order.attempt,
        order_sha256=SEAL.sha256,
    )


def watch_of(order: Order) -> WatchRecord:
    """A watch without a fault."""
    start = WatchStart(run=order.run, attempt=order.attempt, order_sha256=SEAL.sha256)
    return WatchRecord(
        ticks=9,
        starts=[start],
        chained=True,
        digest="7" * 64,
        agrees=True,
        reaches=True,
        files={"order.json": SEAL, "exit.json": SEAL},
    )


def finding(detector: Detector, severity: Severity = Severity.HALT, **fields: Any) -> Finding:
    return Finding(
        detector=detector,
        severity=severity,
        at=1.0,
        key=f"{detector}/{severity}",
        text="",
        **fields,
    )


def lines_of(ranks: Iterable[Rank]) -> dict[int, list[bytes]]:
    return {rank.rank: [wire_line(line) for line in rank.lines] for rank in ranks}


def with_gate(order: Order, *rows: dict[str, Any]) -> Order:
    """The order with only these criteria in its gate; without any, one that passes by one step."""
    gate = rows or (
        {"id": "steps", "metric": "steps_completed", "aggregate": "last", "pass_above": 1.0},
    )
    return order.model_copy(update={"gate": [Criterion.model_validate(row) for row in gate]})


def record_of(
    order: Order | None = None,
    ranks: list[Rank] | None = None,
    *,
    lines: dict[int, list[bytes]] | None = None,
    exit: ExitRecord | None = None,
    findings: Iterable[Finding] = (),
    preflight: Preflight | None = PREFLIGHT,
) -> RunRecord:
    """A healthy, completed run, except for the given fields."""
    order = order or order_of()
    if lines is None:
        lines = lines_of(ranks if ranks is not None else healthy_ranks(order))
    record = build_run_record(
        order,
        lines,
        exit or exit_record(),
        preflight=preflight,
        findings=findings,
        watch=watch_of(order),
    )
    return replace(record, watch_sealed=True, files={"order.json": SEAL, "exit.json": SEAL})


def facts_of(record: RunRecord) -> Facts:
    """The facts of a record, by the rules of its own order."""
    return build_facts(record, build_rules(record.order))


def judged(record: RunRecord) -> Judgement:
    rules = build_rules(record.order)
    return judge(build_facts(record, rules), rules)


def outcomes(judgement: Judgement) -> dict[str, str]:
    return {row.id: row.outcome.value for row in judgement.criteria}
