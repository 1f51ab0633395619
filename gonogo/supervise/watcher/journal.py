"""How does the watcher remember? watch.jsonl and findings.jsonl, and the fold of both.

Guarantees: a tick stands in watch.jsonl before its findings stand in findings.jsonl, and those
before anything is done about them; each tick names the one before by its digest, over restarts of
the watcher too. A watcher that starts goes on from a snapshot where one fits, and folds the ticks
after it again (all of them otherwise); findings that this brings and that are not recorded yet are
recorded then. A torn last line is cut off; a line that is no tick is passed over and counted, since
a watcher that dies of it ends a healthy run.

What the disk does not take is kept, up to KEPT_BYTES, and written in its order as soon as it does:
a disk that was full for an hour leaves no hole in what is recorded. Nor does one that was unmounted
and came back, by whichever device number: a trainer that saves meanwhile makes a folder of the run
directory's name, and nothing is written into that one, which has no order.
"""

import errno
import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gonogo.contract.canonical import wire_line
from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.contract.tick import FileSeal, Tick
from gonogo.files import append_plain, is_there
from gonogo.rundir import RunDir, complete_bytes, load_all_lines, seen_lines
from gonogo.supervise.watcher.snapshots import load_snapshot
from gonogo.supervise.watcher.tails import Tails
from gonogo.timeline.timeline import Sink
from gonogo.watch import WatchState, fold, start, tick_digest, tick_line

KEPT_BYTES = 4 * 2**20
"""Of lines that no disk takes: some hours of a run whose ranks cannot write either."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Memory:
    """What a watcher knows when it starts: nothing, or what one before it recorded."""

    state: WatchState
    tails: Tails
    ticks: int = 0
    """Number of the next tick."""
    mono: float | None = None
    """Clock of the last recorded tick."""
    last: str | None = None
    """Digest of the last recorded tick."""
    findings: list[Finding] = field(default_factory=list)
    """All findings, in the order in which they were found."""
    unrecorded: list[Finding] = field(default_factory=list)
    """Those among them that no one has recorded yet."""
    files: dict[str, FileSeal] = field(default_factory=dict)
    """Records that the ticks have sealed."""
    pace: dict[str, Any] | None = None
    """What the snapshot says of the run's pace; None without one."""
    unreadable: int = 0
    """Lines of watch.jsonl that are no ticks."""


class Journal:
    """Appends to the two files of one run directory; each line is one write.

    Adding raises OSError where the disk takes nothing and there is no room to keep more.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._dir = run_dir
        self._folder: os.stat_result | None = None
        """The run directory, as it was seen last."""
        self.last: str | None = None
        """Digest of the last recorded tick."""
        self.bytes = 0
        """Bytes of watch.jsonl, those that wait to be written included."""
        self._kept: deque[tuple[Path, bytes]] = deque()
        self._kept_bytes = 0
        self._whole: dict[Path, int] = {}
        """Bytes of a file behind which a part of a line may lie."""

    def recover(
        self,
        order: Order,
        sink: Sink | None = None,
        on_pace: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> Memory:
        """Cut torn lines off and return the fold of what is recorded.

        Args:
            order: the run's order.
            sink: receives every heartbeat line that is read again.
            on_pace: given the pace of a snapshot, before any line after it.
        """
        self._look_at_folder()
        for path in (self._dir.watch, self._dir.findings):
            _cut_torn_line(path)
        memory, self.bytes = self._take_up(order)
        if memory.pace is not None:
            on_pace(memory.pace)
        folded = {finding.key: finding for finding in memory.findings}
        while (part := seen_lines(self._dir.watch, self.bytes)).offset != self.bytes:
            self.bytes = part.offset
            for line in filter(bytes.strip, part.lines):  # a blank line tells nothing
                for finding in _fold_line(memory, line, sink):
                    folded.setdefault(finding.key, finding)
        known = {finding.key: finding for finding in self._load_findings()}
        memory.findings = [known.get(key, finding) for key, finding in folded.items()]
        memory.unrecorded = [finding for key, finding in folded.items() if key not in known]
        self.last = memory.last
        return memory

    def _take_up(self, order: Order) -> tuple[Memory, int]:
        """Return what a snapshot remembers, or nothing, and from which byte the ticks follow."""
        tails = Tails(run_dir=self._dir, world_size=order.world_size)
        snapshot = load_snapshot(self._dir, order)
        if snapshot is None:
            return Memory(state=start(order), tails=tails), 0
        place = snapshot.place
        tails.offsets.update(place.offsets)
        memory = Memory(
            state=snapshot.state,
            tails=tails,
            ticks=place.number,
            mono=place.mono,
            last=place.last,
            findings=list(place.findings),
            files=dict(place.files),
            pace=place.pace,
            unreadable=place.unreadable,
        )
        return memory, place.watch_bytes

    def add_tick(self, tick: Tick) -> None:
        """Record a tick behind the one before."""
        tick = tick.model_copy(update={"prev": self.last})
        line = tick_line(tick)
        self._add(self._dir.watch, line)
        self.bytes += len(line)
        self.last = tick_digest(line)

    def add_finding(self, finding: Finding) -> None:
        """Record a finding."""
        self._add(self._dir.findings, wire_line(finding.wire()))

    @property
    def waits(self) -> bool:
        """Whether anything is not written yet."""
        return bool(self._kept)

    def write_kept(self) -> None:
        """Write what waits, in its order.

        Raises:
            OSError: the disk does not take it, or not all.
        """
        while self._kept:
            path, line = self._kept[0]
            self._append(path, line)
            self._kept_bytes -= len(line)
            self._kept.popleft()

    def _add(self, path: Path, line: bytes) -> None:
        """Write a line behind those that wait, or have it wait, too."""
        self._kept.append((path, line))
        self._kept_bytes += len(line)
        try:
            self.write_kept()
        except OSError:
            if self._kept_bytes > KEPT_BYTES:
                self._kept.pop()
                self._kept_bytes -= len(line)
                raise

    def _append(self, path: Path, line: bytes) -> None:
        """Add one line to a file: all of it or, where the disk is full, nothing.

        Raises:
            OSError: it cannot be written.
        """
        self._look_at_folder()
        with append_plain(path) as stream:
            if path in self._whole:  # that time the part could not be taken back either
                stream.truncate(self._whole[path])
                del self._whole[path]
            start = stream.seek(0, os.SEEK_END)
            try:
                if stream.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            except OSError:
                self._whole[path] = start
                stream.truncate(start)
                del self._whole[path]
                raise

    def _look_at_folder(self) -> None:
        """See that the run directory is the one that it was, mounted anew perhaps.

        Raises:
            OSError: it cannot be seen, or another folder has its name.
        """
        found = self._dir.path.stat()
        same = self._folder is None or os.path.samestat(self._folder, found)
        if not (same or is_there(self._dir.order)):
            raise OSError(errno.ESTALE, "another folder has its name", str(self._dir.path))
        self._folder = found

    def _load_findings(self) -> list[Finding]:
        found: list[Finding] = []
        path = self._dir.findings
        lines = load_all_lines(path) if path.is_file() else []  # a program made a pipe of it
        for line in filter(bytes.strip, lines):
            try:
                found.append(Finding.model_validate_json(line))
            except ValidationError as error:
                _log.error("findings.jsonl: %s", error)
        return found


def _fold_line(memory: Memory, line: bytes, sink: Sink | None) -> list[Finding]:
    """Fold one recorded tick into what is remembered; return what it found."""
    tick = _parse_tick(line)
    if tick is None:
        memory.unreadable += 1
        return []
    upto = {int(rank): end for rank, end in tick.upto.items() if rank.isdecimal()}
    beats = memory.tails.read_up_to(upto)
    memory.state, found = fold(memory.state, tick, beats, sink)
    memory.ticks, memory.mono, memory.last = tick.n + 1, tick.mono, tick_digest(line)
    memory.files.update(tick.files)
    return found


def _parse_tick(line: bytes) -> Tick | None:
    try:
        return Tick.model_validate_json(line)
    except ValidationError as error:
        _log.error("watch.jsonl: %s", error, extra={"action": "tick_corrupt"})
        return None


def _cut_torn_line(path: Path) -> None:
    """Cut what a watcher that was killed while writing left after the last newline."""
    if not path.is_file() or path.is_symlink():
        return
    whole = complete_bytes(path)
    if path.stat().st_size != whole:
        with append_plain(path) as stream:
            stream.truncate(whole)
