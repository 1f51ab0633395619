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
"""A watcher begins beside the ranks; a slow disk delays it by no more than this."""


def find_clock_differences(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Compare how long a rank ran by its own clock with how long it was observed.

    Time before a late watcher began, and time between two processes of a rank, count for neither.
    """
    watch = record.watch
    for rank, steps in sorted(record.ranks.items()):
        if watch is None or rank not in watch.heard:
            continue
        own_s = added(boot.ended_mono - boot.began_mono for boot in steps.boots)
        heard_s = watch.heard[rank][1] - watch.heard[rank][0]
        late_s = watch.heard_late_s.get(rank, 0.0)
        if len(steps.boots) > 1 and own_s < heard_s:
            heard_s, late_s = max(own_s, watch.heard_alone_s.get(rank, own_s)), 0.0
        least_s = heard_s - late_s
        unheard_s = _unheard_seconds(steps, watch.found_mono.get(rank, 0.0))
        more_s, less_s = least_s - own_s, own_s - unheard_s - heard_s
        if _differs(more_s, own_s, least_s) or _differs(less_s, own_s, heard_s):
            yield Doubt(
                kind=DoubtKind.CLOCKS_DIFFER,
                rank=rank,
                expected=round(heard_s),
                found=round(own_s),
            )


def _differs(apart_s: float, own_s: float, heard_s: float) -> bool:
    return apart_s > max(CLOCKS_DIFFER_S, CLOCKS_DIFFER_RATIO * max(own_s, heard_s))


def _unheard_seconds(steps: RankSteps, found_mono: float) -> float:
    """Return how long the rank's first process may have run before anybody observed it.

    That is until its first step. A program that is only read waits for no watcher: there it is up
    to the last line that the first tick found.

    Args:
        steps: of the rank.
        found_mono: its own clock on the last line that the first tick found; 0 for none.
    """
    first = next(iter(steps.boots), None)
    if first is None:
        return 0.0
    stepped = first.stepped_mono <= first.ended_mono
    start_s = first.stepped_mono - first.began_mono if stepped else 0.0
    if any(seq != NEVER for seq in steps.steps.end_seq):
        return start_s
    found_s = min(found_mono, first.ended_mono) - first.began_mono
    return max(start_s, min(found_s, FOUND_FIRST_S))
