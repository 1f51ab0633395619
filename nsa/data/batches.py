"""Each rank's share of every global batch.

Step k trains on sequences (k−1)·G … k·G−1, whatever the number of ranks and parts.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nsa.config import LoaderConfig, TrainConfig
from nsa.data.source import Source, Stream
from nsa.errors import BadConfig, DataFailure

AHEAD = 2


class Prefetch:
    """Batches of `read(split, number)`, training batches read ahead.

    The first batch of a process has its own limit: index, footers and cold connections (R30: 11 s).
    """

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
    """Inputs and targets `[part_seqs, seq_len]`, int64, on the device.

    A `Stream` is read ahead in a thread.
    """

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
