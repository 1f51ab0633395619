"""Fold lines that nobody watched, by the ranks' own clocks.

Lines are merged by their monotonic clocks, with one offset for each process: by how much the wall
clock was ahead at its start. So a wall clock that is set while a process runs changes nothing. Time
passes between lines, so a deadline is found at the moment at which it was due.

Not covered: deaths. Only a watcher's probes show them; the exit records are evidence for the gate.
Wall clocks of several hosts that differ, or a wall clock that is set between two processes.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median

from gonogo.contract.errors import Corrupt
from gonogo.contract.finding import Finding
from gonogo.contract.heartbeat import parse_heartbeat
from gonogo.contract.order import Order
from gonogo.contract.tick import Tick
from gonogo.rundir import RunDir, iter_lines
from gonogo.timeline.timeline import Sink
from gonogo.watch.fold import WatchState, fold, look, start

INTERVAL_S = 0.25
MAX_SEARCHES = 1000
SAME_CLOCK_S = 5.0
"""Processes whose wall clocks are ahead of their own by the same, give or take this, share one."""
FIRST_LINES = 16
"""Lines of a process whose stamps place its clock."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """A moment by the run's clock and by the wall clock, and the line that was written then."""

    clock: float
    ts: float
    rank: int = 0
    raw: bytes = b""

    def at(self, clock: float) -> "_Moment":
        """Return another moment, by the same wall clock."""
        return _Moment(clock, self.ts + clock - self.clock)

    def tick(self, number: int) -> Tick:
        return Tick(n=number, mono=self.clock, ts=self.ts, interval_s=INTERVAL_S)


def fold_by_clock(
    run_dir: RunDir,
    order: Order,
    ended_at: float | None,
    now: float | None,
    sink: Sink | None = None,
) -> tuple[WatchState, list[Finding]]:
    """Fold lines by their own clocks, with the time between them and up to the end.

    Args:
        run_dir: the run's directory.
        order: what was ordered.
        ended_at: Unix seconds of the run's recorded end, if there is one.
        now: Unix seconds at which an unfinished run is looked at.
        sink: receives every line that came for the first time.
    """
    state, findings = start(order, watched=False), list[Finding]()
    last: _Moment | None = None
    number = 0
    for number, group in _groups(_merged(run_dir)):
        if last is not None:
            findings += _pass_time(state, last.clock, group[-1], number)
        beats: dict[int, list[bytes]] = {}
        for line in group:
            beats.setdefault(line.rank, []).append(line.raw)
        last = group[-1]
        state, found = fold(state, last.tick(number), beats, sink)
        findings += found
    state.view.at_end = True
    end = ended_at if ended_at is not None else None if has_arrived(state) else now
    if last is not None and end is not None and end > last.ts:
        until = last.at(last.clock + end - last.ts)
        findings += _pass_time(state, last.clock, until, number + 1)
    return state, findings


def _merged(run_dir: RunDir) -> Iterator[_Moment]:
    """Yield the lines of all ranks in the order of one clock."""
    placed: list[float] = []
    ranks = [_stamped(run_dir, rank, placed) for rank in run_dir.ranks()]
    return heapq.merge(*ranks, key=lambda line: line.clock)


def _stamped(run_dir: RunDir, rank: int, placed: list[float]) -> Iterator[_Moment]:
    """Yield one rank's lines with their clock; an unreadable one goes with the one before it."""
    clock = ts = float("-inf")
    offsets = _offsets(run_dir.heartbeat(rank), placed)
    for raw in iter_lines(run_dir.heartbeat(rank)):
        try:
            beat = parse_heartbeat(raw)
        except Corrupt:
            if clock == float("-inf"):
                continue
        else:
            clock, ts = max(clock, beat.mono + offsets[beat.boot]), beat.ts
        yield _Moment(clock, ts, rank, raw)


def _offsets(path: Path, placed: list[float]) -> dict[str, float]:
    """Return boot → seconds by which the wall clock was ahead of its own when it began.

    Args:
        path: a heartbeat file.
        placed: offsets of the boots before, which one on the same clock shares; grows.
    """
    ahead: dict[str, list[float]] = {}
    for raw in iter_lines(path):
        try:
            beat = parse_heartbeat(raw)
        except Corrupt:
            continue
        first = ahead.setdefault(beat.boot, [])
        if len(first) < FIRST_LINES:
            first.append(beat.ts - beat.mono)
    found = {}
    for boot, seconds in ahead.items():
        own_s = median(seconds)
        known = (offset for offset in placed if abs(offset - own_s) <= SAME_CLOCK_S)
        found[boot] = next(known, own_s)
        placed.append(found[boot])
    return found


def _groups(lines: Iterator[_Moment]) -> Iterator[tuple[int, list[_Moment]]]:
    """Yield lines by the tick that would have brought them."""
    first = next(lines, None)
    if first is None:
        return
    yield 1, [first]
    by_tick = groupby(lines, lambda row: int((row.clock - first.clock) / INTERVAL_S))
    yield from ((number + 2, list(group)) for number, group in by_tick)


def _pass_time(state: WatchState, since: float, until: _Moment, number: int) -> list[Finding]:
    """Let time pass without lines, and find each finding at the time at which it was due.

    An empty tick changes nothing unless it finds something. So the first one that does is searched
    by halving.
    """
    findings: list[Finding] = []
    low = since
    for _ in range(MAX_SEARCHES):
        high = until.clock
        if high - low <= INTERVAL_S or not look(state, until.tick(number)):
            break
        while high - low > INTERVAL_S:
            middle = (low + high) / 2
            if look(state, until.at(middle).tick(number)):
                high = middle
            else:
                low = middle
        findings += fold(state, until.at(high).tick(number), {})[1]
        low = high
    return findings


def has_arrived(state: WatchState) -> bool:
    """Say whether every rank that was observed is done or reached the last step."""
    steps = state.run.order.last_step
    ranks = state.streams.values()
    return bool(ranks) and all(row.done or row.completed >= steps for row in ranks)


def watch_on(state: WatchState, *, now: float) -> list[Finding]:
    """Return what the watch would have found had it continued without lines until `now`.

    A directory without exit.json may be a run that is active, or one whose watcher is gone. Then
    its files are all there is, and their silence is that of the ranks.

    Args:
        state: after the last recorded tick or line; used up.
        now: Unix seconds; before the last line: nothing.
    """
    ranks = state.streams.values()
    if not ranks or has_arrived(state):
        return []
    last = _Moment(max(row.heard_mono for row in ranks), max(row.heard_ts for row in ranks))
    if now <= last.ts:
        return []
    state.view.watched, state.view.at_end = False, True
    return _pass_time(state, last.clock, last.at(last.clock + now - last.ts), 1)
