"""What would a watcher have seen of lines that nobody watched? The fold by the ranks' own clocks.

Lines are merged by their monotonic clocks, with one offset for each boot (`clocks`): a wall clock
that is set while the run goes on moves nothing, nor does a line that was copied or moved within its
file. Time passes between lines, so that a deadline is found at the moment it was due; what the exit
records tell stands for the probes that nobody made.
"""

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from gonogo.contract.errors import Corrupt
from gonogo.contract.finding import Finding
from gonogo.contract.heartbeat import Heartbeat, parse_heartbeat
from gonogo.contract.order import Order
from gonogo.contract.records import ExitRecord, RankExit
from gonogo.contract.tick import ProcessState, RankProbe, Tick
from gonogo.rundir import RunDir, iter_lines, load_record, open_lines
from gonogo.timeline.offsets import SAME_CLOCK_S, Boot, Clocks
from gonogo.timeline.timeline import Sink
from gonogo.watch.fold import fold, look, start
from gonogo.watch.watch_state import WatchState

INTERVAL_S = 0.25
MAX_SEARCHES = 1000
WRONG_S = 60.0
"""A wall clock that makes so much more of a time than another one does is wrong."""


@dataclass(frozen=True, slots=True)
class _Line:
    """One line with the clock that stands for its receipt."""

    clock: float
    ts: float
    rank: int
    raw: bytes
    heard: float = 0.0
    """Clock of the last line up to this moment."""


def fold_by_clock(
    run_dir: RunDir,
    order: Order,
    ended_at: float | None,
    now: float | None,
    sink: Sink | None = None,
) -> tuple[WatchState, list[Finding]]:
    """Fold lines by their own clocks, letting time pass between them and up to the end.

    Args:
        run_dir: the run's directory.
        order: what was ordered.
        ended_at: Unix seconds of the run's recorded end, if there is one.
        now: Unix seconds at which an unfinished run is looked at.
        sink: is given every line that came for the first time.
    """
    state, findings = start(order, watched=False), list[Finding]()
    last: _Line | None = None
    number = 0
    state.view.goes_on = True
    lines, ended = _merged(run_dir)
    deaths = _deaths(run_dir, order, ended)
    settles = bool(deaths)
    for number, group in _groups(lines):
        if last is not None:
            while deaths and deaths[0][0].clock < group[0].clock:
                last = _die(state, findings, last, deaths.pop(0), number)
            findings += _pass_between(state, last, group[-1], number)
        beats: dict[int, list[bytes]] = {}
        for line in group:
            beats.setdefault(line.rank, []).append(line.raw)
        last = replace(group[-1], heard=group[-1].clock)
        tick = Tick(n=number, mono=last.clock, ts=last.ts, interval_s=INTERVAL_S)
        state, found = fold(state, tick, beats, sink)
        findings += found
    state.view.goes_on = False
    if last is None:
        return state, findings
    end = ended_at if ended_at is not None else None if has_arrived(state) else now
    until = last
    if end is not None and end > last.ts:
        until = _Line(last.clock + end - last.ts, end, 0, b"")
    for line, probe in deaths:
        at = line if line.clock < until.clock else until
        last = _die(state, findings, last, (at, probe), number + 1)
    if until.clock > last.clock:
        findings += _pass_time(state, last.clock, until, number + 1)
    if settles:
        settle_s = state.run.watch.process_death.settle_s + INTERVAL_S
        tick = Tick(n=number + 2, mono=until.clock + settle_s, ts=until.ts + settle_s)
        findings += fold(state, tick, {})[1]
    return state, findings


def _merged(run_dir: RunDir) -> tuple[Iterator[_Line], dict[int, _Line]]:
    """Return the lines of all ranks in the order of one clock, and each rank's last moment."""
    clocks, moved, latest = Clocks(), set[int](), dict[Boot, Heartbeat]()
    for rank in run_dir.ranks():
        last: dict[str, tuple[int, float]] = {}
        for raw in iter_lines(run_dir.heartbeat(rank)):
            try:
                beat = parse_heartbeat(raw)
            except Corrupt:
                continue
            clocks.add(beat)
            seq, mono = last.get(beat.boot, (beat.seq, beat.mono))
            if beat.seq < seq and beat.mono < mono:
                moved.add(rank)
            last[beat.boot] = (beat.seq, beat.mono)
            place = rank, beat.boot
            if place not in latest or beat.mono >= latest[place].mono:
                latest[place] = beat
    offsets = clocks.offsets()
    ranks = [
        _sorted(run_dir, rank, offsets) if rank in moved else _stamped(run_dir, rank, offsets)
        for rank in run_dir.ranks()
    ]
    ended: dict[int, _Line] = {}
    for (rank, boot), beat in latest.items():
        clock = beat.mono + offsets.get((rank, boot), 0.0)
        ended[rank] = _Line(clock, beat.ts, rank, b"")  # of the boot that came last
    return heapq.merge(*ranks, key=lambda line: line.clock), ended


def _stamped(run_dir: RunDir, rank: int, offsets: Mapping[Boot, float]) -> Iterator[_Line]:
    """Yield one rank's lines with their clock; an unreadable one goes with the one before it."""
    latest = float("-inf")
    for line, _ in _clocked(run_dir, rank, offsets):
        latest = max(latest, line.clock)
        yield _Line(latest, line.ts, rank, line.raw)


def _sorted(run_dir: RunDir, rank: int, offsets: Mapping[Boot, float]) -> Iterator[_Line]:
    """Yield the same of a file whose lines were moved: where each begins is kept, and no line."""
    rows = sorted(
        (line.clock, at, len(line.raw), line.ts) for line, at in _clocked(run_dir, rank, offsets)
    )
    with open_lines(run_dir.heartbeat(rank)) as stream:
        for clock, at, size, ts in rows:
            stream.seek(at)
            yield _Line(clock, ts, rank, stream.read(size))


def _clocked(
    run_dir: RunDir, rank: int, offsets: Mapping[Boot, float]
) -> Iterator[tuple[_Line, int]]:
    """Yield one rank's lines as they stand, and at which byte each begins."""
    clock = ts = float("-inf")
    end = 0
    for raw in iter_lines(run_dir.heartbeat(rank)):
        begin, end = end, end + len(raw)
        try:
            beat = parse_heartbeat(raw)
        except Corrupt:
            if clock == float("-inf"):
                continue
        else:
            clock, ts = beat.mono + offsets.get((beat.rank, beat.boot), 0.0), beat.ts
        yield _Line(clock, ts, rank, raw), begin


def _groups(lines: Iterator[_Line]) -> Iterator[tuple[int, list[_Line]]]:
    """Yield lines by the tick that would have brought them."""
    first = next(lines, None)
    if first is None:
        return
    origin = first.clock

    def everything() -> Iterator[_Line]:
        yield first
        yield from lines

    for number, group in groupby(everything(), lambda row: int((row.clock - origin) / INTERVAL_S)):
        yield number + 1, list(group)


def _pass_between(state: WatchState, since: _Line, until: _Line, number: int) -> list[Finding]:
    """Let time pass up to the next line: what was due before all fell silent is not unknown."""
    clock = since.heard + state.run.watch.alive_lost.suspect_s - INTERVAL_S
    if not since.clock < clock < until.clock:
        return _pass_time(state, since.clock, until, number)
    silent = _Line(clock, until.ts - (until.clock - clock), 0, b"")
    findings = _pass_time(state, since.clock, silent, number)
    return findings + _pass_time(state, clock, until, number)


def _die(
    state: WatchState,
    findings: list[Finding],
    last: _Line,
    death: tuple[_Line, RankProbe],
    number: int,
) -> _Line:
    """Let time pass until a rank ended, and its exit record stand for the probe of it."""
    at, probe = death
    at = at if at.clock > last.clock else last
    findings += _pass_between(state, last, at, number)
    tick = Tick(n=number, mono=at.clock, ts=at.ts, interval_s=INTERVAL_S, ranks=[probe])
    findings += fold(state, tick, {})[1]
    return replace(at, heard=last.heard)


def _pass_time(state: WatchState, since: float, until: _Line, number: int) -> list[Finding]:
    """Let time pass without lines, and find each finding at the time it was due.

    An empty tick changes nothing unless it finds something, so the first one is searched for by
    halving.
    """
    findings: list[Finding] = []
    low = since
    for _ in range(MAX_SEARCHES):
        if until.clock - low <= INTERVAL_S or not look(state, _at(until, until.clock, number)):
            break
        high = until.clock
        while high - low > INTERVAL_S:
            middle = (low + high) / 2
            if look(state, _at(until, middle, number)):
                high = middle
            else:
                low = middle
        findings += fold(state, _at(until, high, number), {})[1]
        low = high
    return findings


def _at(until: _Line, clock: float, number: int) -> Tick:
    ts = until.ts - (until.clock - clock)
    return Tick(n=number, mono=clock, ts=ts, interval_s=INTERVAL_S)


def has_arrived(state: WatchState) -> bool:
    """Say whether every rank that was observed is done or reached the last step."""
    steps = state.run.order.last_step
    ranks = state.streams.values()
    return bool(ranks) and all(row.done or row.completed >= steps for row in ranks)


def _deaths(
    run_dir: RunDir, order: Order, ended: Mapping[int, _Line]
) -> list[tuple[_Line, RankProbe]]:
    """Return when each rank ended that left a record of it, the first one first.

    That is by the wall clock, which its lines have, too. A rank without a line is asked for where
    it ended badly: nobody knows whether it was to write any.
    """
    said, found = _exits_of(run_dir), list[tuple[_Line, RankProbe]]()
    for rank in range(order.world_size) if ended else ():
        last = ended.get(rank)
        try:
            record = load_record(run_dir.rank_exit(rank), RankExit)
        except Corrupt:
            continue
        record = record or said.get(str(rank))
        if record is None or (last is None and (record.code, record.signal) == (0, None)):
            continue
        probe = RankProbe(
            rank=rank,
            state=ProcessState.DEAD,
            code=record.code,
            signal=record.signal,
            exit_at=record.at,
            lost_peer=record.lost_peer,
        )
        near = last or ended[min(ended)]
        clock = _by_wall(near, record.at) if last is None else _ended_at(record.at, last, ended)
        found.append((_Line(clock, near.ts + clock - near.clock, rank, b""), probe))
    return sorted(found, key=lambda row: (row[0].clock, row[1].exit_at or 0.0))


def _ended_at(at: float, last: _Line, ended: Mapping[int, _Line]) -> float:
    """Return the clock of a rank's exit stamp, by its own wall clock or by a peer's.

    One before the rank's last line is that of an earlier process, or by a clock that was set: when
    this one ended nobody knows then, but that it had when the run did.
    """
    own, *others = (_by_wall(row, at) for row in (last, *ended.values()))
    least = last.clock - SAME_CLOCK_S
    earliest = min((clock for clock in (own, *others) if clock >= least), default=math.inf)
    return max(last.clock, own if least <= own <= earliest + WRONG_S else earliest)


def _by_wall(line: _Line, at: float) -> float:
    return line.clock + at - line.ts


def _exits_of(run_dir: RunDir) -> Mapping[str, RankExit]:
    """Return what exit.json says of the ranks: one that was killed may have left no record."""
    try:
        record = load_record(run_dir.exit, ExitRecord)
    except (Corrupt, OSError):
        return {}
    rows = {} if record is None else record.ranks
    return {rank: row for rank, row in rows.items() if (row.code, row.signal) != (None, None)}


def watch_on(state: WatchState, *, now: float) -> list[Finding]:
    """Return what the watch would have found had it gone on without lines until `now`.

    A directory without exit.json may be a run that goes on, or one whose watcher is gone: its
    files are then all there is, and their silence is the ranks' own.

    Args:
        state: after the last recorded tick or line; used up.
        now: Unix seconds; before the last line: nothing.
    """
    ranks = state.streams.values()
    if not ranks or has_arrived(state):
        return []
    heard_mono = max(row.heard_mono for row in ranks)
    heard_ts = max(row.heard_ts for row in ranks)
    if now <= heard_ts:
        return []
    state.view.watched = False
    until = _Line(heard_mono + now - heard_ts, now, 0, b"")
    return _pass_time(state, heard_mono, until, 1)
