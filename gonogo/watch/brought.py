"""Which lines did each recorded tick bring? Read from the heartbeat files, in two ways.

By bytes, as the watcher read them; by boot and seq where a line is lost or lines were moved.
"""

import contextlib
import io
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO
from zlib import crc32

from gonogo.contract.errors import Corrupt
from gonogo.contract.heartbeat import MAX_LINE_BYTES, Heartbeat, parse_heartbeat
from gonogo.contract.tick import LinesSeen, Tick
from gonogo.rundir import PIECE_BYTES, RunDir, iter_lines, open_lines
from gonogo.timeline.boots import boots_in_order

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
    """A file read forwards, in whole lines: where an edit moved them, a part waits for its rest.

    What outgrew a line while a look of the watcher found no end of it was a line of that look, as
    `load_lines` has it, and so was its rest; counted otherwise here, findings would differ.
    """

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
        data = self._stream.read(size)
        self._offset += len(data)
        lines = self._whole(data)
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
    """Gives each tick the lines up to the `seq` that it says it had read, in order of `seq`.

    A tick says how far lines reach without a hole. Beyond a line that nobody had when the tick was
    made it gets what its bytes say, as if the lines had been written in that order.
    """

    def __init__(
        self,
        run_dir: RunDir,
        named: Mapping[int, Iterable[str]],
        upto: Mapping[int, int],
    ) -> None:
        """Read where every line stands.

        Args:
            run_dir: the run's directory.
            named: rank → its boots in the order in which the ticks name them.
            upto: rank → bytes of its file that were read while the run was watched.
        """
        self._ranks = {
            rank: _Sorted(run_dir.heartbeat(rank), rank, named.get(rank, ()), upto.get(rank, 0))
            for rank in run_dir.ranks()
        }

    def lines_of(self, tick: Tick) -> dict[int, list[bytes]]:
        """Return rank → the lines that a tick brought; each is given once."""
        found = {}
        for rank, lines in self._ranks.items():
            seen, upto = tick.lines.get(str(rank)), tick.upto.get(str(rank), 0)
            if seen is not None:
                found[rank] = lines.read_up_to(seen, upto)
            if loose := lines.read_loose(upto):
                found[rank] = found.get(rank, []) + loose
        return found

    def rest(self) -> Iterator[dict[int, list[bytes]]]:
        """Yield what no tick brought, in parts."""
        for rank, lines in self._ranks.items():
            while part := lines.read_part():
                yield {rank: part}


_Row = tuple[int, int, int, int, int]
"""Place of the boot, seq, checksum of the bytes, where they begin in the file, their number."""


class _Sorted:
    """One rank's lines by boot and seq: where each begins, and nothing else, is kept.

    What is no line of this rank stands where the first line is missing, and so does what is gone of
    the bytes: a line that was torn is both. Where none is missing, it comes as soon as a tick had
    read so many bytes more than there are in the lines up to then.
    """

    def __init__(self, path: Path, rank: int, named: Iterable[str], upto: int) -> None:
        self._path = path
        began: dict[str, float] = {}
        read: list[tuple[str, int, int, int, int]] = []
        torn: list[tuple[int, int, int]] = []
        offset = 0
        for raw in iter_lines(path):
            beat = _beat_of(raw)
            if beat is not None and beat.rank == rank:
                boot = sys.intern(beat.boot)
                began[boot] = min(beat.mono, began.get(boot, beat.mono))
                read.append((boot, beat.seq, crc32(raw.rstrip()), offset, len(raw)))
            elif raw.strip():
                torn.append((crc32(raw), offset, len(raw)))
            offset += len(raw)
        self._places = {boot: i for i, boot in enumerate(boots_in_order(began, named))}
        rows = sorted((self._places[row[0]], *row[1:]) for row in read)
        rows = [row for i, row in enumerate(rows) if not i or row[:3] != rows[i - 1][:3]]
        hole = _first_hole(rows)
        torn.sort()
        told = sum(row[4] for row in rows) + sum(row[2] for row in torn)
        if hole is not None:
            rows[hole:hole] = [(*rows[hole][:2], *row) for row in torn]
        self._boot = array("l", [row[0] for row in rows])
        self._seq = array("q", [row[1] for row in rows])
        self._start = array("q", [row[3] for row in rows])
        self._end = array("q", accumulate(row[4] for row in rows))
        """How many bytes there would be up to the end of each line, had they stood in order."""
        gone = max(0, upto - told)
        for index in range(len(rows) if hole is None else hole, len(rows)):
            self._end[index] += gone
        self._next = 0
        self._loose = sorted(torn, key=lambda row: -row[2]) if hole is None else []
        self._loose_bytes = 0

    def read_up_to(self, seen: LinesSeen, upto: int) -> list[bytes]:
        place = self._places.get(seen.boot)
        if place is None:
            return []
        end, count = self._next, len(self._seq)
        while end < count and (self._boot[end], self._seq[end]) <= (place, seen.seq):
            end += 1
        if end < count and self._boot[end] == place and self._seq[end] > seen.seq + 1:
            while end < count and self._boot[end] == place and self._end[end] <= upto:
                end += 1
        return self._read(end)

    def read_loose(self, upto: int) -> list[bytes]:
        """Return what is no line of this rank and was read, besides its lines, up to a byte."""
        if not self._loose:
            return []
        left = upto - self._loose_bytes - (self._end[self._next - 1] if self._next else 0)
        found, kept = [], []
        for row in self._loose:
            if row[2] <= left:
                left -= row[2]
                found.append(row)
            else:
                kept.append(row)
        self._loose, self._loose_bytes = kept, self._loose_bytes + sum(row[2] for row in found)
        return self._lines_at(row[1] for row in found)

    def read_part(self) -> list[bytes]:
        return self._read(min(len(self._seq), self._next + 4096))

    def _read(self, end: int) -> list[bytes]:
        lines = self._lines_at(self._start[index] for index in range(self._next, end))
        self._next = end
        return lines

    def _lines_at(self, offsets: Iterable[int]) -> list[bytes]:
        places = list(offsets)
        lines: list[bytes] = []
        if not places:
            return lines
        with open_lines(self._path) as stream:
            for offset in places:
                stream.seek(offset)
                lines.append(stream.readline(PIECE_BYTES))  # no more than was found there
        return lines


def _first_hole(rows: Sequence[_Row]) -> int | None:
    """Return the index of the first line in front of which one is missing; None without any."""
    boot, last = -1, 0
    for index, row in enumerate(rows):
        expected = 1 if row[0] != boot else last + 1
        if row[1] > expected:
            return index
        boot, last = row[0], row[1]
    return None


def _beat_of(raw: bytes) -> Heartbeat | None:
    """Return the heartbeat on a line, or None when it is none."""
    try:
        return parse_heartbeat(raw)
    except Corrupt:
        return None
