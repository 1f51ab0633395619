"""Which sequences does this rank see in step k? Always its own share of one global batch.

Step k trains on sequences (k−1)·G … k·G−1, whatever the number of ranks and parts, so one rank
with `accumulate` 2 sees what two ranks with 1 see, and a resumed run goes on where it stopped.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nsa.config import TrainConfig
from nsa.data.prefetch import Prefetch
from nsa.data.source import Source, Stream
from nsa.errors import BadConfig


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
        """The plan of one rank.

        Raises:
            BadConfig: the global batch cannot be shared evenly.
        """
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

    Args:
        source: where sequences come from; a `Stream` is read ahead in a thread.
        plan: this rank's share of every batch.
        device: where the tensors go.
    """

    def __init__(self, source: Source, plan: BatchPlan, device: torch.device) -> None:
        self._source, self._plan, self._device = source, plan, device
        self._stream = source if isinstance(source, Stream) else None
        self._prefetch = Prefetch(self._read) if self._stream else None

    def prepare(self, step: int, marks: Sequence[Sequence[int]] = ()) -> None:
        """Be ready for a step: go to its place in a stream, and wait for its first batch there.

        Args:
            step: the first step to come.
            marks: what `marks` of the checkpoint's run gave, of all ranks; may be empty.

        Raises:
            DataFailure: the first batch does not come, or not in time.
        """
        if self._stream is None or self._prefetch is None:
            return
        self._stream.seek(marks)
        self._prefetch.batch("train", step - 1)

    def marks(self, step: int) -> Tensor:
        """Where this rank's sequences of a step begin, `[sequences, k]` int64; k = 0: no stream."""
        if self._stream is None:
            return torch.zeros(0, 0, dtype=torch.int64)
        parts = range(self._plan.accumulate)
        indices = [index for part in parts for index in self._plan.indices(step - 1, part)]
        return torch.tensor(self._stream.marks(indices), dtype=torch.int64)

    def of_step(self, step: int) -> list[tuple[Tensor, Tensor]]:
        """The parts of one training step (from 1).

        Raises:
            DataFailure: the source cannot serve.
        """
        return self._batch("train", step - 1)

    def held_out(self, batch: int) -> list[tuple[Tensor, Tensor]]:
        """The parts of validation batch 0, 1, 2, …: the same bytes at every evaluation."""
        return self._batch("val", batch)

    def close(self) -> None:
        """Stop reading ahead."""
        if self._prefetch is not None:
            self._prefetch.close()

    def _batch(self, split: str, number: int) -> list[tuple[Tensor, Tensor]]:
        read = self._prefetch.batch if self._prefetch else self._read
        parts = []
        for rows in read(split, number):
            tokens = torch.from_numpy(rows).to(self._device, torch.int64)
            parts.append((tokens[:, :-1], tokens[:, 1:]))
        return parts

    def _read(self, split: str, number: int) -> list[NDArray[np.uint8]]:
        """Bytes of this rank's parts of a batch, `[part_seqs, seq_len + 1]` each."""
        return [
            np.stack(
                [
                    self._source.sequence(split, index, self._plan.seq_len)
                    for index in self._plan.indices(number, part)
                ]
            )
            for part in range(self._plan.accumulate)
        ]
