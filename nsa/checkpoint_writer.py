"""When is a checkpoint written, and what if it cannot be?

All ranks decide alike: by the step they all know, or by rank 0's clock, which the trainer shares.
Rank 0 writes, the others wait. A write that the file system refuses is told in an `error` line and
ends nothing: the last good checkpoint stays, and whoever watches decides. Rank 0's line names the
operating system's error, such as `type: OSError, text: [Errno 28] No space left on device`.
"""

import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nsa.checkpoint import (
    Snapshot,
    checkpoint_path,
    keep_newest,
    later_checkpoints,
    save_checkpoint,
    sweep,
)
from nsa.config import config_digest, config_mapping
from nsa.errors import BadConfig
from nsa.faults import Fault
from nsa.heartbeat import Heartbeat
from nsa.launch import Cadence
from nsa.rig import Rig

_TEXT_LIMIT = 2000


class CheckpointWriter:
    """Cadence and act of saving, for one rank.

    Raises:
        BadConfig: the folder holds checkpoints of another run, which are never overwritten.
    """

    def __init__(
        self, run_dir: Path, cadence: Cadence, rig: Rig, heart: Heartbeat, fault: Fault
    ) -> None:
        if others := later_checkpoints(run_dir, rig.resumed_step):
            raise BadConfig(f"{others[0]} is of another run: choose another run directory")
        if rig.ranks.rank == 0:
            sweep(run_dir)
        self._run_dir, self._cadence, self._rig, self._heart = run_dir, cadence, rig, heart
        self._fault = fault
        self._saved_step = rig.resumed_step
        self._saved_at = time.monotonic()

    def due_by_time(self, now: float) -> bool:
        """Whether `every_s` has passed since the last one (or the start), by this rank's clock."""
        every_s = self._cadence.every_s
        return every_s is not None and now - self._saved_at >= every_s

    def due_by_step(self, step: int, *, last: bool) -> bool:
        """Whether `every_steps` says so; where there is a cadence, the last step is saved too."""
        every = self._cadence.every_steps
        return (last and bool(self._cadence)) or (every is not None and step % every == 0)

    def save(self, step: int, marks: torch.Tensor, corpus: str) -> None:
        """Save the weights that step `step` made; a collective: every rank calls it.

        Args:
            step: the last finished step.
            marks: where this rank's part of the data goes on, `Batches.marks(step + 1)`.
            corpus: the digest of what is trained on.
        """
        if step == self._saved_step:
            return
        began = time.monotonic()
        rng = self._rig.ranks.gather(torch.get_rng_state())
        device_rng = []
        if self._rig.device.type == "cuda":
            device_rng = self._rig.ranks.gather(torch.cuda.get_rng_state(self._rig.device))
        weights = self._rig.ranks.whole(self._rig.model.state_dict())
        moments = self._rig.ranks.whole(self._rig.optimizer.state_dict())
        all_marks = self._rig.ranks.gather(marks) if marks.numel() else []
        error: Exception | None = None
        if self._rig.ranks.rank == 0:
            snapshot = self._snapshot(step, weights, moments, all_marks)
            snapshot = replace(snapshot, rng=rng, device_rng=device_rng, corpus=corpus)
            error = self._write(snapshot)
        failed = self._rig.ranks.choose(int(error is not None))
        self._saved_at = time.monotonic()
        if failed:
            self._tell(error)
            return
        self._saved_step = step
        place = checkpoint_path(self._run_dir, step).relative_to(self._run_dir)
        self._heart.beat("checkpoint", path=str(place), dt=round(self._saved_at - began, 6))

    def _tell(self, error: Exception | None) -> None:
        """Say why nothing was saved; only rank 0 knows."""
        if error is None:
            self._heart.beat("error", type="CheckpointFailure", text="on rank 0")
        else:
            name = type(error).__name__
            self._heart.beat("error", type=name, text=str(error)[:_TEXT_LIMIT] or name)

    def _snapshot(
        self,
        step: int,
        weights: dict[str, torch.Tensor],
        moments: dict[str, Any],
        marks: list[torch.Tensor],
    ) -> Snapshot:
        rig = self._rig
        return Snapshot(
            step=step,
            next_sequence=step * rig.config.batch.global_seqs,
            config_digest=config_digest(rig.config),
            world_size=rig.ranks.world_size,
            model=weights,
            optimizer=moments,
            rng=[],
            marks=[row for rows in marks for row in rows.tolist()],
            loss_scale=rig.loss_scale.state(),
            config=config_mapping(rig.config),
        )

    def _write(self, snapshot: Snapshot) -> Exception | None:
        """Rank 0's part; returns why it failed, or nothing."""
        engine = self._rig.config.engine
        try:
            save_checkpoint(
                self._run_dir, snapshot, partial(self._fault.strike_write, snapshot.step)
            )
        except (OSError, RuntimeError) as error:
            return error
        if engine is not None and engine.keep_checkpoints:
            try:
                keep_newest(self._run_dir, engine.keep_checkpoints)
            except OSError as error:
                print(f"old checkpoints stay: {error}", file=sys.stderr)
        return None
