"""Named sources of numbered sequences.

A source maps (split, index) to the same bytes on every rank and after every restart. A new source
is one class, and one line in `open_source`.
"""

import hashlib
import json
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from nsa.attention.settings import cache_folder
from nsa.config import LoaderConfig
from nsa.data.local_text import LocalText
from nsa.errors import DataFailure

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
        """Sequence number `index` (0, 1, 2, … without end), `length` + 1 bytes.

        Raises:
            DataFailure: it cannot be read; `NothingHeldOut` where there is nothing to validate on.
        """
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
    """Where a revision of FineWeb-Edu lies.

    Raises:
        DataFailure: the package that reads the hub is not installed.
    """
    url = _FINEWEB_URL.format(revision=revision)
    if url.startswith("hf://") and find_spec("huggingface_hub") is None:
        raise DataFailure("data fineweb_edu needs huggingface_hub: pip install huggingface_hub")
    return url
