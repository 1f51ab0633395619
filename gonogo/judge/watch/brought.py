"""Which lines did each recorded tick bring? Read from the heartbeat files, in two ways.

By bytes, as the watcher read them; by boot and seq where the files were rearranged since.
"""

import contextlib
import io
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from gonogo.contract.errors import Corrupt
from gonogo.contract.heartbeat import Heartbeat, parse_heartbeat
from gonogo.contract.tick import LinesSeen, Tick
from gonogo.rundir import RunDir, iter_lines, open_file

_PART = 2**20


class ByBytes:
    """Gives each tick the lines up to the bytes that it says it had read."""

    def __init__(self, run_dir: RunDir) -> None:
        self._files = {rank: _Tail(run_dir.heartbeat(rank)) for rank in run_dir.ranks()}

    def lines_of(self, tick: Tick) -> dict[int, list[bytes]]:
        """Return rank → the lines that a tick brought; each is given once."""
        found = {}
        for rank, file in self._files.items():
            end = tick.upto.get(str(rank))
            if end is not None:
                found[rank] = file.read_up_to(end)
        return found

    def rest(self) -> Iterator[dict[int, list[bytes]]]:
        """Yield what no tick brought, in parts."""
        for rank, file in self._files.items():
            while lines := file.read_part():
                yield {rank: lines}


class _Tail:
    """A file read forwards, in whole lines: where an edit moved them, a part waits for its rest."""

    def __init__(self, path: Path) -> None:
        self._stream: IO[bytes] = io.BytesIO()  # what cannot be opened has no lines
        self._offset = 0
        self._torn = b""
        with contextlib.suppress(OSError):
            self._stream = open_file(path)

    def __del__(self) -> None:
        self._stream.close()

    def read_up_to(self, end: int) -> list[bytes]:
        size = min(end, self._size()) - self._offset
        if size <= 0:
            return []
        data = self._stream.read(size)
        self._offset += len(data)
        return self._whole(data)

    def _size(self) -> int:
        """Return how many bytes there are to read, whatever a tick says."""
        here = self._stream.tell()
        size = self._stream.seek(0, io.SEEK_END)
        self._stream.seek(here)
        return size

    def _whole(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete; the part behind them is kept."""
        data = self._torn + data
        cut = data.rfind(b"\n") + 1
        self._torn = data[cut:]
        return data[:cut].splitlines()

    def read_part(self) -> list[bytes]:
        data = self._stream.read(_PART)
        if data and not data.endswith(b"\n"):
            data += self._stream.readline()
        self._offset += len(data)
        return self._whole(data)  # a torn last line waits for its end


class BySeq:
    """Gives each tick the lines up to the `seq` that it says it had read, in order of `seq`."""

    def __init__(self, run_dir: RunDir) -> None:
        self._ranks = {rank: _Sorted(run_dir.heartbeat(rank)) for rank in run_dir.ranks()}

    def lines_of(self, tick: Tick) -> dict[int, list[bytes]]:
        """Return rank → the lines that a tick brought; each is given once."""
        found = {}
        for rank, lines in self._ranks.items():
            seen = tick.lines.get(str(rank))
            if seen is not None:
                found[rank] = lines.read_up_to(seen)
        return found

    def rest(self) -> Iterator[dict[int, list[bytes]]]:
        """Yield what no tick brought, in parts."""
        for rank, lines in self._ranks.items():
            while part := lines.read_part():
                yield {rank: part}


class _Sorted:
    """One rank's lines by boot and seq: where each begins, and nothing else, is kept.

    Boots come in the order in which their clocks began: processes that follow each other on a host
    share it, and lines that were moved about say nothing by where they stand.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        began: dict[str, float] = {}
        read: list[tuple[str, int, int]] = []
        offset = 0
        for raw in iter_lines(path):
            beat = _beat_of(raw)
            if beat is not None:
                boot = sys.intern(beat.boot)
                began[boot] = min(beat.mono, began.get(boot, beat.mono))
                read.append((boot, beat.seq, offset))
            offset += len(raw)
        self._boots = sorted(began, key=lambda boot: (began[boot], boot))
        order = {boot: place for place, boot in enumerate(self._boots)}
        rows = sorted((order[boot], seq, start) for boot, seq, start in read)
        self._boot = array("l", [row[0] for row in rows])
        self._seq = array("q", [row[1] for row in rows])
        self._start = array("q", [row[2] for row in rows])
        self._next = 0

    def read_up_to(self, seen: LinesSeen) -> list[bytes]:
        if seen.boot not in self._boots:
            return []
        last = (self._boots.index(seen.boot), seen.seq)
        end = self._next
        while end < len(self._seq) and (self._boot[end], self._seq[end]) <= last:
            end += 1
        return self._read(end)

    def read_part(self) -> list[bytes]:
        return self._read(min(len(self._seq), self._next + 4096))

    def _read(self, end: int) -> list[bytes]:
        lines: list[bytes] = []
        if end == self._next:
            return lines
        with open_file(self._path) as stream:
            for index in range(self._next, end):
                stream.seek(self._start[index])
                lines.append(stream.readline())
        self._next = end
        return lines


def _beat_of(raw: bytes) -> Heartbeat | None:
    """Return the heartbeat on a line, or None when it is none."""
    try:
        return parse_heartbeat(raw)
    except Corrupt:
        return None
