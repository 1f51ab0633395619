"""Do a rank's stamps fit the clock of the watcher that received them?"""

from collections.abc import Iterator

from gonogo.contract.canonical import added
from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.rules import Rules
from gonogo.judge.facts.record import RunRecord
from gonogo.judge.facts.steps import RankSteps
from gonogo.timeline.columns import NEVER

CLOCKS_DIFFER_RATIO = 0.2
CLOCKS_DIFFER_S = 5.0
"""Receipts lag by a tick or two: shorter differences mean nothing."""
FOUND_FIRST_S = 60.0
"""A program that is only read starts before its watcher, by no more than this."""


def find_clock_differences(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Compare how long a rank ran by its own clock with how long it was observed.

    Time before a late watcher began, and time between two processes of a rank, count for neither.
    """
    watch = record.watch
    for rank, steps in sorted(record.ranks.items()):
        if watch is None or rank not in watch.heard:
            continue
        own_s = added(boot.ended_mono - boot.began_mono for boot in steps.boots)
        heard = watch.heard[rank]
        heard_s = heard.last_mono - heard.first_mono
        more_s, less_s = heard.least_s - own_s, own_s - _unheard_seconds(steps) - heard_s
        if _differs(more_s, own_s, heard.least_s) or _differs(less_s, own_s, heard_s):
            yield Doubt(
                kind=DoubtKind.CLOCKS_DIFFER,
                rank=rank,
                expected=round(heard_s),
                found=round(own_s),
            )


def _differs(apart_s: float, own_s: float, heard_s: float) -> bool:
    return apart_s > max(CLOCKS_DIFFER_S, CLOCKS_DIFFER_RATIO * max(own_s, heard_s))


def _unheard_seconds(steps: RankSteps) -> float:
    """Return how long the rank's first process may have run before anybody observed it.

    That is until its first step. A program that is only read waits for no watcher.
    """
    first = next(iter(steps.boots), None)
    if first is None:
        return 0.0
    stepped = first.stepped_mono <= first.ended_mono
    start_s = first.stepped_mono - first.began_mono if stepped else 0.0
    ends_steps = any(seq != NEVER for seq in steps.steps.end_seq)
    return start_s if ends_steps else max(start_s, FOUND_FIRST_S)
