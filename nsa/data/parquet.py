"""Text in a folder of Parquet files with a column `text`, as FineWeb-Edu has it.

Any URL that fsspec opens. Pieces (row groups, or files where there are many) are dealt to lanes.
Sequence i of a global batch of G comes from lane i mod G, so a step does not depend on the number
of ranks. Documents are held out by content; validation is one stream for all lanes and seeds.
"""

import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nsa.config import SEPARATOR
from nsa.data.batches import NothingHeldOut, split_of
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
    """The place where sequence `n` begins: byte `offset` of a chunk of a piece, in an epoch."""

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
    """One endless stream of pieces, by `read(piece, chunk)`; `spare` where those hold no text."""

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
        """Sequence n, `length` + 1 bytes (the last is the next's first); NoText: there is none."""
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


_COLUMN = "text"
_MANY_FILES = 20
_READ_WHOLE_BYTES = 256 * 2**20
_TAIL_BYTES = 64 * 2**10
_REMOTE_MARKS = ("ETag", "etag", "checksum", "md5", "md5Hash", "crc32c", "blob_id", "lfs")


class RowGroupCache:
    """The latest row groups of remote files by name, in a folder of limited size; never fatal."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes

    def load(self, name: str) -> pa.Table | None:
        """The table of a name; None when it is not here."""
        file = self._file(name)
        try:
            table = pq.read_table(file)
            os.utime(file)
        except (OSError, pa.ArrowException):
            return None
        return table

    def save(self, name: str, table: pa.Table) -> None:
        """Keep a table, at the cost of the least recently used; one that is too large is not."""
        file = self._file(name)
        draft = file.with_suffix(f".{secrets.token_hex(4)}")
        try:
            packed = pa.BufferOutputStream()
            pq.write_table(table, packed, compression="zstd")
            data = packed.getvalue()
            if data.size > self._limit_bytes:
                return
            self._folder.mkdir(parents=True, exist_ok=True)
            self._shrink(self._limit_bytes - data.size)
            draft.write_bytes(data)
            draft.replace(file)
        except (OSError, pa.ArrowException):
            with suppress(OSError):
                draft.unlink()

    def _file(self, name: str) -> Path:
        return self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.parquet"

    def _shrink(self, limit_bytes: int) -> None:
        """Delete what is oldest until the rest fits; a killed process's drafts are old some day."""
        kept = []
        for file in self._folder.iterdir():
            try:
                kept.append((file.stat().st_mtime, file.stat().st_size, file))
            except FileNotFoundError:  # another rank was quicker
                continue
        total = sum(size for _, size, _ in kept)
        for _, size, file in sorted(kept):
            if total <= limit_bytes:
                return
            file.unlink(missing_ok=True)
            total -= size


class ParquetText:
    """Documents of a folder as `lanes` endless streams to train on, and one to validate on.

    Every `*.parquet` below the URL belongs to it; sequence i comes from stream i mod lanes.

    Raises:
        DataFailure: nothing can open such a URL.
    """

    def __init__(self, url: str, seed: int, lanes: int, cache: RowGroupCache | None = None) -> None:
        self._url, self._seed, self._lanes = url, seed, lanes
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except Exception as error:  # noqa: BLE001 - every file system of fsspec raises its own kinds
            raise DataFailure(f"cannot open {url}: {error}") from None
        self._local = "file" in _protocols(self._files)
        self._cache = None if self._local else cache
        self._opened = lru_cache(maxsize=8)(self._open)
        self._length = 0
        self._sought: list[tuple[int, Mark]] = []

    def sequence(self, split: str, index: int, length: int) -> NDArray[np.uint8]:
        """Sequence number `index` of a split, `length` + 1 bytes."""
        self._length = length
        if split == "val":
            return np.frombuffer(self._held_out(index, length), dtype=np.uint8)
        lane = self._lane(index)
        return np.frombuffer(lane.sequence(index // self._lanes, length), dtype=np.uint8)

    def epoch(self, index: int, length: int) -> int:
        """Which pass over its lane's documents training sequence `index` begins in, from 1."""
        return self._lane(index).mark(index // self._lanes, length).epoch + 1

    def marks(self, indices: Iterable[int]) -> list[list[int]]:
        """Starts of training sequences: rows [lane, n, piece, chunk, offset, epoch]."""
        rows = []
        for index in indices:
            mark = self._lane(index).mark(index // self._lanes, self._length)
            place = (mark.n, mark.piece, mark.chunk, mark.offset, mark.epoch)
            rows.append([index % self._lanes, *place])
        return rows

    def seek(self, marks: Iterable[Iterable[int]]) -> None:
        """Continue at what `marks` of the same folder, seed and lanes returned; called first."""
        for lane, n, piece, chunk, offset, epoch in marks:
            mark = Mark(n=n, piece=piece, chunk=chunk, offset=offset, epoch=epoch)
            self._sought.append((lane, mark))

    def digest(self) -> str:
        """SHA-256 (hex) of the folder: names, sizes, and what says most about their content.

        That is the whole content of up to 256 MB of local files, the footers of more, and what the
        other side says of remote ones (ETag and its like).
        """
        whole = hashlib.sha256()
        small = sum(int(size) for _, size, _ in self._found) <= _READ_WHOLE_BYTES
        for path, size, said in self._found:
            content = self._content(path, int(size), whole=small) if self._local else said
            whole.update(f"{path.removeprefix(self._root)}\0{size}\0{content}\n".encode())
        return whole.hexdigest()

    def pieces(self) -> list[list[Piece]]:
        """The pieces of every training lane."""
        pieces = sorted(self._index(), key=lambda piece: _hash(f"{self._seed}/{self._name(piece)}"))
        return deal(pieces, self._lanes)

    def _lane(self, index: int) -> Lane:
        return self._train[index % self._lanes]

    def _held_out(self, index: int, length: int) -> bytes:
        try:
            return self._val.sequence(index, length)
        except NoText:
            raise NothingHeldOut(f"no document of {self._url} is held out") from None

    @cached_property
    def _train(self) -> list[Lane]:
        dealt = self.pieces()
        # Whole pieces: every document of the corpus, for a lane without one of its own.
        spare = sorted({replace(piece, start=0, stride=1) for own in dealt for piece in own})
        lanes = [
            Lane(own, partial(self._packed, "train"), spare[lane % len(spare) :] + spare)
            for lane, own in enumerate(dealt)
        ]
        for lane, mark in self._sought:
            lanes[lane].seek(mark)
        return lanes

    @cached_property
    def _val(self) -> Lane:
        """All files in an order of their own: neither lanes nor seed have a say."""
        files = [Piece(path=path) for path, _, _ in self._found]
        return Lane(
            sorted(files, key=lambda piece: _hash(self._name(piece))), partial(self._packed, "val")
        )

    @cached_property
    def _found(self) -> list[tuple[str, int, str]]:
        """Path, size and what the file system says of the content of every file, by path."""
        with _reading(self._url):
            listed: dict[str, dict[str, Any]] = self._files.find(self._root, detail=True)
        found = [
            (path, info.get("size") or 0, "/".join(_said(info)))
            for path, info in sorted(listed.items())
            if _is_data(path)
        ]
        if not found:
            raise DataFailure(f"no .parquet files below {self._url}")
        return found

    @cached_property
    def _versions(self) -> dict[str, str]:
        """What a file that is replaced under its name is known by."""
        return {path: f"{size}/{said}" for path, size, said in self._found}

    def _index(self) -> list[Piece]:
        """Files where there are many, else their row groups."""
        paths = [path for path, _, _ in self._found]
        if len(paths) >= max(_MANY_FILES, 2 * self._lanes):
            return [Piece(path=path) for path in paths]
        return [
            Piece(path=path, row_group=group)
            for path in paths
            for group in range(self._opened(path).num_row_groups)
        ]

    def _name(self, piece: Piece) -> str:
        """A name that does not depend on where the folder lies."""
        path = piece.path.removeprefix(self._root)
        return f"{path}/{piece.row_group}/{piece.start}/{piece.stride}"

    def _packed(self, split: str, piece: Piece, chunk: int) -> bytes | None:
        """A piece's documents of a split; of those each `stride`-th."""
        group = chunk if piece.row_group is None else piece.row_group
        if chunk and piece.row_group is not None:
            return None
        texts = self._texts(piece.path, group)
        if texts is None:
            return None
        with _reading(f"the texts in row group {group} of {piece.path}"):
            documents = [_document(text.as_py()) for text in texts]
        own = [document for document in documents if document and split_of(document) == split]
        return b"".join(document + SEPARATOR for document in own[piece.start :: piece.stride])

    def _content(self, path: str, size: int, *, whole: bool) -> str:
        with _reading(path), self._files.open(path, "rb") as file:
            if not whole:
                file.seek(max(0, size - _TAIL_BYTES))
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _texts(self, path: str, group: int) -> pa.ChunkedArray | None:
        name = f"{self._url}/{path}/{group}/{self._versions[path]}"
        if self._cache is not None and (held := self._cache.load(name)) is not None:
            return held.column(_COLUMN)
        file = self._opened(path)
        if group >= file.num_row_groups:
            return None
        with _reading(f"row group {group} of {path}"):
            table = file.read_row_group(group, columns=[_COLUMN], use_threads=False)
        if self._cache is not None:
            self._cache.save(name, table)
        return table.column(_COLUMN)

    def _open(self, path: str) -> pq.ParquetFile:
        with _reading(path):
            file = pq.ParquetFile(self._files.open(path, "rb"))
        if _COLUMN not in file.schema_arrow.names:
            raise DataFailure(f"{path} has no column {_COLUMN!r}")
        kind = file.schema_arrow.field(_COLUMN).type
        if not _is_text(kind):
            raise DataFailure(f"{path}: column {_COLUMN!r} holds {kind}, no text")
        return file


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # every file system of fsspec raises its own kinds
        raise DataFailure(f"cannot read {what}: {error!r}") from error


def _is_text(kind: pa.DataType) -> bool:
    of = pa.types
    values = kind.value_type if of.is_dictionary(kind) else kind
    texts = (of.is_string, of.is_large_string, of.is_string_view, of.is_null)
    return any(is_one(values) for is_one in texts)


def _document(text: str | None) -> bytes:
    """The bytes of a document, of which none is the separator."""
    return (text or "").encode("utf-8", "replace").replace(SEPARATOR, b"")


def _protocols(files: Any) -> tuple[str, ...]:
    return (files.protocol,) if isinstance(files.protocol, str) else tuple(files.protocol)


def _said(info: dict[str, Any]) -> Iterator[str]:
    """What a remote file system says of a file's content; nothing, where it says nothing."""
    for name in _REMOTE_MARKS:
        if name in info:
            yield f"{name}={info[name]}"


def _is_data(path: str) -> bool:
    return path.endswith(".parquet") and not path.rpartition("/")[2].startswith((".", "_"))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
