"""An endless stream of packed documents, divided into lanes.

Sequence i of a global batch of G comes from lane i mod G, so a step does not depend on the number
of ranks. Documents are packed one after another, a zero byte after each. A lane whose own pieces
hold no text reads those of all (`spare`). `mark(n)` says where sequence n begins; `seek` goes
there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nsa.errors import DataFailure

_MARKS_KEPT = 256


class NoText(DataFailure):
    """The pieces of a lane hold no document."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Piece:
    """Some documents of a file: those of one row group (None: of all), each `stride`-th of them."""

    path: str
    row_group: int | None = None
    start: int = 0
    stride: int = 1

    def cut(self, parts: int) -> list["Piece"]:
        """The piece as `parts` pieces that share no document."""
        return [
            replace(self, start=self.start + self.stride * part, stride=self.stride * parts)
            for part in range(parts)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Where sequence `n` of a lane begins: at byte `offset` of a chunk of a piece.

    `epoch` counts how often the lane has begun again before.
    """

    n: int = 0
    piece: int = 0
    chunk: int = 0
    offset: int = 0
    epoch: int = 0


def deal(pieces: list[Piece], lanes: int) -> list[list[Piece]]:
    """The pieces of every lane, in order; pieces are cut when there are fewer than lanes."""
    if len(pieces) < lanes:
        pieces = [part for piece in pieces for part in piece.cut(-(-lanes // len(pieces)))]
    return [pieces[lane::lanes] for lane in range(lanes)]


class Lane:
    """One endless stream of pieces; `spare` is read where `pieces` turn out to hold no text.

    `read` gives packed bytes of chunk 0, 1, … of a piece, None beyond its last chunk.
    """

    def __init__(
        self,
        pieces: list[Piece],
        read: Callable[[Piece, int], bytes | None],
        spare: Sequence[Piece] = (),
    ) -> None:
        self._own, self._pieces, self._read = len(pieces), [*pieces, *spare], read
        self._held: tuple[int, int, bytes | None] = (-1, -1, None)
        self._marks = {0: Mark()}

    def sequence(self, n: int, length: int) -> bytes:
        """Sequence n, `length` + 1 bytes (the last is the next one's first).

        Raises:
            DataFailure: the documents cannot be read.
            NoText: there are none.
        """
        mark = self.mark(n, length)
        data, after = self._walk(mark, length)
        self._keep(replace(after, n=n + 1))
        return data + self._walk(after, 1)[0]

    def mark(self, n: int, length: int) -> Mark:
        """Where sequence n begins; reads up to there when it has to."""
        if n in self._marks:
            return self._marks[n]
        mark = self._marks[max((known for known in self._marks if known < n), default=0)]
        while mark.n < n:
            mark = replace(self._walk(mark, length)[1], n=mark.n + 1)
            self._keep(mark)
        return mark

    def seek(self, mark: Mark) -> None:
        """Know where a sequence begins without having read what lies before it."""
        self._keep(mark)

    def _keep(self, mark: Mark) -> None:
        self._marks[mark.n] = mark
        if len(self._marks) > _MARKS_KEPT:
            del self._marks[min(known for known in self._marks if known)]

    def _walk(self, mark: Mark, count: int) -> tuple[bytes, Mark]:
        """`count` bytes from a mark, and where they end."""
        parts: list[bytes] = []
        ends_seen = 0  # since the last byte
        while count > 0:
            data = self._chunk(mark)
            if data is None:
                ends_seen += 1
                first, end = self._round(mark)
                if ends_seen <= end - first:
                    mark = _begin(mark, mark.piece + 1 if mark.piece + 1 < end else first, first)
                elif end < len(self._pieces):  # nothing in its own: the spare ones
                    mark, ends_seen = Mark(n=mark.n, piece=end), 0
                else:
                    raise NoText(f"no text in {self._pieces[0].path} and its like")
                continue
            part = data[mark.offset : mark.offset + count]
            if not part:
                mark = replace(mark, chunk=mark.chunk + 1, offset=0)
                continue
            parts.append(part)
            ends_seen = 0
            count -= len(part)
            mark = replace(mark, offset=mark.offset + len(part))
        return b"".join(parts), mark

    def _round(self, mark: Mark) -> tuple[int, int]:
        """The pieces that are read one after another where a mark stands: its own, or the spare."""
        return (0, self._own) if mark.piece < self._own else (self._own, len(self._pieces))

    def _chunk(self, mark: Mark) -> bytes | None:
        if self._held[:2] != (mark.piece, mark.chunk):
            data = self._read(self._pieces[mark.piece], mark.chunk)
            self._held = (mark.piece, mark.chunk, data)
        return self._held[2]


def _begin(mark: Mark, piece: int, first: int) -> Mark:
    """The beginning of the piece that comes after a mark's; the first one begins an epoch."""
    epoch = mark.epoch + (piece == first)
    return replace(mark, piece=piece, chunk=0, offset=0, epoch=epoch)
