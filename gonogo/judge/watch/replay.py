"""What does a run directory's watch say? The same fold, over the files.

With `watch.jsonl` the recorded ticks are folded with the very bytes that each brought, and nothing
else: live and offline findings are equal by construction. Without it the lines' own clocks stand
for receipt (monotonic where all ranks share one, else wall), time passes between them, and what
needs probes is UNKNOWN and said so.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from pydantic import ValidationError

from gonogo.contract.errors import Corrupt, NotFound
from gonogo.contract.finding import Finding
from gonogo.contract.heartbeat import Heartbeat, parse_heartbeat
from gonogo.contract.order import Order
from gonogo.contract.outcome import Detector
from gonogo.contract.records import ExitRecord
from gonogo.contract.rundir import RunDir, load_all_lines, load_record
from gonogo.contract.tick import Tick
from gonogo.judge.watch.fold import WatchState, armed, fold, start
from gonogo.judge.watch.registry import REGISTRY

INTERVAL_S = 0.25
SAME_CLOCK_S = 5.0
MAX_SEARCHES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A folded directory."""

    state: WatchState
    findings: list[Finding]
    not_observed: list[str]


def replay_watch(
    path: Path, *, order: Order | None = None, now: float | None = None
) -> list[Finding]:
    """Return the findings of a run directory; see `replay_run`."""
    return replay_run(path, order=order, now=now).findings


def replay_run(path: Path, *, order: Order | None = None, now: float | None = None) -> Replay:
    """Fold a whole run directory.

    Args:
        path: the run directory.
        order: instead of `order.json`.
        now: Unix seconds at which an unfinished run without `watch.jsonl` is looked at; None
            stops the clock at the last line.

    Raises:
        NotFound: there is no order.json and no order was given.
        Corrupt: order.json or exit.json cannot be read.
    """
    run_dir = RunDir(path)
    order = order or load_record(run_dir.order, Order)
    if order is None:
        raise NotFound(f"{path}: no order.json, so nobody knows what was to be watched")
    if run_dir.watch.is_file():
        return _replay_recorded(run_dir, order)
    return _replay_lines(run_dir, order, load_record(run_dir.exit, ExitRecord), now)


def _replay_recorded(run_dir: RunDir, order: Order) -> Replay:
    """Fold the recorded ticks, each with its bytes."""
    files = {rank: _Bytes(run_dir.heartbeat(rank)) for rank in run_dir.ranks()}
    state, findings, unreadable = start(order), list[Finding](), 0
    for raw in load_all_lines(run_dir.watch):
        try:
            tick = Tick.model_validate_json(raw)
        except ValidationError:
            unreadable += 1
            continue
        beats = {
            rank: file.lines_until(tick.upto[str(rank)])
            for rank, file in files.items()
            if str(rank) in tick.upto
        }
        state, found = fold(state, tick, beats)
        findings += found
    missed = not_observed(state)
    if unreadable:
        missed.append(f"watch.jsonl: {unreadable} line(s) that cannot be read")
    return Replay(state=state, findings=findings, not_observed=missed)


class _Bytes:
    """A heartbeat file, read once and given out up to where each tick had read it."""

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()
        self._offset = 0

    def lines_until(self, end: int) -> list[bytes]:
        part = self._data[self._offset : end]
        self._offset = max(self._offset, end)
        return part.splitlines()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One line with the clock that stands for its receipt."""

    clock: float
    ts: float
    rank: int
    raw: bytes


def _replay_lines(
    run_dir: RunDir, order: Order, exit_record: ExitRecord | None, now: float | None
) -> Replay:
    """Fold lines by their own clocks, letting time pass between them and up to the end."""
    lines = _stamped(run_dir)
    state, findings = start(order, watched=False), list[Finding]()
    if not lines:
        return Replay(state=state, findings=findings, not_observed=not_observed(state))
    clock = lines[0].clock
    for number, group in _groups(lines):
        state, found = _pass_time(state, clock, group[-1], number)
        findings += found
        clock = group[-1].clock
        beats: dict[int, list[bytes]] = {}
        for line in group:
            beats.setdefault(line.rank, []).append(line.raw)
        tick = Tick(n=number, mono=clock, ts=group[-1].ts, interval_s=INTERVAL_S)
        state, found = fold(state, tick, beats)
        findings += found
    last = lines[-1]
    end = exit_record.ended_at if exit_record else None if _arrived(state) else now
    if end is not None and end > last.ts:
        until = _Line(clock=last.clock + end - last.ts, ts=end, rank=0, raw=b"")
        state, found = _pass_time(state, clock, until, len(lines) + 1)
        findings += found
    return Replay(state=state, findings=findings, not_observed=not_observed(state))


def _stamped(run_dir: RunDir) -> list[_Line]:
    """Return all lines in the order of their own clocks; an unreadable one goes with the last."""
    heartbeats: list[tuple[Heartbeat | None, int, bytes]] = []
    for rank in run_dir.ranks():
        for raw in load_all_lines(run_dir.heartbeat(rank)):
            try:
                heartbeats.append((parse_heartbeat(raw), rank, raw))
            except Corrupt:
                heartbeats.append((None, rank, raw))
    offsets = [beat.ts - beat.mono for beat, _, _ in heartbeats if beat is not None]
    shared = bool(offsets) and max(offsets) - min(offsets) <= SAME_CLOCK_S
    stamped: list[_Line] = []
    clock = ts = 0.0
    for beat, rank, raw in heartbeats:
        if beat is not None:
            clock, ts = (beat.mono if shared else beat.ts), beat.ts
        stamped.append(_Line(clock=clock, ts=ts, rank=rank, raw=raw))
    return sorted(stamped, key=lambda line: line.clock)


def _groups(lines: list[_Line]) -> Iterator[tuple[int, list[_Line]]]:
    """Return lines by the tick that would have brought them."""
    first = lines[0].clock
    for number, group in groupby(lines, lambda line: int((line.clock - first) / INTERVAL_S)):
        yield number + 1, list(group)


def _pass_time(
    state: WatchState, since: float, until: _Line, number: int
) -> tuple[WatchState, list[Finding]]:
    """Let time pass without lines, and find each finding at the time it was due.

    An empty tick changes nothing unless it finds something, so the first one is searched for by
    halving.
    """
    findings: list[Finding] = []
    low = since
    for _ in range(MAX_SEARCHES):
        if until.clock - low <= INTERVAL_S or not _looks(state, until, until.clock, number)[1]:
            break
        high = until.clock
        while high - low > INTERVAL_S:
            middle = (low + high) / 2
            if _looks(state, until, middle, number)[1]:
                high = middle
            else:
                low = middle
        state, found = _looks(state, until, high, number)
        findings += found
        low = high
    return state, findings


def _looks(
    state: WatchState, until: _Line, clock: float, number: int
) -> tuple[WatchState, list[Finding]]:
    """Look once, at `clock`."""
    ts = until.ts - (until.clock - clock)
    return fold(state, Tick(n=number, mono=clock, ts=ts, interval_s=INTERVAL_S), {})


def _arrived(state: WatchState) -> bool:
    """Whether every rank that was observed is done or reached the last step."""
    steps = state.run.order.steps
    return all(s.done or s.completed >= steps for s in state.streams.values())


def not_observed(state: WatchState) -> list[str]:
    """Return what this watch could not see, as sentences for a person."""
    texts = []
    if not state.watched:
        names = ", ".join(row.detector for row in REGISTRY if row.probes)
        texts.append(
            "processes: there is no watch.jsonl, so the lines' own clocks stand for receipt and"
            f" what needs probes is not observed ({names})"
        )
    world_size = state.run.order.world_size
    silent = [str(rank) for rank in range(world_size) if rank not in state.streams]
    if silent:
        texts.append(f"ranks: no line of rank {', '.join(silent)}")
    unlabelled = [str(rank) for rank, s in sorted(state.streams.items()) if not s.labelled]
    if unlabelled:
        texts.append(f"sections: rank {', '.join(unlabelled)} never says what it is doing")
    ready = armed(state)
    if not ready[Detector.SLOW]:
        texts.append("slow: no floor is ordered, and there were too few steps for a baseline")
    if not ready[Detector.NON_FINITE]:
        texts.append("non_finite: no line told a loss")
    return texts
