"""Named sources of numbered sequences.

A source maps (split, index) to the same bytes on every rank and after every restart. A new source
is one class, and one line in `open_source`.
"""

import hashlib
import json
import os
import sysconfig
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from nsa.attention.settings import cache_folder
from nsa.config import SEPARATOR, LoaderConfig
from nsa.errors import DataFailure

_ONE_IN = 20


class NothingHeldOut(DataFailure):
    """No document of this corpus is held out."""


def content_digest(document: bytes) -> bytes:
    """What a document is known by, wherever it lies: 16 bytes."""
    return hashlib.blake2b(document, digest_size=16).digest()


def is_held_out(digest: bytes) -> bool:
    """Whether the document of this `content_digest` is for validation."""
    return int.from_bytes(digest[:8], "big") % _ONE_IN == 0


def split_of(document: bytes) -> str:
    """The split that a document belongs to: "train" or "val"."""
    return "val" if is_held_out(content_digest(document)) else "train"


_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib"}


class LocalText:
    """Text files in a seed's order as two endless streams; validation is the same in each run."""

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


_SPLITS = {"train": 0, "val": 1}
_PROBABILITIES = (0.7, 0.2, 0.07, 0.03)


class MarkovBytes:
    """A chain drawn from the seed; sequence i is drawn from (seed, split, i)."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        table = np.random.default_rng(seed).integers(0, 256, size=(256, len(_PROBABILITIES)))
        self._successors: list[list[int]] = table.tolist()

    def sequence(self, split: str, index: int, length: int) -> NDArray[np.uint8]:
        """Sequence number `index` of a split, `length` + 1 bytes."""
        random = np.random.default_rng((self._seed, _SPLITS[split], index))
        branches = random.choice(len(_PROBABILITIES), size=length, p=_PROBABILITIES)
        value = int(random.integers(256))
        chain = [value]
        for branch in branches.tolist():
            value = self._successors[value][branch]
            chain.append(value)
        return np.array(chain, dtype=np.uint8)

    def epoch(self, index: int, length: int) -> int:
        """0: it never begins again."""
        return 0

    def digest(self) -> str:
        """The table, as a digest."""
        return hashlib.sha256(json.dumps(self._successors).encode()).hexdigest()


_FINEWEB_URL = "hf://datasets/HuggingFaceFW/fineweb-edu@{revision}/sample/10BT"
"""The 10-billion-token sample on the Hugging Face hub."""


class Source(Protocol):
    """Numbered sequences of two splits, "train" and "val", that share no document.

    Those of "val" depend on the corpus alone: not on the seed, nor on the lanes.
    """

    def sequence(self, split: str, index: int, length: int) -> NDArray[np.uint8]:
        """Sequence `index`, `length` + 1 bytes; NothingHeldOut where none is for validation."""
        ...

    def epoch(self, index: int, length: int) -> int:
        """Which pass over the training documents a sequence begins in, from 1; 0 = no passes."""
        ...

    def digest(self) -> str:
        """What the corpus is known by: equal digests serve equal sequences (hex)."""
        ...


@runtime_checkable
class Stream(Source, Protocol):
    """A source that may be slow and is cheap to read only forwards.

    It is read ahead in a thread with time limits, and a checkpoint holds its marks.
    """

    def marks(self, indices: Iterable[int]) -> list[list[int]]:
        """Where the training sequences `indices` begin: equally long rows of whole numbers."""
        ...

    def seek(self, marks: Iterable[Iterable[int]]) -> None:
        """Make the sequences of these marks cheap to read: the rest of the stream follows them."""
        ...


def open_source(name: str, seed: int, lanes: int = 1, loader: LoaderConfig | None = None) -> Source:
    """The source of a `data` name: synthetic, local_text, fineweb_edu or parquet:PATH.

    `lanes` are the sequences of a global batch; each has its own documents of a stream.

    Raises:
        DataFailure: the name is unknown, or what it needs is not here.
    """
    if name == "synthetic":
        return MarkovBytes(seed)
    if name == "local_text":
        return LocalText.of_standard_library(seed)
    if name == "fineweb_edu" or name.startswith("parquet:"):
        return _open_parquet(name, seed, lanes, loader or LoaderConfig.as_if_absent())
    raise DataFailure(
        f"unknown data {name!r}; known: synthetic, local_text, fineweb_edu, parquet:PATH"
    )


def _open_parquet(name: str, seed: int, lanes: int, loader: LoaderConfig) -> Source:
    try:  # pyarrow takes a moment to load, and only these sources need it
        from nsa.data.parquet import ParquetText, RowGroupCache
    except ImportError as error:
        raise DataFailure(f"data {name} needs pyarrow and fsspec: {error}") from error
    if name == "fineweb_edu":
        url = fineweb_edu_url(loader.revision)
    elif not (url := name.removeprefix("parquet:")):
        raise DataFailure("data parquet: needs a folder: parquet:PATH")
    folder = cache_folder()
    cache = None
    if loader.cache_gb and folder is not None:
        cache = RowGroupCache(folder / "row-groups", int(loader.cache_gb * 2**30))
    return ParquetText(url, seed, lanes, cache)


def fineweb_edu_url(revision: str) -> str:
    """Where a revision of FineWeb-Edu lies; DataFailure where nothing reads the hub."""
    url = _FINEWEB_URL.format(revision=revision)
    if url.startswith("hf://") and find_spec("huggingface_hub") is None:
        raise DataFailure("data fineweb_edu needs huggingface_hub: pip install huggingface_hub")
    return url
