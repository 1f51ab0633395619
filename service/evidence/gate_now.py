"""How does a gate stand while its run goes on? Its criteria over the newest steps, by the judge.

What is shown, never what decides: a long run is looked at through its last `LINES` lines, and
every criterion as if the run ended at its present step.
"""

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.decision import CriterionResult
from gonogo.contract.order import Order
from gonogo.contract.rules import Rules
from gonogo.judge.evidence.lines import read_lines
from gonogo.judge.evidence.measure import build_measure
from gonogo.judge.evidence.steps import RankSteps
from gonogo.judge.gate.criteria import evaluate
from gonogo.judge.gate.rules import build_rules
from service.db.schema import HeartbeatRow

LINES = 4_000
"""Heartbeats looked at, over all ranks."""


def load_gate_now(session: Session, run: str, order: Order) -> list[CriterionResult]:
    """Return what each criterion of an order's gate sees so far; nothing before the first step."""
    rules = build_rules(order)
    if not order.gate:
        return []
    ranks = _load_steps(session, run)
    last = min((steps.last_step for steps in ranks.values()), default=0)
    if len(ranks) < order.world_size or last < rules.first_step:
        return []
    seen = _as_if_it_ended(rules, ranks, last)
    return [
        evaluate(criterion, build_measure(criterion, ranks, seen), order.world_size)
        for criterion in order.gate
    ]


def _as_if_it_ended(rules: Rules, ranks: dict[int, RankSteps], last: int) -> Rules:
    """Return the rules of a run of the steps that every rank has whole."""
    firsts = [steps.first_step or last for steps in ranks.values()]
    first = max(rules.first_step, *firsts)
    return rules.model_copy(update={"first_step": min(first, last), "steps": last})


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
    return {rank: read_lines(rank, rows[::-1]).steps for rank, rows in sorted(lines.items())}
