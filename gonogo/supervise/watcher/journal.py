"""watch.jsonl and findings.jsonl: what a watcher records, and how the next one continues.

Guarantees: a tick is recorded before its findings, and those before anything is done about them.
Each tick names the one before by its digest. A new watcher continues from a snapshot (`snapshots`)
and folds the ticks after it again; findings that were not recorded yet are recorded then.

Lines that a full disk refuses are kept, up to KEPT_BYTES, and written in order as soon as it has
room. No refusal ends the watch.
"""

import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from gonogo.contract.canonical import wire_line
from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.contract.tick import Tick
from gonogo.files import append_plain
from gonogo.rundir import RunDir, complete_bytes, load_all_lines, seen_lines
from gonogo.supervise.watcher.look import Memory, Progress, Tails
from gonogo.supervise.watcher.pace import Pace
from gonogo.supervise.watcher.snapshots import Bookmark, Snapshots, load_snapshot
from gonogo.timeline.timeline import Sink
from gonogo.watch import WatchState, fold, start, tick_digest, tick_line

KEPT_BYTES = 4 * 2**20
"""Some hours of a run whose ranks cannot write either."""
QUIET_S = 5.0
"""Longest time without a recorded tick."""
WATCHED_NAME = ".watched"
"""Says that the last tick is written."""

_log = logging.getLogger("gonogo.supervise.watcher")


class LineWriter:
    """Appends whole lines to files, in their order; keeps what the disk refuses."""

    def __init__(self) -> None:
        self._kept: deque[tuple[Path, bytes]] = deque()
        self._kept_bytes = 0
        self._whole: dict[Path, int] = {}
        """File → its length before a part of a line that could not be removed."""

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
        """Write what waits.

        Raises:
            OSError: the disk refuses.
        """
        while self._kept:
            path, line = self._kept[0]
            self._append(path, line)
            self._kept_bytes -= len(line)
            self._kept.popleft()

    def _append(self, path: Path, line: bytes) -> None:
        """Add one line: all of it, or nothing.

        Raises:
            OSError: it cannot be written.
        """
        with append_plain(path) as stream:
            if path in self._whole:
                stream.truncate(self._whole[path])
                del self._whole[path]
            begin = stream.seek(0, os.SEEK_END)
            try:
                if stream.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            except OSError:
                self._whole[path] = begin
                stream.truncate(begin)
                del self._whole[path]
                raise


class Journal:
    """The records of one run.

    Args:
        run_dir: the run's directory.
        pace: the run's pace, which a snapshot holds too.
    """

    def __init__(self, run_dir: RunDir, pace: Pace) -> None:
        self._dir, self.pace = run_dir, pace
        self._lines, self._snapshots = LineWriter(), Snapshots(run_dir)
        self._recorded_at = float("-inf")
        self.last: str | None = None
        """Digest of the last recorded tick."""
        self.bytes = 0
        """Bytes of watch.jsonl, those that wait to be written included."""
        self.found: dict[str, Finding] = {}
        """Every finding by its key."""
        self.failures = 0
        """Records that could not be written or kept."""

    @property
    def waits(self) -> bool:
        """Whether anything is not written yet."""
        return self._lines.waits

    def recover(self, order: Order) -> Memory:
        """Cut torn lines off, fold what is recorded, and record the findings that are missing.

        Args:
            order: the run's order.
        """
        for path in (self._dir.watch, self._dir.findings):
            _cut_torn_line(path)
        memory = self._load_memory(order)
        while (part := seen_lines(self._dir.watch, self.bytes)).offset != self.bytes:
            self.bytes = part.offset
            for line in filter(bytes.strip, part.lines):
                for finding in _fold_line(memory, line, self.pace.take):
                    self.found.setdefault(finding.key, finding)
        recorded = {finding.key: finding for finding in self._load_findings()}
        for key, finding in self.found.items():
            if key in recorded:
                self.found[key] = recorded[key]
            else:
                self.add_finding(finding)
        self.last = memory.last
        return memory

    def owes(self, tick: Tick) -> bool:
        """Return whether a tick brought anything, or must show that somebody looked."""
        seen = tick.ranks or tick.agent or tick.stacks or tick.nodes
        brought = tick.upto or seen or tick.observations
        other = tick.late_s or tick.files or tick.start is not None
        return bool(brought or other) or tick.mono - self._recorded_at >= QUIET_S

    def add_tick(self, tick: Tick, state: WatchState, beats: Mapping[int, object]) -> bool:
        """Record a tick with how far each rank's lines have been read; return whether it was."""
        update = {"lines": state.view.lines_seen(beats), "prev": self.last}
        line = tick_line(tick.model_copy(update=update))
        if not self._tried(partial(self._lines.add, self._dir.watch, line)):
            return False
        self.bytes += len(line)
        self.last = tick_digest(line)
        self._recorded_at = tick.mono
        return True

    def add_finding(self, finding: Finding) -> None:
        """Record a finding."""
        self.found[finding.key] = finding
        line = wire_line(finding.wire())
        self._tried(partial(self._lines.add, self._dir.findings, line))

    def save_snapshot(
        self, now: float, lines: int, state: WatchState, progress: Callable[[], Progress | None]
    ) -> None:
        """Write a snapshot when it is time for one.

        Args:
            now: monotonic seconds.
            lines: how many heartbeats came since the last call.
            state: the fold.
            progress: returns how far it has come; None while nothing is recorded.
        """
        if not self._snapshots.is_due(now, lines) or self.last is None or self.waits:
            return
        come = progress()
        if come is None:
            return
        place = Bookmark(
            watch_bytes=self.bytes,
            last=self.last,
            number=come.number,
            mono=self._recorded_at,
            offsets=come.offsets,
            findings=list(self.found.values()),
            files=come.files,
            pace=self.pace.document(),
        )
        self._snapshots.start(state, place, now)

    def close(self) -> None:
        """Write that nothing will be added any more."""
        self._snapshots.join()
        self._tried(self._lines.flush)
        self._tried((self._dir.path / WATCHED_NAME).touch)

    def _load_memory(self, order: Order) -> Memory:
        """Return what a snapshot holds, or nothing."""
        tails = Tails(run_dir=self._dir, world_size=order.world_size)
        snapshot = load_snapshot(self._dir, order)
        if snapshot is None:
            return Memory(state=start(order), tails=tails)
        place = snapshot.place
        self.bytes = place.watch_bytes
        self.found = {finding.key: finding for finding in place.findings}
        self.pace.resume(place.pace)
        tails.offsets.update(place.offsets)
        return Memory(
            state=snapshot.state,
            tails=tails,
            ticks=place.number,
            mono=place.mono,
            last=place.last,
            files=dict(place.files),
        )

    def _load_findings(self) -> list[Finding]:
        found: list[Finding] = []
        path = self._dir.findings
        lines = load_all_lines(path) if path.is_file() else []
        for line in filter(bytes.strip, lines):
            try:
                found.append(Finding.model_validate_json(line))
            except ValidationError as error:
                _log.error("findings.jsonl: %s", error)
        return found

    def _tried(self, write: Callable[[], object]) -> bool:
        """Return whether a record was written; the first refusal is logged."""
        try:
            write()
        except OSError as error:
            self.failures += 1
            if self.failures == 1:
                _log.error("unrecorded: %s", error, extra={"action": "unrecorded"})
            return False
        return True


def _fold_line(memory: Memory, line: bytes, sink: Sink | None) -> list[Finding]:
    """Fold one recorded tick into the memory; return what it found. Other lines are skipped."""
    try:
        tick = Tick.model_validate_json(line)
    except ValidationError as error:
        _log.error("watch.jsonl: %s", error, extra={"action": "tick_corrupt"})
        return []
    upto = {int(rank): end for rank, end in tick.upto.items() if rank.isdecimal()}
    beats = memory.tails.read_up_to(upto)
    memory.state, found = fold(memory.state, tick, beats, sink)
    memory.ticks, memory.mono, memory.last = tick.n + 1, tick.mono, tick_digest(line)
    memory.files.update(tick.files)
    return found


def _cut_torn_line(path: Path) -> None:
    """Cut what a killed watcher left after the last newline."""
    if not path.is_file() or path.is_symlink():
        return
    whole = complete_bytes(path)
    if path.stat().st_size != whole:
        with append_plain(path) as stream:
            stream.truncate(whole)
