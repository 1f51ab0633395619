"""How does a gate stand while its run goes on? Its criteria over the newest steps, by the judge.

What is shown, never what decides: a long run is looked at through its last `LINES` lines, and
every criterion as if the run ended at its present step.
"""

from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.decision import CriterionResult
from gonogo.contract.heartbeat import Msg
from gonogo.contract.order import Order
from gonogo.judge.criteria import evaluate
from gonogo.judge.measure import build_measure
from gonogo.judge.record import read_stream
from gonogo.judge.rules import build_rules
from gonogo.judge.scope import Scope, build_scope
from gonogo.judge.steps import RankSteps, build_rank_steps
from service.db.schema import HeartbeatRow

LINES = 4_000
"""Heartbeats looked at, over all ranks."""


def load_gate_now(session: Session, run: str, order: Order) -> list[CriterionResult]:
    """Return what each criterion of an order's gate sees so far; nothing before the first step."""
    scope = build_scope(build_rules(order))
    if scope is None or not order.gate:
        return []
    ranks = _load_steps(session, run)
    last = min((steps.last_step for steps in ranks.values()), default=0)
    if len(ranks) < order.world_size or last < scope.first_step:
        return []
    seen = _as_if_it_ended(scope, ranks, last)
    return [
        evaluate(criterion, build_measure(criterion, ranks, seen), order.world_size)
        for criterion in order.gate
    ]


def _as_if_it_ended(scope: Scope, ranks: dict[int, RankSteps], last: int) -> Scope:
    """Return the scope of the steps that every rank has whole."""
    firsts = [min(steps.said[Msg.STEP_END], default=last) for steps in ranks.values()]
    first = max(scope.first_step, *firsts)
    return replace(scope, first_step=min(first, last), last_step=last)


def _load_steps(session: Session, run: str) -> dict[int, RankSteps]:
    query = (
        select(HeartbeatRow.rank, HeartbeatRow.line)
        .where(HeartbeatRow.run == run)
        .order_by(HeartbeatRow.n.desc())
        .limit(LINES)
    )
    lines: dict[int, list[str]] = {}
    for rank, line in session.execute(query):
        lines.setdefault(rank, []).append(line)
    return {
        rank: build_rank_steps(read_stream(rank, rows[::-1]).in_time())
        for rank, rows in sorted(lines.items())
    }
