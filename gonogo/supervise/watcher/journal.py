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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from gonogo.contract.canonical import wire_line
from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.contract.records import Tick
from gonogo.files import append_plain
from gonogo.rundir import RunDir, complete_bytes, load_all_lines, load_lines, seen_lines
from gonogo.supervise.transient_errors import TransientErrors
from gonogo.supervise.watcher.snapshots import Memory, Snapshots, load_snapshot
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
        """Add one line: all of it, or nothing."""
        with append_plain(path) as stream:
            begin = stream.seek(0, os.SEEK_END)
            try:
                if stream.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            except OSError:
                stream.truncate(begin)
                raise


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
        self.failures = 0
        """Records that could not be written or kept."""
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
        """Write a snapshot when it is time for one.

        Args:
            lines: how many heartbeats came since the last call.
        """
        if self._snapshots.is_due(now, lines) and self._has_recorded and not self.waits:
            self._snapshots.start(state, self.memory, now)

    def close(self) -> None:
        """Write that nothing will be added any more."""
        self._snapshots.join()
        self._tried(self._lines.flush)
        self._tried((self._dir.path / WATCHED_NAME).touch)

    def _fold_recorded(self) -> None:
        """Fold the recorded ticks, and record the findings that are missing."""
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
        """Fold one recorded tick. Other lines are skipped."""
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
        """Return whether a record was written; the first refusal is logged."""
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
