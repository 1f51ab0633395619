"""Decide when a checkpoint is due, copy the state, and write it from a thread.

All ranks decide alike: by the step, or by rank 0's clock. Training waits for the copy (`Stage`),
not for the disk. Rank 0 writes, one at a time. A failed write gives an `error` line; the last
checkpoint stays.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsa.assignment import Cadence
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
from nsa.rank_setup import RankSetup

_TEXT_LIMIT = 2000
_SAVED, _FAILED = 1, 2
_LAST_WAIT_S = 60.0
"""How long a rank that fails waits for its write: its peers stand still meanwhile."""


class CheckpointWriter:
    """Cadence and act of saving, for one rank; BadConfig in a folder of another run."""

    def __init__(
        self, run_dir: Path, cadence: Cadence, setup: RankSetup, heart: Heartbeat, fault: Fault
    ) -> None:
        if others := later_checkpoints(run_dir, setup.resumed_step):
            raise BadConfig(f"{others[0]} is of another run: choose another run directory")
        if setup.ranks.rank == 0:
            sweep(run_dir)
        self._run_dir, self._cadence, self._setup, self._heart = run_dir, cadence, setup, heart
        self._fault, self._stage = fault, Stage()
        self._has_room = not cadence
        self._saved_step = setup.resumed_step
        self._saved_at = time.monotonic()
        self._write: _Write | None = None

    def due_by_time(self, now: float) -> bool:
        """Whether `every_s` has passed since the last one (or the start), by this rank's clock."""
        every_s = self._cadence.every_s
        return every_s is not None and now - self._saved_at >= every_s

    def due_by_step(self, step: int, *, last: bool) -> bool:
        """Whether `every_steps` says so; where there is a cadence, the last step is saved too."""
        every = self._cadence.every_steps
        return (last and bool(self._cadence)) or (every is not None and step % every == 0)

    def lacks_last(self, step: int) -> bool:
        """Whether the last step was to be saved, and could not be; known on every rank alike."""
        return bool(self._cadence) and self._saved_step != step

    @property
    def lacks_room(self) -> bool:
        """Whether the host's memory does not hold the copy yet, and could."""
        ranks, moments = self._setup.ranks, bool(self._setup.optimizer.state)
        copies = ranks.rank == 0 and ranks.backend != "FSDP"  # whose state is made by a collective
        return copies and moments and not self._has_room and self._write is None

    def make_room(self) -> None:
        """Copy the state once, and write nothing: from here on memory is what it will be.

        Room that only the first checkpoint takes would look like a leak, or be missing hours later.
        """
        self._has_room = True
        self._stage.copy(self._states())

    def save(self, step: int, marks: torch.Tensor, corpus: str) -> None:
        """Copy the weights that step `step` made and begin to write them; a collective.

        `marks` are where this rank's part of the data resumes.
        """
        if step == self._saved_step:
            return
        self.finish()
        began = time.monotonic()
        write = _Write(step, self._saved_step, began)
        self._saved_at, self._saved_step, self._write = began, step, write
        snapshot = self._snapshot(step, marks, corpus)
        if self._setup.ranks.rank == 0:
            write.start(partial(self._write_whole, snapshot))
        write.held_s = time.monotonic() - began

    @property
    def writing(self) -> bool:
        """Whether a checkpoint has begun whose outcome is not reported yet."""
        return self._write is not None

    def written(self) -> int:
        """What rank 0 knows of the one that is being written: 0 nothing new, else for `tell`."""
        if self._write is None or self._setup.ranks.rank != 0 or not self._write.ended.is_set():
            return 0
        return _SAVED if self._write.error is None else _FAILED

    def tell(self, outcome: int) -> None:
        """Say on this rank what rank 0 has found `written`."""
        write, self._write = self._write, None
        assert write is not None
        write.ended.wait()
        place = str(checkpoint_path(self._run_dir, write.step).relative_to(self._run_dir))
        if outcome == _SAVED:
            dt, held_s = round(write.ended_at - write.began, 6), round(write.held_s, 6)
            self._heart.beat("checkpoint", path=place, dt=dt, held_s=held_s)
            return
        self._saved_step = write.before
        error = write.error
        name = "CheckpointFailure" if error is None else type(error).__name__
        text = "on rank 0" if error is None else str(error)[:_TEXT_LIMIT] or name
        self._heart.beat("error", type=name, text=text, path=place)
        if error is not None:  # a run by hand has no reader of heartbeats
            print(f"{place} was not written: {name}: {text}", file=sys.stderr)

    def finish(self) -> None:
        """Wait for what is being written, and say what became of it; a collective."""
        if self._write is None:
            return
        self._write.ended.wait()
        self.tell(self._setup.ranks.choose(self.written()))

    def close(self) -> None:
        """When this rank ends unforeseen: wait for what it writes; no collective."""
        if self._write is None or not self._write.ended.wait(_LAST_WAIT_S):
            return
        if outcome := self.written():
            self.tell(outcome)

    def _snapshot(self, step: int, marks: torch.Tensor, corpus: str) -> Snapshot:
        """What rank 0 writes; a collective."""
        setup, ranks = self._setup, self._setup.ranks
        rng = ranks.gather(torch.get_rng_state())
        device_rng = []
        if setup.device.type == "cuda":
            device_rng = ranks.gather(torch.cuda.get_rng_state(setup.device))
        all_marks = ranks.gather(marks) if marks.numel() else []
        states = ranks.whole(self._states())
        staged = self._stage.copy(states if ranks.rank == 0 else {key: {} for key in states})
        return Snapshot(
            step=step,
            next_sequence=step * setup.config.batch.global_seqs,
            config_digest=config_digest(setup.config),
            world_size=ranks.world_size,
            model=staged["model"],
            optimizer=staged["optimizer"],
            rng=rng,
            device_rng=device_rng,
            corpus=corpus,
            marks=[row for rows in all_marks for row in rows.tolist()],
            loss_scale=setup.loss_scale.state(),
            config=config_mapping(setup.config),
        )

    def _states(self) -> dict[str, Any]:
        """What this rank holds, not copied."""
        return {
            "model": self._setup.model.state_dict(),
            "optimizer": self._setup.optimizer.state_dict(),
        }

    def _write_whole(self, snapshot: Snapshot) -> None:
        """Rank 0's work in the thread."""
        engine = self._setup.config.engine
        after_file = partial(self._fault.strike_write, snapshot.step)
        save_checkpoint(self._run_dir, snapshot, after_file)
        if engine is not None and engine.keep_checkpoints:
            try:
                keep_newest(self._run_dir, engine.keep_checkpoints)
            except OSError as error:
                print(f"old checkpoints stay: {error}", file=sys.stderr)


class _Write:
    """One checkpoint on its way to the disk; a rank that writes nothing has ended at once."""

    def __init__(self, step: int, before: int, began: float) -> None:
        self.step, self.before, self.began = step, before, began
        self.held_s = 0.0
        self.ended_at = began
        self.error: Exception | None = None
        self.ended = threading.Event()
        self.ended.set()

    def start(self, write: Callable[[], None]) -> None:
        """Write in a thread."""
        self.ended.clear()
        threading.Thread(target=self._run, args=(write,), name="checkpoint", daemon=True).start()

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # noqa: BLE001 - the thread's edge: others wait for its end
            if not isinstance(error, OSError):
                traceback.print_exception(error)
            self.error = error
        self.ended_at = time.monotonic()
        self.ended.set()


class Stage:
    """Copies a state into host memory, pinned for a GPU; buffers are kept from copy to copy."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, ...], Tensor] = {}

    def copy(self, state: Any) -> Any:
        """Copy every tensor of dicts and lists."""
        copied = self._copy(state, ())
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # the copies were only queued
        return copied

    def _copy(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, dict):
            return {key: self._copy(item, (*path, str(key))) for key, item in value.items()}
        if isinstance(value, list):
            return [self._copy(item, (*path, str(at))) for at, item in enumerate(value)]
        if not isinstance(value, Tensor):
            return value
        here = value.detach()
        kept = self._buffers.get(path)
        if kept is None or kept.shape != here.shape or kept.dtype != here.dtype:
            pinned = here.device.type == "cuda"
            kept = torch.empty(here.shape, dtype=here.dtype, pin_memory=pinned)
            self._buffers[path] = kept
        return kept.copy_(here, non_blocking=True)
