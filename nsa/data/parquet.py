"""Text in Parquet files, as FineWeb-Edu publishes it: how is it read by many ranks?

A folder (local, or any URL that fsspec opens) of `*.parquet` files with a string column `text`.
One in twenty pieces is held out for validation; a piece is a row group, or a whole file where there
are many. The index is made when the first sequence is asked for, which may take seconds.
Row groups of remote files can be kept in a local cache of bounded size (`nsa.data.cache`).
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nsa.config import SEPARATOR
from nsa.data.cache import RowGroupCache
from nsa.data.lanes import Lane, Mark, Piece, deal
from nsa.errors import DataFailure

_COLUMN = "text"
_VAL_SHARE = 20


class ParquetText:
    """Documents of a folder as `lanes` endless streams of each split.

    Args:
        url: the folder; every `*.parquet` below it belongs to it.
        seed: decides the order of the pieces, not which are held out.
        lanes: streams of a split; sequence i comes from stream i mod lanes.
        cache: where row groups of remote files are kept; None = nowhere.

    Raises:
        DataFailure: nothing can open such a URL.
    """

    def __init__(self, url: str, seed: int, lanes: int, cache: RowGroupCache | None = None) -> None:
        self._url, self._seed, self._lanes, self._cache = url, seed, lanes, cache
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except Exception as error:  # noqa: BLE001 - every file system of fsspec raises its own kinds
            raise DataFailure(f"cannot open {url}: {error}") from None
        self._opened = lru_cache(maxsize=8)(self._open)
        self._length = 0
        self._sought: list[tuple[int, Mark]] = []

    def sequence(self, split: str, index: int, length: int) -> NDArray[np.uint8]:
        """Sequence number `index` of a split, `length` + 1 bytes."""
        self._length = length
        lane = self._streams[split][index % self._lanes]
        return np.frombuffer(lane.sequence(index // self._lanes, length), dtype=np.uint8)

    def marks(self, indices: Iterable[int]) -> list[list[int]]:
        """Where training sequences begin: rows [lane, n, piece, chunk, offset]."""
        rows = []
        for index in indices:
            mark = self._lane(index).mark(index // self._lanes, self._length)
            rows.append([index % self._lanes, mark.n, mark.piece, mark.chunk, mark.offset])
        return rows

    def seek(self, marks: Iterable[Iterable[int]]) -> None:
        """Go on at marks that `marks` of the same folder, seed and lanes has given.

        To be called before the first sequence is asked for.
        """
        for lane, n, piece, chunk, offset in marks:
            self._sought.append((lane, Mark(n=n, piece=piece, chunk=chunk, offset=offset)))

    def pieces(self, split: str) -> list[list[Piece]]:
        """The pieces of every lane of a split."""
        return self._dealt[split]

    def _lane(self, index: int) -> Lane:
        return self._streams["train"][index % self._lanes]

    @cached_property
    def _streams(self) -> dict[str, list[Lane]]:
        streams = {
            split: [Lane(pieces, self._packed) for pieces in lanes]
            for split, lanes in self._dealt.items()
        }
        for lane, mark in self._sought:
            streams["train"][lane].seek(mark)
        return streams

    @cached_property
    def _dealt(self) -> dict[str, list[list[Piece]]]:
        pieces = self._index()
        if len(pieces) == 1:
            pieces = pieces[0].cut(_VAL_SHARE)
        by_hash = sorted(pieces, key=lambda piece: _hash(self._name(piece)))
        held_out = max(1, len(pieces) // _VAL_SHARE)
        splits = {"val": by_hash[:held_out], "train": by_hash[held_out:]}
        return {
            split: deal(
                sorted(found, key=lambda piece: _hash(f"{self._seed}/{self._name(piece)}")),
                self._lanes,
            )
            for split, found in splits.items()
        }

    def _index(self) -> list[Piece]:
        """Files where there are many, else their row groups."""
        with _reading(self._url):
            paths = sorted(path for path in self._files.find(self._root) if _is_data(path))
        if not paths:
            raise DataFailure(f"no .parquet files below {self._url}")
        if len(paths) >= max(_VAL_SHARE, 2 * self._lanes):
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

    def _packed(self, piece: Piece, chunk: int) -> bytes | None:
        group = chunk if piece.row_group is None else piece.row_group
        if chunk and piece.row_group is not None:
            return None
        texts = self._texts(piece.path, group)
        if texts is None:
            return None
        documents = (text.as_py() for text in texts[piece.start :: piece.stride])
        return b"".join(
            text.encode("utf-8", "replace").replace(SEPARATOR, b"") + SEPARATOR
            for text in documents
            if text
        )

    def _texts(self, path: str, group: int) -> pa.ChunkedArray | None:
        name = f"{self._url}/{path}/{group}"
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
        return file


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # every file system of fsspec raises its own kinds
        raise DataFailure(f"cannot read {what}: {error!r}") from error


def _is_data(path: str) -> bool:
    return path.endswith(".parquet") and not path.rpartition("/")[2].startswith((".", "_"))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
