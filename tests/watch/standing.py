"""Ranks where they stand, without lines or a fold: what a detector of deadlines is shown.

A limit of so many seconds can be held against exactly so many, which lines that come every quarter
of a second cannot.

Example::

    rank = standing("backward", for_s=60.25)
    assert halts(look(Stall, [rank])) == [60.0]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import COMPUTE_SECTIONS
from gonogo.contract.order import Order
from gonogo.contract.records import Tick
from gonogo.timeline.rank import RankStream
from gonogo.timeline.step import StepPace
from gonogo.watch.detector import Detector
from gonogo.watch.view import Run, View
from tests.watch.streams import EPOCH, order_of

NOW = 65_536.0


def standing(
    section: str | None,
    *,
    for_s: float,
    rank: int = 0,
    steps: int = 40,
    step_s: float = 1.0,
    **fields: Any,
) -> RankStream:
    """Return a rank that was heard just now, and has been in its section for so long.

    Args:
        section: where it stands.
        for_s: seconds that count for the section, and as computing where it is one.
        rank: its number.
        steps: that it has ended before.
        step_s: seconds of each.
        **fields: what else is known of it.
    """
    pace = StepPace()
    for step in range(steps + 1):
        pace.end(step, step * step_s)
    computing = section in COMPUTE_SECTIONS or not fields.get("labelled", True)
    known = {
        "boot": "boot",
        "labelled": True,
        "step": steps + 1,
        "completed": steps,
        "completed_steps": steps,
        "started_mono": 0.0,
        "heard_mono": NOW,
        "advanced_mono": NOW - for_s,
        "section_mono": NOW - for_s,
        "compute_s": for_s if computing else 0.0,
        "pace": pace,
    }
    return RankStream(rank=rank, section=section, **{**known, **fields})


def look(
    kind: type[Detector[Any]],
    streams: Sequence[RankStream],
    watch: Mapping[str, Any] | None = None,
    *,
    order: Order | None = None,
    **known: Any,
) -> list[Finding]:
    """Return what a detector finds at one tick, at which the ranks stand as they do."""
    assert kind.ticks, "the fold would show it none"
    order = order or order_of(watch or {}, steps=1000, world_size=len(streams))
    run = Run(order=order)
    view = View(run=run, streams={row.rank: row for row in streams}, **known)
    tick = Tick(n=1, mono=NOW, ts=EPOCH)
    own, found = kind(run).observe_tick(kind(run).begin(), tick, view)
    assert own == kind(run).begin(), "a rule of deadlines has nothing to remember"
    return [row for row in found if row.detector == kind.name]


def limits(found: Sequence[Finding], severity: Severity) -> list[float | None]:
    """Return the limits that were passed, of one severity."""
    return [finding.threshold for finding in found if finding.severity is severity]


def halts(found: Sequence[Finding]) -> list[float | None]:
    """Return the limits that were passed and halt."""
    return limits(found, Severity.HALT)


def suspects(found: Sequence[Finding]) -> list[float | None]:
    """Return the limits that were passed and are suspect."""
    return limits(found, Severity.SUSPECT)
