"""Fold lines that nobody watched, by the ranks' own clocks.

Lines are merged by their monotonic clocks, with one offset for each process: by how much the wall
clock was ahead at its first line. So a wall clock that is set while a process runs changes nothing.
Time passes between lines, so a deadline is found at the moment at which it was due.

Not covered: deaths. Only a watcher's probes show them; the exit records are evidence for the gate.
Wall clocks of several hosts that differ, or a wall clock that is set between two processes.
"""

import heapq
from bisect import bisect_left
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.contract.tick import Tick
from gonogo.rundir import RunDir, iter_lines
from gonogo.timeline.lines import Line
from gonogo.timeline.timeline import Sink
from gonogo.watch.fold import WatchState, fold_beats, look, start
from gonogo.watch.view import View

INTERVAL_S = 0.25
MOST_FOUND = 1000
"""Moments between two lines at which something is found."""
_Placed = tuple[float, int, Line]
"""When a line was written by the run's clock, its rank, and the line."""


def fold_by_clock(
    run_dir: RunDir, order: Order, sink: Sink | None = None
) -> tuple[WatchState, list[Finding]]:
    """Fold lines by their own clocks, with the time between them.

    Args:
        run_dir: the run's directory.
        order: what was ordered.
        sink: receives every line that came for the first time.
    """
    state, findings = start(order, watched=False), list[Finding]()
    ranks = [_placed(run_dir, rank, state.view) for rank in run_dir.ranks()]
    merged = heapq.merge(*ranks, key=itemgetter(0))
    last: Tick | None = None
    for _, rows in groupby(merged, lambda row: row[0] // INTERVAL_S):
        beats: dict[int, list[Line]] = {}
        for clock, rank, line in rows:
            beats.setdefault(rank, []).append(line)
            tick = Tick(n=0, mono=clock, ts=line.beat.ts, interval_s=INTERVAL_S)
        if last is not None:
            findings += _pass_time(state, last, tick.mono)
        findings += fold_beats(state, tick, beats, sink)[1]
        last = tick
    return state, findings


def _placed(run_dir: RunDir, rank: int, view: View) -> Iterator[_Placed]:
    """Yield one rank's lines with their clock; the view counts what is no line."""
    clock, ahead_s = float("-inf"), dict[str, float]()
    for raw in iter_lines(run_dir.heartbeat(rank)):
        for line in view.parse(rank, [raw], clock):
            beat = line.beat
            clock = max(clock, beat.mono + ahead_s.setdefault(beat.boot, beat.ts - beat.mono))
            yield clock, rank, line


def _pass_time(state: WatchState, last: Tick, until_mono: float) -> list[Finding]:
    """Let time pass without lines, and find each finding at the time at which it was due.

    An empty tick changes nothing unless it finds something. So the first one that does is searched
    by bisection.
    """
    findings: list[Finding] = []

    def after(count: int) -> Tick:
        mono = min(until_mono, low + (count + 1) * INTERVAL_S)
        return last.model_copy(update={"mono": mono, "ts": last.ts + mono - last.mono})

    low = last.mono
    for _ in range(MOST_FOUND):
        count = int((until_mono - low) / INTERVAL_S)
        if count < 1 or not look(state, after(count)):
            break
        due = bisect_left(range(count), True, key=lambda number: bool(look(state, after(number))))
        tick = after(due)
        findings += fold_beats(state, tick, {})[1]
        low = tick.mono
    return findings


def watch_on(state: WatchState, *, now: float) -> list[Finding]:
    """Return what the watch would have found had it continued without lines until `now`.

    A directory without exit.json may be a run that is active, or one whose watcher is gone. Then
    its files are all there is, and their silence is that of the ranks. If every rank of a run is
    done or reached its last step, no line is due.

    Args:
        state: after the last recorded tick or line; used up.
        now: Unix seconds; before the last line: nothing.
    """
    ranks, steps = state.streams.values(), state.run.order.last_step
    if all(row.done or row.completed >= steps for row in ranks):
        return []
    mono, ts = max(row.heard_mono for row in ranks), max(row.heard_ts for row in ranks)
    state.view.watched, state.view.at_end = False, True
    last = Tick(n=1, mono=mono, ts=ts, interval_s=INTERVAL_S)
    return _pass_time(state, last, mono + now - ts)
