"""The calls of a script. Outside gonogo they do nothing; `gonogo.trainer.supervised` writes."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, SupportsFloat, SupportsInt, TypeVar

from gonogo.trainer.position import SECTIONS

Section = Literal["data", "forward", "backward", "optimizer", "log", "checkpoint", "eval"]
_T = TypeVar("_T")


class Beat:
    """One rank's heartbeats; this class writes nothing.

    Attributes:
        rank: number of this rank, 0 alone.
        world_size: number of ranks.
        run_dir: the run directory; None outside gonogo.
        order: order.json as data; empty outside gonogo.
        steps: the last ordered step; None if unknown.
        resume_from: the checkpoint to start from; None for a fresh start.
        resume_step: the step to resume after, 0 for a fresh start. The remaining steps are
            `range(beat.resume_step, beat.steps)`.
        finite: whether every reported loss and gradient norm was finite. After `should_halt()`
            returned True it is the same on every rank: if False, save no checkpoint.
    """

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank, self.world_size = rank, world_size
        self.run_dir: Path | None = None
        self.order: Mapping[str, Any] = {}
        self.steps: int | None = None
        self.resume_from: Path | None = None
        self.resume_step = 0
        self.finite = True

    def __enter__(self) -> Self:
        """Return the beat itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Write `done` or `error`, and close the file.

        Raises:
            SystemExit: 3, if `should_halt()` had returned True.
        """

    def model(self, model: Any, **identity: Any) -> None:
        """Report the model, and wait until the run may begin.

        For scripts that attach before they build the model; else use `attach(model=…)`.

        Args:
            model: anything with `parameters()`.
            identity: what cannot be counted, such as `dim` or `dataset`.
        """

    def resumed(self, step: SupportsInt) -> None:
        """Report that the script loaded a checkpoint of its own, before the first step ends.

        Args:
            step: the last step that the checkpoint holds; a tensor will do.

        Raises:
            TypeError, ValueError: no number.
        """

    def step(
        self, loss: SupportsFloat | None, *, tokens: int | None = None, **numbers: Any
    ) -> None:
        """End a step; the next one begins now.

        Args:
            loss: of this step, if possible the mean over ranks; a tensor will do.
            tokens: of this step, over all ranks.
            numbers: `grad_norm`, `lr`, `loss_scale`, `skipped`. Others, such as `acc`, become
                metrics `user/acc`, at most 64 names. Leave `grad_norm` out if the optimizer did
                not step: 0 means that nothing moves.

        Raises:
            TypeError: a name of the line's own, or no number.
        """

    def section(self, name: Section) -> AbstractContextManager[None]:
        """Name what the rank does meanwhile.

        Each section has its own deadline, so name at least evaluations and checkpoints, whose time
        belongs to no step. The time of the other sections is reported with the step.

        Raises:
            ValueError: no such section.
        """
        check_section(name)
        return nullcontext()

    def enter(self, name: Section | None) -> None:
        """Name what the rank does from now on, for loops with callbacks; None: no section.

        Raises:
            ValueError: no such section.
        """
        check_section(name)

    def waiting(self) -> AbstractContextManager[None]:
        """Mark a collective of the script, in which the rank waits for others."""
        return nullcontext()

    def batches(self, loader: Iterable[_T]) -> Iterator[_T]:
        """Return the batches of a loader, each fetched in section data."""
        return iter(loader)

    def checkpoint(self, path: str | Path) -> None:
        """Report that a checkpoint of the last step is whole, when every rank has written its part.

        Rank 0 writes a manifest into a folder of the run directory's `checkpoints/`
        (`checkpoint_path()`), by which the watcher verifies it. Call it inside section checkpoint.
        """

    def checkpoint_path(self) -> Path | None:
        """Return the folder for a checkpoint of the last step; None outside gonogo."""
        return None

    def eval(self, val_loss: SupportsFloat, **numbers: Any) -> None:
        """Report the validation loss after the last step; inside section eval also its duration.

        Args:
            val_loss: of the whole evaluation; a tensor will do.
            numbers: further measurements: `accuracy=` becomes the metric `user/accuracy`.

        Raises:
            TypeError: a name of the line's own, or no number.
        """

    def should_save(self) -> bool:
        """Whether the order wants a checkpoint after this step; the same answer on every rank.

        Every rank asks after the same steps. Outside gonogo the answer is no.
        """
        return False

    def should_halt(self) -> bool:
        """Whether the run must end after this step; the same answer on every rank.

        Every rank asks after the same steps. If True: save a checkpoint if `finite`, then leave the
        loop and the `with` block, which waits for the other ranks and exits with code 3.
        """
        return False


def check_section(name: str | None) -> None:
    """Refuse an unknown section."""
    if name is not None and name not in SECTIONS:
        raise ValueError(f"no section {name!r}; there are {', '.join(sorted(SECTIONS))}")
