"""watch.jsonl and findings.jsonl: what a watcher records, and how the next one continues.

Guarantees: a tick is recorded before its findings, and those before anything is done about them.
Each tick names the one before by its digest. A new watcher continues from a snapshot (`snapshots`)
and folds the ticks after it again; findings that were not recorded yet are recorded then.

Lines that a full disk refuses are kept, up to KEPT_BYTES, and written in order as soon as it has
room. No refusal ends the watch.
"""

import bisect
import hashlib
import json
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gonogo.contract.canonical import wire_line
from gonogo.contract.errors import Corrupt
from gonogo.contract.finding import Finding
from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.contract.order import Order
from gonogo.contract.records import FileSeal, Tick
from gonogo.files import append_line, append_plain, read_plain, replace_file
from gonogo.rundir import TICK_BYTES, RunDir, complete_bytes, load_all_lines, load_lines, seen_lines
from gonogo.supervise.transient_errors import TransientErrors, start_thread
from gonogo.timeline.lines import Arrival
from gonogo.watch.fold import WatchState, dump_state, fold, load_state, start
from gonogo.watch.offline_fold import tick_digest, tick_line

UNKNOWN_CHECKPOINT_S = 30.0
UNKNOWN_STEP_S = 30.0
LAST_STEPS = 5
MOST_S = 1e9
BOUNDS_S = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(25.0, 60.0, 120.0, 300.0, 600.0, math.inf),
)
"""Upper bounds of the histogram's buckets in seconds, inclusive."""


class StepTimes(BaseModel):
    """A histogram of step durations, for Prometheus."""

    sum: float = 0.0  # Seconds of all steps.
    counts: list[Annotated[int, Field(ge=0, lt=2**53)]] = Field(
        default_factory=lambda: [0] * len(BOUNDS_S),
        min_length=len(BOUNDS_S),
        max_length=len(BOUNDS_S),
    )
    """Steps of each bucket, not cumulated."""

    def add(self, seconds: float) -> None:
        """Count a step."""
        self.counts[bisect.bisect_left(BOUNDS_S, seconds)] += 1
        self.sum += seconds

    def cumulated(self) -> list[tuple[str, int]]:
        """Return bound → steps that took no longer, as Prometheus writes both."""
        total, found = 0, []
        for bound, count in zip(BOUNDS_S, self.counts, strict=True):
            total += count
            found.append(("+Inf" if bound == math.inf else str(bound), total))
        return found


class Pace(BaseModel):
    """Durations of the latest steps and of the longest checkpoint, in seconds."""

    steps_s: list[float] = []
    checkpoint_s: float | None = None
    times: StepTimes = Field(default_factory=StepTimes)

    def take(self, rank: int, beat: Heartbeat, arrival: Arrival) -> None:
        """Take a line as the timeline gives it."""
        seconds = beat.dt_step_s if beat.msg == Msg.STEP_END else beat.dt
        if seconds is None or not 0 <= seconds < MOST_S:
            return
        if beat.msg == Msg.STEP_END:
            self.steps_s = [*self.steps_s, seconds][-LAST_STEPS:]
            self.times.add(seconds)
        elif beat.msg == Msg.CHECKPOINT:
            self.checkpoint_s = max(seconds, self.checkpoint_s or 0.0)

    def leaving_s(self) -> float:
        """Return how long the ranks may take to leave with a checkpoint.

        Two of the longest of the last five steps, and two of the longest checkpoint.
        """
        checkpoint_s = UNKNOWN_CHECKPOINT_S if self.checkpoint_s is None else self.checkpoint_s
        step_s = max(self.steps_s, default=UNKNOWN_STEP_S)
        return 2.0 * step_s + max(2.0, 2.0 * checkpoint_s)


FOLD_NAME = ".fold.json"
EVERY_S = 300.0
EVERY_LINES = 10_000  # Folding so many takes half a second.

_log = logging.getLogger(__name__)


class Memory(BaseModel):
    """What a watcher knows of a run besides the fold: how far it has come, and what it found."""

    model_config = ConfigDict(extra="forbid")

    watch_bytes: int = 0  # Bytes of watch.jsonl, lines that wait to be written included.
    last: str | None = None  # Digest of the last recorded tick.
    number: int = 0  # Number of the next tick.
    mono: float | None = None  # Clock of the last recorded tick.
    offsets: dict[int, int] = {}  # Rank → bytes of its heartbeat file that were read.
    found: dict[str, Finding] = {}  # Every finding by its key.
    files: dict[str, FileSeal] = {}  # Records that the ticks have sealed.
    pace: Pace = Field(default_factory=Pace)


class Snapshots:
    """Writes snapshots of one run, at most one at a time."""

    def __init__(self, run_dir: RunDir) -> None:
        self._path = run_dir.path / FOLD_NAME
        self._thread: threading.Thread | None = None
        self._lines = 0
        self._next_at: float | None = None

    def is_due(self, now: float, lines: int) -> bool:
        """Return whether it is time for another snapshot."""
        self._lines += lines
        if self._next_at is None:
            self._next_at = now + EVERY_S
        if self._thread is not None and self._thread.is_alive():
            return False
        return now >= self._next_at or self._lines >= EVERY_LINES

    def start(self, state: WatchState, memory: Memory, now: float) -> None:
        """Write both; they may change as soon as this returns."""
        self._lines, self._next_at = 0, now + EVERY_S
        try:
            document = {"memory": memory.model_dump(mode="json"), "state": dump_state(state)}
            self._thread = start_thread(partial(_save, self._path, document), "snapshot")
        except (Corrupt, OSError) as error:  # a plug-in's state, or no thread
            _log.warning("no snapshot: %s", error, extra={"action": "snapshot_unwritten"})

    def join(self) -> None:
        """Wait until what was started is written."""
        if self._thread is not None:
            self._thread.join()


def load_snapshot(run_dir: RunDir, order: Order) -> tuple[WatchState, Memory] | None:
    """Return the snapshot of a run; None if there is none that fits its files."""
    try:
        with read_plain(run_dir.path / FOLD_NAME) as stream:
            sealed, _, body = stream.read().partition(b"\n")
    except OSError:
        return None
    try:
        if hashlib.sha256(body).hexdigest().encode() != sealed:
            raise Corrupt("it is torn")
        document = json.loads(body)
        memory = Memory.model_validate(document["memory"])
        for rank, offset in memory.offsets.items():
            if run_dir.heartbeat(rank).stat().st_size < offset:
                raise Corrupt(f"rank {rank}'s file is shorter than it says")
        if _last_tick(run_dir.watch, memory.watch_bytes) != memory.last:
            raise Corrupt("watch.jsonl is not the one that it was made of")
        return load_state(order, document["state"]), memory
    except (Corrupt, OSError, KeyError, ValidationError) as error:
        _log.warning("no snapshot: %s", error, extra={"action": "snapshot_refused"})
        return None


def _last_tick(path: Path, end: int) -> str | None:
    with read_plain(path) as stream:
        stream.seek(max(0, end - TICK_BYTES))
        data = stream.read(min(end, TICK_BYTES))
    if not data.endswith(b"\n"):
        return None
    return tick_digest(data[data.rfind(b"\n", 0, -1) + 1 :])


def _save(path: Path, document: Mapping[str, Any]) -> None:
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    try:
        replace_file(path, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    except OSError as error:
        _log.warning("no snapshot: %s", error, extra={"action": "snapshot_unwritten"})


KEPT_BYTES = 4 * 2**20  # Some hours of a run whose ranks cannot write either.
QUIET_S = 5.0  # Longest time without a recorded tick.
WATCHED_NAME = ".watched"  # Says that the last tick is written.


class LineWriter:
    """Appends whole lines to files, in their order; keeps what the disk refuses."""

    def __init__(self) -> None:
        self._kept: deque[tuple[Path, bytes]] = deque()
        self._kept_bytes = 0

    @property
    def waits(self) -> bool:
        """Whether anything is not written yet."""
        return bool(self._kept)

    def add(self, path: Path, line: bytes) -> None:
        """Write a line after those that wait.

        Raises:
            OSError: the disk refuses, and there is no room to keep more.
        """
        self._kept.append((path, line))
        self._kept_bytes += len(line)
        try:
            self.flush()
        except OSError:
            if self._kept_bytes > KEPT_BYTES:
                self._kept.pop()
                self._kept_bytes -= len(line)
                raise

    def flush(self) -> None:
        """Write what waits."""
        while self._kept:
            path, line = self._kept[0]
            append_line(path, line)
            self._kept_bytes -= len(line)
            self._kept.popleft()


@dataclass(slots=True)
class Tails:
    """Reads the ranks' heartbeat files on from `offsets`, which it moves."""

    run_dir: RunDir
    world_size: int
    offsets: dict[int, int] = field(default_factory=dict)
    transient: TransientErrors = field(default_factory=lambda: TransientErrors(_log))

    def read(self) -> dict[int, list[bytes]]:
        """Return the new complete lines by rank."""
        found: dict[int, list[bytes]] = {}
        for rank in range(self.world_size):
            start = self.offsets.get(rank, 0)
            load = partial(load_lines, self.run_dir.heartbeat(rank), start)
            part = self.transient.tried(f"the lines of rank {rank}", load, None)
            if part is not None and part.offset != start:
                found[rank] = part.lines
                self.offsets[rank] = part.offset
        return found

    def read_up_to(self, upto: Mapping[int, int]) -> dict[int, list[bytes]]:
        """Return the lines up to the offsets of a recorded tick."""
        found: dict[int, list[bytes]] = {}
        for rank, end in upto.items():
            while (start := self.offsets.get(rank, 0)) < end:
                part = seen_lines(self.run_dir.heartbeat(rank), start, end)
                if part.offset == start:
                    break
                found.setdefault(rank, []).extend(part.lines)
                self.offsets[rank] = part.offset
        return found


class Journal:
    """The records of one run. What they say is folded again at the start."""

    def __init__(self, run_dir: RunDir, order: Order) -> None:
        self._dir = run_dir
        self._lines, self._snapshots = LineWriter(), Snapshots(run_dir)
        self._has_recorded = False
        self.failures = 0  # Records that could not be written or kept.
        for path in (run_dir.watch, run_dir.findings):
            _cut_torn_line(path)
        self.state, self.memory = load_snapshot(run_dir, order) or (start(order), Memory())
        """The fold of the recorded ticks, and what else they say."""
        self.tails = Tails(run_dir, order.world_size, self.memory.offsets)
        self._fold_recorded()

    @property
    def waits(self) -> bool:
        """Whether anything is not written yet."""
        return self._lines.waits

    def owes(self, tick: Tick) -> bool:
        """Return whether a tick holds anything, or must show that somebody looked."""
        seen = tick.ranks or tick.agent or tick.stacks or tick.nodes
        brought = tick.upto or seen or tick.observations
        other = tick.late_s or tick.files or tick.start is not None
        quiet_s = tick.mono - (-QUIET_S if self.memory.mono is None else self.memory.mono)
        return bool(brought or other) or quiet_s >= QUIET_S

    def add_tick(self, tick: Tick, state: WatchState, beats: Mapping[int, object]) -> bool:
        """Record a tick with how far each rank's lines have been read; return whether it was."""
        update = {"lines": state.view.lines_seen(beats), "prev": self.memory.last}
        line = tick_line(tick.model_copy(update=update))
        if not self._tried(partial(self._lines.add, self._dir.watch, line)):
            return False
        self.memory.watch_bytes += len(line)
        self.memory.last, self.memory.mono = tick_digest(line), tick.mono
        self._has_recorded = True
        return True

    def add_finding(self, finding: Finding) -> None:
        """Record a finding."""
        self.memory.found[finding.key] = finding
        line = wire_line(finding.wire())
        self._tried(partial(self._lines.add, self._dir.findings, line))

    def save_snapshot(self, now: float, lines: int, state: WatchState) -> None:
        """Write a snapshot when it is time for one."""
        if self._snapshots.is_due(now, lines) and self._has_recorded and not self.waits:
            self._snapshots.start(state, self.memory, now)

    def close(self) -> None:
        """Write that nothing will be added any more."""
        self._snapshots.join()
        self._tried(self._lines.flush)
        self._tried((self._dir.path / WATCHED_NAME).touch)

    def _fold_recorded(self) -> None:
        found = self.memory.found
        memory = self.memory
        while (
            part := seen_lines(self._dir.watch, memory.watch_bytes)
        ).offset != memory.watch_bytes:
            memory.watch_bytes = part.offset
            for line in filter(bytes.strip, part.lines):
                self._fold_line(line)
        recorded = {finding.key: finding for finding in self._load_findings()}
        for key, finding in found.items():
            if key in recorded:
                found[key] = recorded[key]
            else:
                self.add_finding(finding)

    def _fold_line(self, line: bytes) -> None:
        memory = self.memory
        try:
            tick = Tick.model_validate_json(line)
        except ValidationError as error:
            _log.error("watch.jsonl: %s", error, extra={"action": "tick_corrupt"})
            return
        upto = {int(rank): end for rank, end in tick.upto.items() if rank.isdecimal()}
        self.state, found = fold(self.state, tick, self.tails.read_up_to(upto), memory.pace.take)
        memory.number, memory.mono, memory.last = tick.n + 1, tick.mono, tick_digest(line)
        memory.files.update(tick.files)
        for finding in found:
            memory.found.setdefault(finding.key, finding)

    def _load_findings(self) -> Iterator[Finding]:
        path = self._dir.findings
        for line in filter(bytes.strip, load_all_lines(path) if path.is_file() else []):
            try:
                yield Finding.model_validate_json(line)
            except ValidationError as error:
                _log.error("findings.jsonl: %s", error)

    def _tried(self, write: Callable[[], object]) -> bool:
        try:
            write()
        except OSError as error:
            self.failures += 1
            if self.failures == 1:
                _log.error("unrecorded: %s", error, extra={"action": "unrecorded"})
            return False
        return True


def _cut_torn_line(path: Path) -> None:
    """Cut what a killed watcher left after the last newline."""
    if not path.is_file() or path.is_symlink():
        return
    whole = complete_bytes(path)
    if path.stat().st_size != whole:
        with append_plain(path) as stream:
            stream.truncate(whole)
