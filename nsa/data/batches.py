"""Which sequences does this rank see in step k? Always its own share of one global batch.

Step k trains on sequences (k−1)·G … k·G−1, whatever the number of ranks and parts, so one rank
with `accumulate` 2 sees what two ranks with 1 see, and a resumed run goes on where it stopped.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nsa.config import TrainConfig
from nsa.data.source import Source
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
    """Inputs and targets `[part_seqs, seq_len]`, int64, on the device."""

    def __init__(self, source: Source, plan: BatchPlan, device: torch.device) -> None:
        self._source, self._plan, self._device = source, plan, device

    def of_step(self, step: int) -> list[tuple[Tensor, Tensor]]:
        """The parts of one training step (from 1).

        Raises:
            DataFailure: the source cannot serve.
        """
        return [self._part("train", step - 1, part) for part in range(self._plan.accumulate)]

    def held_out(self, batch: int) -> list[tuple[Tensor, Tensor]]:
        """The parts of validation batch 0, 1, 2, …: the same bytes at every evaluation."""
        return [self._part("val", batch, part) for part in range(self._plan.accumulate)]

    def _part(self, split: str, batch: int, part: int) -> tuple[Tensor, Tensor]:
        rows = [
            self._source.sequence(split, index, self._plan.seq_len)
            for index in self._plan.indices(batch, part)
        ]
        tokens = torch.from_numpy(np.stack(rows)).to(self._device, torch.int64)
        return tokens[:, :-1], tokens[:, 1:]
