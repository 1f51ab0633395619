"""What does the watch of a run directory show? The same fold, over the files, in one pass.

With `watch.jsonl` each recorded tick is folded with the bytes that it says it had read, as the
watcher did. So live and offline findings are equal by construction. The digests of lines in the
ticks show whether the files are as they were. Lines that no tick delivered are folded with the
clock of the last tick, and the record shows that they were not watched. Without `watch.jsonl` the
ranks' own clocks stand for receipt (`byclock`), and what needs probes is not observed.

Every line is read once and none is kept, so a run of a million lines fits in memory.

Not covered: a file whose lines were doubled, moved or edited is no longer what was watched; its
findings may differ, and the record does not agree.
"""

import contextlib
import heapq
import io
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from gonogo.contract.errors import Corrupt, NotFound
from gonogo.contract.finding import Doubt, DoubtKind, Finding
from gonogo.contract.heartbeat import MAX_LINE_BYTES
from gonogo.contract.order import Order
from gonogo.contract.records import ExitRecord, Tick
from gonogo.files import read_plain
from gonogo.rundir import TICK_BYTES, RunDir, iter_lines, load_record
from gonogo.timeline.lines import Line
from gonogo.timeline.timeline import Sink
from gonogo.watch.fold import WatchState, fold, fold_beats, look, start
from gonogo.watch.registry import ERRORS, failure_of, missing_detectors
from gonogo.watch.view import View
from gonogo.watch.watch_record import WatchRecord

_PART = 2**20
_UNLABELLED = "the lines name no section, so a hang has no place"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refold:
    """A folded directory."""

    state: WatchState
    findings: list[Finding]
    not_observed: list[Doubt]
    watch: WatchRecord | None
    """What the recorded ticks show; None without watch.jsonl."""


def replay_watch(
    path: Path, *, order: Order | None = None, now: float | None = None
) -> list[Finding]:
    """Return the findings of a run directory; see `refold`."""
    return refold(path, order=order, now=now).findings


def refold(
    path: Path,
    *,
    order: Order | None = None,
    now: float | None = None,
    sink: Sink | None = None,
    read_exit: Callable[[], ExitRecord | None] | None = None,
) -> Refold:
    """Fold a whole run directory.

    Args:
        order: instead of `order.json`.
        now: Unix seconds at which an unfinished run is looked at; None stops the clock at the
            last line.
        sink: receives every line that came for the first time.
        read_exit: returns how the run ended, as the sealer of exit.json has read it; None reads
            that file.

    Raises:
        NotFound: there is no order.json and no order was given.
        Corrupt: order.json cannot be read.
    """
    run_dir = RunDir(path)
    order = order or load_record(run_dir.order, Order)
    if order is None:
        raise NotFound(f"{path}: no order.json, so nobody knows what was to be watched")
    ended = _exit_of(run_dir) if read_exit is None else read_exit()
    record = None
    if run_dir.watch.is_file():
        state, findings, record = fold_recorded(run_dir, order, ended, sink)
        until = now if ended is None else None
    else:
        state, findings = fold_by_clock(run_dir, order, sink)
        until = now if ended is None else ended.ended_at
    missing = not_observed(state)
    if until is not None:
        findings += watch_on(state, now=until)
    return Refold(state=state, findings=findings, not_observed=missing, watch=record)


def _exit_of(run_dir: RunDir) -> ExitRecord | None:
    """Return exit.json; None if it is missing or cannot be read, which others report."""
    try:
        return load_record(run_dir.exit, ExitRecord)
    except (Corrupt, OSError):
        return None


def not_observed(state: WatchState) -> list[Doubt]:
    """Return what this watch could not observe."""
    found = [
        Doubt(kind=DoubtKind.RANK_SILENT, rank=rank)
        for rank in range(state.run.order.world_size)
        if rank not in state.streams
    ]
    found += [
        Doubt(kind=DoubtKind.DETECTOR_BLIND, rank=rank, name="sections", found=_UNLABELLED)
        for rank, stream in sorted(state.streams.items())
        if not stream.labelled
    ]
    blind = dict(state.failed)
    for row in state.looking():
        try:
            text = row.missing(state.own[row.name], state.view)
        except ERRORS as error:
            text = failure_of(row.name, error)
        if text is None and row.probes and not state.view.watched:
            text = "there is no watch.jsonl, so no process was observed"
        if text is not None:
            blind[row.name] = text
    return found + [
        Doubt(kind=DoubtKind.DETECTOR_BLIND, name=name, found=text) for name, text in blind.items()
    ]


class BroughtLines:
    """Gives each tick the lines up to the bytes that it says it had read."""

    def __init__(self, run_dir: RunDir) -> None:
        self._files = {rank: _Tail(run_dir.heartbeat(rank)) for rank in run_dir.ranks()}

    def lines_of(self, tick: Tick) -> dict[int, list[bytes]]:
        """Return rank → the lines that a tick delivered; each is given once."""
        ends = ((rank, tick.upto.get(str(rank))) for rank in self._files)
        return {rank: self._files[rank].read_up_to(end) for rank, end in ends if end is not None}

    def rest(self) -> Iterator[dict[int, list[bytes]]]:
        """Yield what no tick delivered, in parts."""
        for rank, file in self._files.items():
            before = -1
            while file.offset > before:
                before = file.offset
                if lines := file.read_up_to(before + _PART):
                    yield {rank: lines}


class _Tail:
    """A file read forwards, in whole lines; a part of a line waits for its rest."""

    def __init__(self, path: Path) -> None:
        self._stream: IO[bytes] = io.BytesIO()  # what cannot be opened has no lines
        self.offset = 0
        self._torn = b""
        with contextlib.suppress(OSError):
            self._stream = read_plain(path)

    def __del__(self) -> None:
        self._stream.close()

    def read_up_to(self, end: int) -> list[bytes]:
        data = b""
        with contextlib.suppress(OSError):  # what cannot be read is missing
            while self.offset < end and (part := self._stream.read(min(end - self.offset, _PART))):
                self.offset += len(part)
                data += part
        if not data:
            return []
        data = self._torn + data
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) > MAX_LINE_BYTES:  # the watcher took it as a line, too
            cut = len(data)
        self._torn = data[cut:]
        return data[:cut].splitlines()


def fold_recorded(
    run_dir: RunDir, order: Order, exit_record: ExitRecord | None, sink: Sink | None
) -> tuple[WatchState, list[Finding], WatchRecord]:
    """Fold watch.jsonl with the lines of each tick, then the lines that no tick delivered."""
    state, findings, record = start(order), list[Finding](), WatchRecord()
    files, size, view = BroughtLines(run_dir), 0, state.view
    sealed = exit_record.watch if exit_record is not None else None
    for number, raw in enumerate(iter_lines(run_dir.watch, TICK_BYTES), start=1):
        size += len(raw)
        if not raw.strip():
            continue
        try:
            tick = Tick.model_validate_json(raw)
        except ValidationError:
            record.miss(number)
            continue
        record.take(tick, raw, number, beyond=sealed is not None and size > sealed.bytes)
        findings += fold(state, tick, files.lines_of(tick), sink)[1]
        record.compare(tick, number, view.lines)
    last = record.last or Tick(n=0, mono=0.0, ts=0.0)
    after = Tick(n=last.n + 1, mono=last.mono, ts=last.ts, interval_s=last.interval_s)
    for beats in files.rest():
        parsed = {rank: view.parse(rank, rows, after.mono) for rank, rows in beats.items()}
        if any(parsed.values()):
            findings += fold_beats(state, after, parsed, sink)[1]
    record.close(view.lines)
    record.problems += missing_detectors(view.run)
    for name, text in state.failed.items():
        record.add_problem(DoubtKind.DETECTOR_FAILED, name=name, found=text)
    if exit_record is not None and exit_record.heartbeats is not None:
        for rank, lines in view.lines.items():
            written = exit_record.heartbeats.get(run_dir.heartbeat(rank).name)
            added = lines.distinct() - (written.lines if written else 0)
            if added > 0:
                record.add_problem(DoubtKind.LINES_UNWATCHED, rank=rank, found=added)
    return state, findings, record


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
