"""The beat of a loop with callbacks; the adapters share it.

Under torchrun it attaches early, so that a slow start shows signs of life. Otherwise it attaches
when the loop names its rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gonogo.trainer.attach import open_beat
from gonogo.trainer.beat import LINE_NAMES, Beat
from gonogo.trainer.run_dir import RunDir, load_run_dir
from gonogo.trainer.settings import load_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """What the loop does after a step; the same on every rank."""

    halt: bool = False
    """Save if `save`, and end with code 3."""
    save: bool = False
    stop: bool = False
    """The last ordered step has ended."""


class Ordered:
    """What the order says about the start and the end, known before the loop begins."""

    @property
    def resume_from(self) -> Path | None:
        """The checkpoint to start from, if the order names one."""
        return _run_dir().resume_from

    @property
    def resume_step(self) -> int:
        """The step to resume after; 0 for a fresh start, or with `resume_from`'s weights."""
        return _run_dir().resumed_step

    @property
    def steps(self) -> int | None:
        """The last ordered step, if there is one."""
        return _run_dir().steps


class CallbackBeat(Ordered):
    """One rank's heartbeats from callbacks; config and identity as in `attach`."""

    def __init__(
        self, config: Mapping[str, Any] | None, identity: Mapping[str, Any] | None
    ) -> None:
        self._config, self._identity = config, identity
        self.beat = Beat()
        self._is_over = False
        if load_settings().rank is not None:
            self.beat = open_beat(None, config, identity)

    def begin(
        self, model: Any, *, rank: int, world_size: int, step: int, last_step: int | None
    ) -> None:
        """Report what runs and wait until it may begin; only for a process's first training.

        A training that begins again before its end (after a caught exception) starts counting its
        steps again.

        Args:
            step: the step to resume after.
            last_step: the loop's own last step, if known.

        Raises:
            ValueError: the loop does not begin at the ordered checkpoint.
        """
        if self._is_over:
            return
        if self.beat.is_elsewhere(step):
            self.beat.__exit__(None, None, None)
            self.beat = Beat()
        if not self.beat.writes:
            self.beat = open_beat(
                None, self._config, self._identity, rank=rank, world_size=world_size
            )
        if self.beat.writes:
            if self.beat.resume_from is not None and step != self.beat.resume_step:
                raise ValueError(
                    f"this run resumes after step {self.beat.resume_step} with"
                    f" {self.beat.resume_from}, and the loop begins after step {step}: hand it"
                    " callback.resume_from, or for step 0 its weights alone (docs/how-to/attach.md)"
                )
            ordered = self.beat.steps
            self.beat.last_step = min((s for s in (ordered, last_step) if s), default=None)
        self.beat.resumed(step)
        self.beat.model(model)

    def end_step(self, loss: float | None, tokens: int | None, **numbers: Any) -> Next:
        """End a step of this rank; a collective."""
        beat = self.beat
        if not beat.writes:
            return Next()
        told = [float(value is not None) for value in (loss, tokens)]
        means = beat.mean(*told, loss or 0.0, tokens or 0.0)
        beat.step(
            loss=means[2] if means[0] == 1.0 else None,
            tokens=round(means[3] * beat.world_size) if means[1] == 1.0 else None,
            **numbers,
        )
        halt = beat.should_halt()
        save = beat.finite if halt else beat.should_save()
        return Next(halt=halt, save=save, stop=beat.ended == beat.steps)

    def save_path(self) -> Path | None:
        """Return where a checkpoint of this step belongs."""
        return self.beat.checkpoint_path()

    def evaluated(self, loss: Any, numbers: Mapping[str, Any]) -> None:
        """Report a validation loss, and further results that are numbers."""
        own = {
            name: value
            for name, value in numbers.items()
            if name not in LINE_NAMES and (isinstance(value, int | float) or hasattr(value, "item"))
        }
        self.beat.eval(loss, **own)

    def saved(self, path: str | Path) -> None:
        """Report that a checkpoint is whole, once every rank is here; a collective."""
        if self.beat.writes:
            self.beat.mean(0.0)
            self.beat.checkpoint(path)

    def end(self, error: BaseException | None = None) -> None:
        """Write `done` or the error; nothing is written after that.

        Raises:
            SystemExit: 3, the run was halted.
        """
        beat, self.beat, self._is_over = self.beat, Beat(), True
        beat.__exit__(None if error is None else type(error), error, None)


def largest_rate(*optimizers: Any) -> Any:
    """Return the largest learning rate of the optimizers; None if there is none."""
    rates = (group.get("lr") for each in optimizers for group in each.param_groups)
    return max((rate for rate in rates if rate is not None), default=None)


def _run_dir() -> RunDir:
    path = load_settings().run_dir
    return RunDir(path=Path()) if path is None else load_run_dir(path)
