"""Each rank's share of every global batch.

Step k trains on sequences (k−1)·G … k·G−1, whatever the number of ranks and parts.
"""

import hashlib
import json
import os
import queue
import sysconfig
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nsa.attention.settings import cache_folder
from nsa.config import SEPARATOR, LoaderConfig, TrainConfig
from nsa.errors import BadConfig, DataFailure

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
    """A source that is cheap to read only forwards: read ahead, its marks kept in checkpoints."""

    def marks(self, indices: Iterable[int]) -> list[list[int]]:
        """Where the training sequences `indices` begin: equally long rows of whole numbers."""
        ...

    def seek(self, marks: Iterable[Iterable[int]]) -> None:
        """Make the sequences of these marks cheap to read: the rest of the stream follows them."""
        ...


def open_source(name: str, seed: int, lanes: int = 1, loader: LoaderConfig | None = None) -> Source:
    """The source of a `data` name, for `lanes` sequences a batch; DataFailure: it is not here."""
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


AHEAD = 2


class Prefetch:
    """Training batches of `read(split, number)` ahead; the first has its own limit (R30: 11 s)."""

    def __init__(
        self,
        read: Callable[[str, int], Any],
        *,
        first_limit_s: float,
        limit_s: float,
    ) -> None:
        self._read, self._first_limit_s, self._limit_s = read, first_limit_s, limit_s
        self._asked: dict[tuple[str, int], Future[Any]] = {}
        self._queue: queue.SimpleQueue[tuple[str, int] | None] = queue.SimpleQueue()
        self._served = False
        threading.Thread(target=self._work, name="prefetch", daemon=True).start()

    def batch(self, split: str, number: int) -> Any:
        """A batch; those after it are being read when this returns. DataFailure: not in time."""
        wanted = self._ask(split, number)
        if split == "train":
            for later in range(number + 1, number + 1 + AHEAD):
                self._ask(split, later)
        limit_s = self._limit_s if self._served else self._first_limit_s
        try:
            rows = wanted.result(limit_s)
        except TimeoutError:
            raise DataFailure(f"{split} batch {number} did not come in {limit_s:g} s") from None
        self._served |= split == "train"
        for key in [key for key in self._asked if key[0] == split and key[1] < number]:
            del self._asked[key]
        return rows

    def close(self) -> None:
        """Let the thread end after what it is reading now."""
        self._queue.put(None)

    def _ask(self, split: str, number: int) -> "Future[Any]":
        key = (split, number)
        if key not in self._asked:
            self._asked[key] = Future()
            self._queue.put(key)
        return self._asked[key]

    def _work(self) -> None:
        while (key := self._queue.get()) is not None:
            wanted = self._asked.get(key)
            if wanted is None:  # no longer wanted
                continue
            try:
                wanted.set_result(self._read(*key))
            except DataFailure as failure:
                wanted.set_exception(failure)
            except Exception as error:  # noqa: BLE001 - raised again where the batch is asked for
                unforeseen = DataFailure(f"{key[0]} batch {key[1]}: {error!r}")
                unforeseen.__cause__ = error
                wanted.set_exception(unforeseen)


_CORPUS = "corpus"
"""In the place of a split: what the whole of it is known by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How a global batch of `global_seqs` is shared by ranks and their parts (`accumulate`)."""

    global_seqs: int
    accumulate: int
    rank: int
    world_size: int
    seq_len: int

    @classmethod
    def of(cls, config: TrainConfig, *, rank: int, world_size: int) -> "BatchPlan":
        """The plan of one rank; BadConfig where the global batch cannot be shared evenly."""
        parts = world_size * config.batch.accumulate
        if config.batch.global_seqs % parts:
            raise BadConfig(
                f"batch.global_seqs={config.batch.global_seqs} cannot be shared by {world_size} "
                f"ranks × accumulate {config.batch.accumulate}"
            )
        return cls(
            global_seqs=config.batch.global_seqs,
            accumulate=config.batch.accumulate,
            rank=rank,
            world_size=world_size,
            seq_len=config.model.seq_len,
        )

    @property
    def part_seqs(self) -> int:
        """Sequences in one forward pass of one rank."""
        return self.global_seqs // (self.world_size * self.accumulate)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all ranks."""
        return self.part_seqs * self.accumulate * self.world_size * self.seq_len

    def indices(self, batch: int, part: int) -> range:
        """Sequence numbers of one part of global batch 0, 1, 2, …"""
        first = batch * self.global_seqs + (part * self.world_size + self.rank) * self.part_seqs
        return range(first, first + self.part_seqs)


class Batches:
    """Inputs and targets `[part_seqs, seq_len]`, int64, on the device; a Stream read ahead."""

    def __init__(
        self,
        source: Source,
        plan: BatchPlan,
        device: torch.device,
        loader: LoaderConfig | None = None,
    ) -> None:
        self._source, self._plan, self._device = source, plan, device
        self._stream = source if isinstance(source, Stream) else None
        limits = loader or LoaderConfig.as_if_absent()
        self._prefetch = None
        if self._stream is not None:
            self._prefetch = Prefetch(
                self._read, first_limit_s=limits.first_batch_limit_s, limit_s=limits.batch_limit_s
            )
        self.epoch = 0
        """Which pass over its training documents the last step was in, from 1; 0 = no passes."""

    def corpus(self) -> str:
        """The digest of what is trained on."""
        digest: str = self._asked(_CORPUS, 0)
        return digest

    def prepare(self, step: int, marks: Sequence[Sequence[int]] = ()) -> None:
        """Be ready for a step: go to its place in a stream, and wait for its first batch there."""
        if self._stream is None or self._prefetch is None:
            return
        self._stream.seek(marks)
        self._prefetch.batch("train", step - 1)

    def marks(self, step: int) -> Tensor:
        """Starts of this rank's sequences of a step, `[sequences, k]` int64; k = 0: no stream."""
        if self._stream is None:
            return torch.zeros(0, 0, dtype=torch.int64)
        parts = range(self._plan.accumulate)
        indices = [index for part in parts for index in self._plan.indices(step - 1, part)]
        return torch.tensor(self._stream.marks(indices), dtype=torch.int64)

    def of_step(self, step: int) -> list[tuple[Tensor, Tensor]]:
        """The parts of one training step (from 1)."""
        rows, self.epoch = self._asked("train", step - 1)
        return self._parts(rows)

    def held_out(self, batch: int) -> list[tuple[Tensor, Tensor]]:
        """The parts of validation batch 0, 1, 2, …: the same bytes at every evaluation."""
        return self._parts(self._asked("val", batch)[0])

    def close(self) -> None:
        """Stop reading ahead."""
        if self._prefetch is not None:
            self._prefetch.close()

    def _parts(self, rows: list[NDArray[np.uint8]]) -> list[tuple[Tensor, Tensor]]:
        parts = []
        for part in rows:
            tokens = torch.from_numpy(part).to(self._device, torch.int64)
            parts.append((tokens[:, :-1], tokens[:, 1:]))
        return parts

    def _asked(self, split: str, number: int) -> Any:
        """What `_read` gives, from the thread where there is one."""
        return (self._prefetch.batch if self._prefetch else self._read)(split, number)

    def _read(self, split: str, number: int) -> Any:
        """Bytes of this rank's parts of a batch, `[part_seqs, seq_len + 1]` each, and its epoch."""
        if split == _CORPUS:
            return self._source.digest()
        source, length = self._source, self._plan.seq_len
        shares = [self._plan.indices(number, part) for part in range(self._plan.accumulate)]
        rows = [
            np.stack([source.sequence(split, index, length) for index in share]) for share in shares
        ]
        if split != "train":
            return rows, 0
        return rows, max(source.epoch(index, length) for share in shares for index in share)
