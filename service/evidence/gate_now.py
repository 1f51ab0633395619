"""How a gate stands while its run continues: the judge's criteria over the newest steps.

This is shown and never decides. Only the last `LINES` lines of a run are read.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.decision import CriterionResult
from gonogo.contract.heartbeat import Msg
from gonogo.contract.order import Order
from gonogo.contract.rules import Rules
from gonogo.judge.facts.measure import build_measure
from gonogo.judge.gate.criteria import evaluate
from gonogo.judge.gate.rules import build_rules
from gonogo.timeline.rank_steps import RankSteps, read_lines
from service.db.schema import ProgressRow
from service.evidence.heartbeats import load_newest_lines, load_ranks

LINES = 4_000
"""Heartbeats looked at, over all ranks."""
FRESH_S = 5.0
"""A scrape or a page may show what was so long ago, so that many lookers cost as much as one."""
_MOST = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    lines: int | None
    at_mono: float
    results: list[CriterionResult]


_seen: dict[str, _Seen] = {}
"""By run: what was seen last. Runs have unique ids, so that one table serves every database."""


def load_gate_now(session: Session, run: str, order: Order) -> list[CriterionResult]:
    """Return what each criterion of an order's gate sees so far; nothing before the first step.

    What was seen less than `FRESH_S` ago is seen again, or as long as no more has arrived.
    """
    query = select(ProgressRow.lines).where(ProgressRow.run == run)
    lines, now_mono = session.scalars(query).first(), time.monotonic()
    known = _seen.get(run)
    if known is not None and (known.lines == lines or now_mono - known.at_mono < FRESH_S):
        return known.results
    results = _observe(session, run, order)
    _seen.pop(run, None)
    if len(_seen) >= _MOST:
        del _seen[next(iter(_seen))]  # what was seen longest ago
    _seen[run] = _Seen(lines=lines, at_mono=now_mono, results=results)
    return results


def load_gates_lately(
    session: Session, orders: Mapping[str, Order], spend_s: float
) -> dict[str, list[CriterionResult]]:
    """Return the gates of many runs, each as it was seen last.

    Args:
        spend_s: for so long runs are looked at anew, those that were seen longest ago first; what
            no time was left for shows what was seen before, or is left out.
    """
    until = time.monotonic() + spend_s
    for run in sorted(orders, key=lambda run: _seen[run].at_mono if run in _seen else 0.0):
        if time.monotonic() >= until:
            break
        load_gate_now(session, run, orders[run])
    return {run: _seen[run].results for run in orders if run in _seen}


def _observe(session: Session, run: str, order: Order) -> list[CriterionResult]:
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
    ended = (steps.steps.steps_of(Msg.STEP_END) for steps in ranks.values())
    firsts = [next((step for step, _ in rows), last) for rows in ended]
    first = max(rules.first_step, *firsts)
    return rules.model_copy(update={"first_step": min(first, last), "steps": last})


def _load_steps(session: Session, run: str) -> dict[int, RankSteps]:
    ranks = load_ranks(session, run)
    each = LINES // max(1, len(ranks))
    found = {}
    for rank in ranks:
        newest = list(islice(load_newest_lines(session, run, rank), each))
        found[rank] = read_lines(rank, newest[::-1]).steps
    return found
