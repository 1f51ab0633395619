"""What does the silence after a run's last line say? The watch, continued to a later time.

A directory without exit.json may be a run that goes on, or one whose watcher is gone. Its files are
then all there is: time passes over them up to the moment at which somebody looks.
"""

from dataclasses import replace

from gonogo.contract.finding import Finding
from gonogo.contract.tick import Tick
from gonogo.judge.watch import WatchState, fold

FINE_S = 0.25
GROWTH = 0.02
"""Looks come every quarter of a second at first, then every fiftieth of the time passed: a month
takes under a thousand, and no finding is later than 2 % of its deadline."""


def has_arrived(state: WatchState, steps: int) -> bool:
    """Say whether every rank that was observed is done or reached the last step."""
    ranks = state.streams.values()
    return bool(ranks) and all(row.done or row.completed >= steps for row in ranks)


def watch_on(state: WatchState, *, now: float) -> list[Finding]:
    """Return what the watch would have found had it gone on without lines until `now`.

    Args:
        state: after the last recorded tick or line.
        now: Unix seconds; before the last line: nothing.
    """
    ranks = state.streams.values()
    if not ranks:
        return []
    heard_mono = max(row.heard_mono for row in ranks)
    heard_ts = max(row.heard_ts for row in ranks)
    state = replace(state, watched=False)
    findings: list[Finding] = []
    passed_s, number = 0.0, 0
    while passed_s < now - heard_ts:
        number += 1
        passed_s = min(now - heard_ts, passed_s + max(FINE_S, GROWTH * passed_s))
        tick = Tick(n=number, mono=heard_mono + passed_s, ts=heard_ts + passed_s)
        state, found = fold(state, tick, {})
        findings += found
    return findings
