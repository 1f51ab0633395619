"""What does the watch of a run directory show? The same fold, over the files, in one pass.

With `watch.jsonl` each recorded tick is folded with the bytes that it says it had read, as the
watcher did. So live and offline findings are equal by construction. The digests of lines in the
ticks show whether the files are as they were. Lines that no tick brought are folded with the clock
of the last tick, and the record shows that nobody watched them. Without `watch.jsonl` the ranks'
own clocks stand for receipt (`byclock`), and what needs probes is not observed.

Every line is read once and none is kept, so a run of a million lines fits in memory.

Not covered: a file whose lines were doubled, moved or edited is no longer what was watched; its
findings may differ, and the record does not agree.
"""

import contextlib
import hashlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.errors import Corrupt, NotFound
from gonogo.contract.finding import Finding
from gonogo.contract.heartbeat import MAX_LINE_BYTES
from gonogo.contract.order import Order
from gonogo.contract.outcome import Detector
from gonogo.contract.records import ExitRecord
from gonogo.contract.tick import FileSeal, LinesSeen, Tick, parse_rank
from gonogo.rundir import TICK_BYTES, RunDir, iter_lines, load_record, open_lines
from gonogo.timeline.lines import LineRecord
from gonogo.timeline.timeline import Sink
from gonogo.watch.byclock import fold_by_clock
from gonogo.watch.fold import WatchState, armed, fold, fold_beats, start
from gonogo.watch.registry import ERRORS, failure_of, missing_detectors
from gonogo.watch.watch_record import Heard, WatchRecord

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
        path: the run directory.
        order: instead of `order.json`.
        now: Unix seconds at which an unfinished run without `watch.jsonl` is looked at; None
            stops the clock at the last line.
        sink: receives every line that came for the first time.
        read_exit: returns how the run ended, as whoever seals exit.json has read it; None reads
            that file.

    Raises:
        NotFound: there is no order.json and no order was given.
        Corrupt: order.json cannot be read.
    """
    run_dir = RunDir(path)
    order = order or load_record(run_dir.order, Order)
    if order is None:
        raise NotFound(f"{path}: no order.json, so nobody knows what was to be watched")
    exit_record = _exit_of(run_dir) if read_exit is None else read_exit()
    record = None
    if run_dir.watch.is_file():
        state, findings, record = fold_recorded(run_dir, order, exit_record, sink)
    else:
        ended_at = None if exit_record is None else exit_record.ended_at
        state, findings = fold_by_clock(run_dir, order, ended_at, now, sink)
    return Refold(state=state, findings=findings, not_observed=not_observed(state), watch=record)


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
    ready = armed(state)
    if not ready.get(Detector.SLOW, True):
        blind[Detector.SLOW] = "no floor is ordered, and there were too few steps for a baseline"
    if not ready.get(Detector.NON_FINITE, True):
        blind[Detector.NON_FINITE] = "no line records a loss"
    if not state.view.watched:
        probing = "there is no watch.jsonl, so no process was observed"
        blind |= {row.name: probing for row in state.detectors if row.probes}
    for row in state.looking():
        try:
            text = row.missing(state.own[row.name], state.view)
        except ERRORS as error:
            text = failure_of(row.name, error)
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
        """Return rank → the lines that a tick brought; each is given once."""
        ends = ((rank, tick.upto.get(str(rank))) for rank in self._files)
        return {rank: self._files[rank].read_up_to(end) for rank, end in ends if end is not None}

    def rest(self) -> Iterator[dict[int, list[bytes]]]:
        """Yield what no tick brought, in parts."""
        for rank, file in self._files.items():
            while lines := file.read_part():
                yield {rank: lines}


class _Tail:
    """A file read forwards, in whole lines; a part of a line waits for its rest."""

    def __init__(self, path: Path) -> None:
        self._stream: IO[bytes] = io.BytesIO()  # what cannot be opened has no lines
        self._offset = self._size = 0
        self._torn = b""
        with contextlib.suppress(OSError):
            self._stream = open_lines(path)

    def __del__(self) -> None:
        self._stream.close()

    def read_up_to(self, end: int) -> list[bytes]:
        if end > self._size:
            self._size = self._measure()
        size = min(end, self._size) - self._offset
        if size <= 0:
            return []
        lines = self._whole(self._stream.read(size))
        if not lines and len(self._torn) > MAX_LINE_BYTES:  # the watcher took it as a line, too
            lines, self._torn = self._torn.splitlines(), b""
        return lines

    def _measure(self) -> int:
        """Return how many bytes there are to read, whatever a tick says."""
        try:
            size = self._stream.seek(0, io.SEEK_END)
            self._stream.seek(self._offset)
        except OSError:
            return self._offset
        return size

    def _whole(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete; the part behind them is kept."""
        self._offset += len(data)
        data = self._torn + data
        cut = data.rfind(b"\n") + 1
        self._torn = data[cut:]
        return data[:cut].splitlines()

    def read_part(self) -> list[bytes]:
        data = self._stream.read(_PART)
        if data and not data.endswith(b"\n"):
            data += self._stream.readline()
        return self._whole(data)  # a torn last line waits for its end


def fold_recorded(
    run_dir: RunDir, order: Order, exit_record: ExitRecord | None, sink: Sink | None
) -> tuple[WatchState, list[Finding], WatchRecord]:
    """Fold watch.jsonl with the lines of each tick, then the lines that no tick brought."""
    reading = _Reading(order, exit_record, sink)
    lines, read, size = BroughtLines(run_dir), hashlib.sha256(), 0
    sealed = exit_record.watch if exit_record is not None else None
    for number, raw in enumerate(iter_lines(run_dir.watch, TICK_BYTES), start=1):
        read.update(raw)
        size += len(raw)
        if not raw.strip():
            continue
        try:
            tick = Tick.model_validate_json(raw)
        except ValidationError:
            reading.record.miss(number)
            continue
        beyond = sealed is not None and size > sealed.bytes
        reading.record.take(tick, raw, number, beyond=beyond)
        reading.fold(tick, lines.lines_of(tick))
        reading.compare(tick, number)
    last = reading.record.last
    for beats in lines.rest():
        reading.fold_unwatched(_after(last), beats)
    reading.record.close(FileSeal(bytes=size, sha256=read.hexdigest()))
    reading.close(run_dir)
    return reading.state, reading.findings, reading.record


class _Reading:
    """The fold of recorded ticks, and what it shows of the lines."""

    def __init__(self, order: Order, exit_record: ExitRecord | None, sink: Sink | None) -> None:
        self.state = start(order)
        self.findings: list[Finding] = []
        self.record = WatchRecord()
        self.unwatched = 0
        self._sink, self._exit = sink, exit_record
        self._boots: dict[tuple[int, str], tuple[float, float, int]] = {}
        """Rank and boot → clocks of the first and last tick that names it, and the highest seq."""
        self._last_seen: dict[int, LinesSeen] = {}

    def fold(self, tick: Tick, beats: Mapping[int, Sequence[bytes]]) -> None:
        """Fold a tick with its lines."""
        self.state, found = fold(self.state, tick, beats, self._sink)
        self.findings += found

    def fold_unwatched(self, tick: Tick, beats: Mapping[int, Sequence[bytes]]) -> None:
        """Fold heartbeats that no tick brought; what is none is only counted."""
        view = self.state.view
        lines = {rank: view.parse(rank, rows, tick.mono) for rank, rows in beats.items()}
        if any(lines.values()):
            self.unwatched += sum(map(len, lines.values()))
            self.findings += fold_beats(self.state, tick, lines, self._sink)[1]

    def compare(self, tick: Tick, number: int) -> None:
        """Compare the digests of lines in a tick with those of the files."""
        for name, seen in tick.lines.items():
            rank = parse_rank(name)
            record = None if rank is None else self.state.view.lines.get(rank)
            if record is None or not _agree(record, seen):
                if self.record.agrees:
                    kind = DoubtKind.LINES_CHANGED
                    self.record.add_problem(kind, rank=rank, name="some", found=number)
                self.record.agrees = False
            if rank is not None:
                self._hear(rank, seen, tick)

    def _hear(self, rank: int, seen: LinesSeen, tick: Tick) -> None:
        """Keep when a tick heard a process of a rank."""
        heard = self.record.heard.setdefault(rank, Heard(tick.mono, tick.mono))
        heard.last_mono, place = tick.mono, (rank, seen.boot)
        if place not in self._boots:
            named = self.record.boots.get(rank, ())
            self.record.boots[rank] = (*named, seen.boot)
        first, last, seq = self._boots.get(place, (tick.mono, tick.mono, -1))
        surely = max(first, tick.mono - tick.late_s)  # its lines may have waited to be read
        heard.least_s += surely - last
        self._boots[place] = first, surely, max(seq, seen.seq)
        self._last_seen[rank] = seen

    def close(self, run_dir: RunDir) -> None:
        """Compare the lines as a whole with what the ticks and exit.json record of them."""
        record = self.record
        record.reaches = not self.unwatched and self._reaches()
        record.problems += missing_detectors(self.state.view.run)
        for name, text in self.state.failed.items():
            record.add_problem(DoubtKind.DETECTOR_FAILED, name=name, found=text)
        sealed = self._exit.heartbeats if self._exit is not None else None
        for rank, lines in self.state.view.lines.items():
            self._count(rank, lines)
            if sealed is not None:
                written = sealed.get(run_dir.heartbeat(rank).name)
                self._unwatched(rank, lines.distinct() - (written.lines if written else 0))

    def _reaches(self) -> bool:
        """Say whether the ticks reach the last line of every rank that is obeyed."""
        for rank, record in self.state.view.lines.items():
            seen = self._boots.get((rank, record.boot or ""))
            if (-1 if seen is None else seen[2]) < record.now.contiguous:
                return False
        return True

    def _count(self, rank: int, lines: LineRecord) -> None:
        """Compare the lines besides those of the obeyed boot with what the last tick saw."""
        seen = self._last_seen.get(rank)
        if seen is None or seen.boot != lines.boot:
            return
        others, before = lines.beside()
        gone = seen.others - others
        self._unwatched(rank, -gone)
        if gone > 0 or (gone == 0 and seen.before != before):
            self.record.add_problem(DoubtKind.LINES_CHANGED, rank=rank, name=str(gone or "some"))

    def _unwatched(self, rank: int, count: int) -> None:
        if count > 0:
            self.record.add_problem(DoubtKind.LINES_UNWATCHED, rank=rank, found=count)


def _agree(record: LineRecord, seen: LinesSeen) -> bool:
    """Say whether lines are those that a tick saw; `_count` compares how many came besides."""
    lines = record.now
    if record.boot != seen.boot or lines.chain.hex() != seen.digest:
        return False
    return lines.contiguous == seen.seq


def _after(last: Tick | None) -> Tick:
    if last is None:
        return Tick(n=0, mono=0.0, ts=0.0)
    return Tick(n=last.n + 1, mono=last.mono, ts=last.ts, interval_s=last.interval_s)
