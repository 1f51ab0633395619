"""What does the watch of a run directory show? The same fold, over the files, in one pass.

With `watch.jsonl` each recorded tick is folded with the bytes that it says it had read, so live and
offline findings are equal by construction. A watch is whole if its ticks are one chain without a
gap and every line is one that a tick had read. Ticks behind those that exit.json seals change
nothing that was recorded before. Without `watch.jsonl` the ranks' own clocks stand for receipt, and
what needs probes is not observed.

Every line is read once and none is kept, so a run of a million lines fits in memory.

Not covered: a file whose lines were doubled, moved or edited is no longer what was watched; its
findings may differ, and the record does not agree.
"""

import contextlib
import hashlib
import heapq
import io
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import IO, NamedTuple

from pydantic import ValidationError

from gonogo.contract.canonical import wire_line
from gonogo.contract.errors import Corrupt, NotFound
from gonogo.contract.facts import ProcessExit
from gonogo.contract.finding import Doubt, DoubtKind, Finding
from gonogo.contract.heartbeat import MAX_LINE_BYTES
from gonogo.contract.observation import devices_in
from gonogo.contract.order import Order
from gonogo.contract.records import (
    ExitRecord,
    FileSeal,
    LinesSeen,
    NodeState,
    ProcessState,
    RankProbe,
    Tick,
    WatchStart,
    parse_rank,
)
from gonogo.files import read_plain
from gonogo.rundir import TICK_BYTES, RunDir, iter_lines, load_record
from gonogo.timeline.lines import Line, LineRecord
from gonogo.timeline.timeline import Sink
from gonogo.watch.detectors.hardware import DeviceRows
from gonogo.watch.fold import WatchState, fold, fold_beats, look, start
from gonogo.watch.registry import ERRORS, failure_of, missing_detectors
from gonogo.watch.view import View

HOLE_S = 15.0
AWAY_S = 300.0
"""How long a watcher may say that it was away (its host slept, or it was restarted)."""
MOST_PROBLEMS = 20
TOLD_BYTES = 16
"""Bytes that are kept of each device sample's digest."""


def tick_line(tick: Tick) -> bytes:
    """Return the line of watch.jsonl that records a tick, with its newline."""
    return wire_line({"v": tick.v, **tick.model_dump(mode="json", exclude_defaults=True)})


def tick_digest(line: bytes) -> str:
    """Return the digest of a recorded tick, which the next one names: SHA-256 of its line."""
    return hashlib.sha256(line.rstrip(b"\n")).hexdigest()


@dataclass(slots=True)
class Heard:
    """When ticks delivered lines of a rank, on the watcher's clock."""

    first_mono: float
    last_mono: float
    least_s: float = 0.0
    """Seconds in which its processes were surely heard, without the time between two of them."""
    boots: tuple[str, ...] = field(default=(), compare=False)
    """Its boots in the order in which the ticks name them."""
    seen: LinesSeen | None = field(default=None, compare=False)
    _surely_mono: float = field(default=0.0, compare=False)

    def hear(self, seen: LinesSeen, tick: Tick) -> None:
        """Take what a tick had read; its lines may have waited for as long as the tick was late."""
        surely_mono = tick.mono
        if self.boots and seen.boot == self.boots[-1]:
            surely_mono = max(self._surely_mono, tick.mono - tick.late_s)
            self.least_s += surely_mono - self._surely_mono
        else:
            self.boots = (*self.boots, seen.boot)
        self.last_mono, self.seen, self._surely_mono = tick.mono, seen, surely_mono


@dataclass(slots=True, kw_only=True)
class WatchRecord:
    """What watch.jsonl shows."""

    ticks: int = 0
    starts: list[WatchStart] = field(default_factory=list)
    chained: bool = True
    """Whether every tick names the digest of the one before."""
    digest: str = hashlib.sha256(b"").hexdigest()
    """Digest of the last tick, and through the chain of all ticks."""
    agrees: bool = True
    """Whether the digests of lines in every tick are those of the files."""
    reaches: bool = True
    """Whether the ticks had read every line."""
    files: dict[str, FileSeal] = field(default_factory=dict)
    probes: dict[int, ProcessExit] = field(default_factory=dict)
    looked: set[int] = field(default_factory=set)
    """Ranks whose process state was known to a tick."""
    agent: ProcessExit | None = None
    silent_s: dict[int, float] = field(default_factory=dict)
    """Node → seconds in which nothing came from it."""
    heard: dict[int, Heard] = field(default_factory=dict)
    """Rank → when ticks delivered lines of it."""
    problems: list[Doubt] = field(default_factory=list)
    device_rows: DeviceRows = field(default_factory=DeviceRows)
    devices: bytearray = field(default_factory=bytearray)
    """Digests of the device samples that ticks carry, `TOLD_BYTES` of each."""
    device_errors: dict[tuple[int, str], int] = field(default_factory=dict)
    """Rank and its device → uncorrectable memory errors in the first sample that counts them."""
    last: Tick | None = None
    _silent: set[int] = field(default_factory=set)
    """Nodes that were silent at the last tick that names them."""

    def add_problem(self, kind: DoubtKind, **fields: object) -> None:
        """Keep a shortcoming; of more than `MOST_PROBLEMS` the first ones."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(Doubt.model_validate({"kind": kind, **fields}))

    def _broken(self, what: str, number: int, rank: int | None = None) -> None:
        self.add_problem(DoubtKind.WATCH_BROKEN, rank=rank, name=what, found=number)

    def miss(self, number: int) -> None:
        """Count a line that is no tick."""
        self.chained = False
        self._broken("it is no tick", number)

    def take(self, tick: Tick, line: bytes, number: int, *, beyond: bool) -> None:
        """Check a tick against the one before it, and keep what it records."""
        if tick.prev != (self.digest if self.last is not None else None):
            self.chained = False
            self._broken("it does not follow from the one before it", number)
        passed_s = tick.mono - (tick.mono if self.last is None else self.last.mono)
        gap_s = passed_s if passed_s > AWAY_S else passed_s - tick.late_s
        if gap_s > HOLE_S:
            self.add_problem(DoubtKind.WATCH_GAP, name=str(number), found=round(gap_s))
        if passed_s < 0.0:
            self.chained = False
            self._broken("its clock runs backwards", number)
        if tick.start is not None:
            self.starts.append(tick.start)
        self._take_seals(tick, number, beyond=beyond)
        self._take_devices(tick, number)
        for probe in tick.ranks:
            self._take_probe(probe, number, beyond=beyond)
        for node in self._silent:
            self.silent_s[node] = self.silent_s.get(node, 0.0) + passed_s
        for row in tick.nodes:
            if row.state is NodeState.SILENT:
                self._silent.add(row.node)
            else:
                self._silent.discard(row.node)
        agent = tick.agent
        if agent is not None and (agent.code is not None or agent.signal is not None):
            self.agent = ProcessExit(code=agent.code, signal=agent.signal)
        self.ticks += 1
        self.digest, self.last = tick_digest(line), tick

    def _take_seals(self, tick: Tick, number: int, *, beyond: bool) -> None:
        """Keep the seals of a tick; a rank that restarts writes files again, until the end."""
        ended = beyond or "exit.json" in self.files
        for name, seal in tick.files.items():
            if ended and self.files.get(name, seal) != seal:
                self._broken(f"it seals {name} again, with other bytes", number)
            self.files[name] = seal

    def _take_devices(self, tick: Tick, number: int) -> None:
        """Keep the device samples of a tick; none may be from long before the last tick."""
        samples, last = devices_in(tick), self.last
        if last is not None and any(row.mono < last.mono - HOLE_S for row in samples):
            self._broken("its device samples are older than the tick before it", number)
        self.device_rows.take(samples)
        for sample in samples:
            self.devices += sample.digest()[:TOLD_BYTES]
            if sample.rank is not None and sample.ecc_uncorrected is not None:
                self.device_errors.setdefault((sample.rank, sample.uuid), sample.ecc_uncorrected)

    def _take_probe(self, probe: RankProbe, number: int, *, beyond: bool) -> None:
        """Keep how a rank was seen to end; after the end of the run this changes no more."""
        if probe.state is not ProcessState.UNKNOWN:
            self.looked.add(probe.rank)
        if probe.code is None and probe.signal is None:
            return
        end = ProcessExit(code=probe.code, signal=probe.signal)
        if beyond and self.probes.get(probe.rank, end) != end:
            self._broken("it gives the rank another exit", number, rank=probe.rank)
        self.probes[probe.rank] = end

    def compare(self, tick: Tick, number: int, lines: Mapping[int, LineRecord]) -> None:
        """Compare what a tick had read with the lines up to there."""
        for name, seen in tick.lines.items():
            rank = parse_rank(name)
            record = None if rank is None else lines.get(rank)
            if record is None or not record.is_at(seen):
                if self.agrees:
                    kind = DoubtKind.LINES_CHANGED
                    self.add_problem(kind, rank=rank, name="some", found=number)
                self.agrees = False
            if rank is not None:
                self.heard.setdefault(rank, Heard(tick.mono, tick.mono)).hear(seen, tick)

    def close(self, lines: Mapping[int, LineRecord]) -> None:
        """End the record: do its ticks reach every line?"""
        if self.last is None:
            self._broken("the file holds no tick", 1)
        seen = {rank: row.seen for rank, row in self.heard.items() if row.seen is not None}
        self.reaches = all(rank in seen and row.is_at(seen[rank]) for rank, row in lines.items())


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
        read_exit: returns how the run ended, as read already; None reads exit.json.

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
            while lines := file.read_up_to(file.offset + _PART):
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
    last = record.last or made_up(0.0, 0.0)
    after = made_up(last.mono, last.ts)
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


def made_up(mono: float, ts: float) -> Tick:
    """Return a tick of no watcher."""
    return Tick(n=0, mono=mono, ts=ts, interval_s=INTERVAL_S)


class _Placed(NamedTuple):
    """A line, and when it was written by the run's clock."""

    clock: float
    rank: int
    line: Line


def fold_by_clock(
    run_dir: RunDir, order: Order, sink: Sink | None = None
) -> tuple[WatchState, list[Finding]]:
    """Fold lines by their own clocks, with the time between them."""
    state, findings = start(order, watched=False), list[Finding]()
    ranks = [_placed(run_dir, rank, state.view) for rank in run_dir.ranks()]
    merged = heapq.merge(*ranks, key=attrgetter("clock"))
    last: Tick | None = None
    for _, rows in groupby(merged, lambda row: row.clock // INTERVAL_S):
        beats: dict[int, list[Line]] = {}
        for clock, rank, line in rows:
            beats.setdefault(rank, []).append(line)
            tick = made_up(clock, line.beat.ts)
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
            yield _Placed(clock, rank, line)


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

    Without exit.json the files are all there is, and their silence is that of the ranks. If every
    rank is done or reached its last step, no line is due.
    """
    ranks, steps = state.streams.values(), state.run.order.last_step
    if all(row.done or row.completed >= steps for row in ranks):
        return []
    mono, ts = max(row.heard_mono for row in ranks), max(row.heard_ts for row in ranks)
    state.view.watched, state.view.at_end = False, True
    return _pass_time(state, made_up(mono, ts), mono + now - ts)
