"""Is there real text on every machine? The running Python's own standard-library sources.

Documents are packed, not cut: they stand one after another with a zero byte after each (UTF-8
text holds none), and sequence i is the window of bytes that starts at i × length. Train and
validation share no file. Files are opened when a sequence needs them; the index needs only sizes.
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
from nsa.errors import DataFailure

_VAL_SHARE = 20  # one file in twenty
_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib"}


class LocalText:
    """Text files as two endless streams; after the last file a stream begins again.

    Args:
        root: folder that the names are relative to.
        files: paths and sizes in bytes.
        seed: decides the order of the files, not which are held out.

    Raises:
        DataFailure: a split has no file.
    """

    def __init__(self, root: Path, files: list[tuple[Path, int]], seed: int) -> None:
        split_files: dict[str, list[tuple[str, Path, int]]] = {"train": [], "val": []}
        for path, size in files:
            name = path.relative_to(root).as_posix()
            held_out = _hash(name) % _VAL_SHARE == 0
            split_files["val" if held_out else "train"].append((name, path, size))
        self._streams: dict[str, _Stream] = {}
        for split, found in split_files.items():
            if not found:
                raise DataFailure(f"no {split} files below {root}")
            found.sort(key=lambda item: _hash(f"{seed}/{item[0]}"))
            self._streams[split] = _Stream([(path, size) for _, path, size in found])

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
        return self._streams[split].paths

    def sequence(self, split: str, index: int, length: int) -> NDArray[np.uint8]:
        """Sequence number `index` of a split, `length` + 1 bytes (the last is the next's first)."""
        data = self._streams[split].read(index * length, length + 1)
        return np.frombuffer(data, dtype=np.uint8)


class _Stream:
    """Files one after another, a separator after each."""

    def __init__(self, files: list[tuple[Path, int]]) -> None:
        self.paths = [path for path, _ in files]
        self._ends = list(accumulate(size + len(SEPARATOR) for _, size in files))
        self._document = lru_cache(maxsize=16)(self._read_document)

    def read(self, start: int, count: int) -> bytes:
        """`count` bytes from position `start` of the endless stream."""
        parts: list[bytes] = []
        position = start % self._ends[-1]
        while count > 0:
            number = bisect_right(self._ends, position)
            begin = self._ends[number - 1] if number else 0
            part = self._document(number)[position - begin :][:count]
            parts.append(part)
            count -= len(part)
            position = (position + len(part)) % self._ends[-1]
        return b"".join(parts)

    def _read_document(self, number: int) -> bytes:
        path = self.paths[number]
        try:
            data = path.read_bytes() + SEPARATOR
        except OSError as error:
            raise DataFailure(f"cannot read {path}: {error}") from error
        expected = self._ends[number] - (self._ends[number - 1] if number else 0)
        if len(data) != expected:
            raise DataFailure(f"{path} changed while training: {len(data)} bytes, not {expected}")
        return data


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
