"""Text that every machine has: the sources of the running Python's standard library.

Files stand one after another with a zero byte after each. Sequence i is the window of bytes at
i × length. Order and split depend on the files' content.
"""

import hashlib
import os
import sysconfig
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nsa.config import SEPARATOR
from nsa.data.held_out import NothingHeldOut, content_digest, is_held_out
from nsa.errors import DataFailure

_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib"}


class LocalText:
    """Text files as two endless streams; after the last file a stream begins again.

    The seed decides the order of the training files; validation has the same in every run.

    Raises:
        DataFailure: a file cannot be read.
    """

    def __init__(self, root: Path, files: list[tuple[Path, int]], seed: int) -> None:
        self._root = root
        documents: dict[str, list[_Document]] = {"train": [], "val": []}
        for path, _ in files:
            data = _read(path)
            document = _Document(path, content_digest(data), len(data))
            documents["val" if is_held_out(document.digest) else "train"].append(document)
        documents["train"].sort(key=lambda found: (_shuffled(seed, found.digest), found.path))
        documents["val"].sort(key=lambda found: (found.digest, found.path))
        self._streams = {split: _Stream(found) for split, found in documents.items()}

    @classmethod
    def of_standard_library(cls, seed: int) -> "LocalText":
        """The .py files of the running Python, its tests and installed packages left out."""
        root = Path(sysconfig.get_paths()["stdlib"])
        files: list[tuple[Path, int]] = []
        for folder, subfolders, names in os.walk(root):
            subfolders[:] = [name for name in subfolders if name not in _LEFT_OUT]
            paths = [Path(folder, name) for name in names if name.endswith(".py")]
            files += [(path, path.stat().st_size) for path in paths if path.is_file()]
        return cls(root, files, seed)

    def paths(self, split: str) -> list[Path]:
        """The files of a split in stream order."""
        return [document.path for document in self._streams[split].documents]

    def sequence(self, split: str, index: int, length: int) -> NDArray[np.uint8]:
        """Sequence number `index` of a split, `length` + 1 bytes (the last is the next's first)."""
        stream = self._streams[split]
        if not stream.documents:
            if split == "val":
                raise NothingHeldOut(f"no file below {self._root} is held out")
            raise DataFailure(f"no text to train on below {self._root}")
        data = stream.read(index * length, length + 1)
        return np.frombuffer(data, dtype=np.uint8)

    def epoch(self, index: int, length: int) -> int:
        """Which pass over the training files sequence `index` begins in, from 1."""
        return index * length // self._streams["train"].size + 1

    def digest(self) -> str:
        """SHA-256 (hex) of what both streams consist of, in order."""
        whole = hashlib.sha256()
        for stream in self._streams.values():
            whole.update(b"".join(document.digest for document in stream.documents) + b"\n")
        return whole.hexdigest()


class _Document:
    """A file as it was when it was first read."""

    __slots__ = ("digest", "path", "size")

    def __init__(self, path: Path, digest: bytes, size: int) -> None:
        self.path, self.digest, self.size = path, digest, size


class _Stream:
    """Files one after another, a separator after each."""

    def __init__(self, documents: list[_Document]) -> None:
        self.documents = documents
        self._ends = list(accumulate(found.size + len(SEPARATOR) for found in documents))
        self._document = lru_cache(maxsize=16)(self._read_document)

    @property
    def size(self) -> int:
        """How long it is before it begins again."""
        return self._ends[-1]

    def read(self, start: int, count: int) -> bytes:
        """`count` bytes from position `start` of the endless stream."""
        parts: list[bytes] = []
        position = start % self.size
        while count > 0:
            number = bisect_right(self._ends, position)
            begin = self._ends[number - 1] if number else 0
            part = self._document(number)[position - begin :][:count]
            parts.append(part)
            count -= len(part)
            position = (position + len(part)) % self.size
        return b"".join(parts)

    def _read_document(self, number: int) -> bytes:
        document = self.documents[number]
        data = _read(document.path)
        if content_digest(data) != document.digest:
            raise DataFailure(f"{document.path} changed while training")
        return data + SEPARATOR


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataFailure(f"cannot read {path}: {error}") from error


def _shuffled(seed: int, digest: bytes) -> bytes:
    return content_digest(f"{seed}/".encode() + digest)
