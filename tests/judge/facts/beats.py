"""Lines of a rank, and the facts of a run that has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gonogo.contract.finding import Doubt
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.order import Order
from gonogo.judge.facts.contradictions import find_contradictions
from gonogo.judge.facts.record import RunRecord
from gonogo.judge.gate.rules import build_rules
from gonogo.timeline.rank_steps import RankSteps
from tests.data.make_runs import order_of

ORDER = order_of()


def beat(seq: int, mono: float = 0.0, msg: str = "alive", **fields: Any) -> Heartbeat:
    base = {"pid": 1, "rank": 0, "boot": "b", "step": 1}
    return Heartbeat(ts=mono, mono=mono, seq=seq, msg=msg, **{**base, **fields})


def told(
    ranks: dict[int, list[Heartbeat]], order: Order | None = ORDER, **fields: Any
) -> list[Doubt]:
    """The contradictions of a run with these lines."""
    steps = {rank: RankSteps(beats) for rank, beats in ranks.items()}
    record = RunRecord(order=order, ranks=steps, **fields)
    return find_contradictions(record, build_rules(order))


def seen(doubts: Iterable[Doubt]) -> list[tuple[str, int | None]]:
    """Kind and rank of each doubt."""
    return [(row.kind.value, row.rank) for row in doubts]


def steps_that(*says: dict[str, Any]) -> list[Heartbeat]:
    """One process's progress lines, with the given fields of each step."""
    lines = [beat(2 + n, n, "progress", **{"step": n + 1, **row}) for n, row in enumerate(says)]
    return [beat(1, msg="boot", step=0, run=ORDER.run, attempt=ORDER.attempt), *lines]


def of_rank(rank: int, lines: list[Heartbeat], **boot: Any) -> list[Heartbeat]:
    """The same lines of another rank, whose boot line says `boot`, too."""
    told_by = [row.model_copy(update={"pid": 7 + rank, "rank": rank}) for row in lines]
    return [told_by[0].model_copy(update=boot), *told_by[1:]]
