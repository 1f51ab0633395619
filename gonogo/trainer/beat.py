"""What can a script say? The calls, and what they do outside gonogo: nothing.

`attach` returns a `Beat` where no run directory is named, and the one that writes
(`gonogo.trainer.supervised`) where one is, so a script is the same in both places.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, SupportsFloat, SupportsInt, TypeVar

from gonogo.trainer.position import SECTIONS

Section = Literal["data", "forward", "backward", "optimizer", "log", "checkpoint", "eval"]
_T = TypeVar("_T")


class Beat:
    """One rank's side of the heartbeat protocol; this class itself writes nothing.

    Attributes:
        rank: number of this rank, 0 alone.
        world_size: number of ranks.
        run_dir: the run directory; None outside gonogo.
        order: order.json as data; empty outside gonogo.
        steps: the last step that was ordered; None where nobody says.
        resume_from: the checkpoint to start from; None for a run that starts afresh.
        resume_step: the step to go on after, 0 for one that starts afresh:
            `range(beat.resume_step, beat.steps)` is what is left.
        finite: whether every loss and gradient norm told so far was finite. After `should_halt()`
            has said yes it is the same on every rank: save no checkpoint when it is False.
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
        """Say `done`, or `error` with what was raised, and let the file go.

        Raises:
            SystemExit: 3, where `should_halt()` had said yes: what follows is not to be run.
        """

    def model(self, model: Any, **identity: Any) -> None:
        """Tell what runs, counted on a torch module, and wait until it may begin.

        For scripts that attach before they build the model; else `attach(model=…)` does it.

        Args:
            model: anything with `parameters()`.
            identity: fields of the boot line that cannot be counted, such as `dim` or `dataset`.
        """

    def resumed(self, step: SupportsInt) -> None:
        """Say that training goes on after a step; the order's by default.

        For a script that has loaded a checkpoint of its own. It counts before the first step that
        this process ends, and no more after it.

        Args:
            step: the last one that the checkpoint holds; a tensor will do.

        Raises:
            TypeError, ValueError: what is no number.
        """

    def step(
        self, loss: SupportsFloat | None, *, tokens: int | None = None, **numbers: Any
    ) -> None:
        """Say that a step has ended; the next one begins now.

        Args:
            loss: of this step, the mean over ranks where the script has it; a tensor will do.
            tokens: of this step, over all ranks: speed is measured by them.
            numbers: what else a progress line may hold, such as `grad_norm`, `lr`, `loss_scale`,
                `skipped`. Other numbers, such as `acc`, are metrics `user/acc`, of 64 names at
                most. `grad_norm` is that of an update: left out where the optimizer did not step,
                for 0 says that nothing moves.

        Raises:
            TypeError: a name that is the line's own, or what is no number.
        """

    def section(self, name: Section) -> AbstractContextManager[None]:
        """Say what the rank does meanwhile.

        Each section has a deadline of its own, so name at least evaluations and checkpoints. The
        time of those two is no step's; that of data, forward, backward and optimizer is told with
        the step.

        Raises:
            ValueError: no such section.
        """
        check_section(name)
        return nullcontext()

    def enter(self, name: Section | None) -> None:
        """Say what the rank does from now on, for loops that only call back; None: nothing named.

        Raises:
            ValueError: no such section.
        """
        check_section(name)

    def waiting(self) -> AbstractContextManager[None]:
        """Say that the rank waits for the others meanwhile: around a collective of the script."""
        return nullcontext()

    def batches(self, loader: Iterable[_T]) -> Iterator[_T]:
        """Return the batches of a loader, each fetched in section data."""
        return iter(loader)

    def checkpoint(self, path: str | Path) -> None:
        """Say that a checkpoint of the last step is whole.

        A folder in the run directory's `checkpoints/` (`checkpoint_path()` names the right one)
        gets a manifest by rank 0, with which the watcher verifies it. Call it inside of section
        checkpoint, when every rank has written its part.
        """

    def checkpoint_path(self) -> Path | None:
        """Return the folder for a checkpoint of the last step; None outside gonogo."""
        return None

    def eval(self, val_loss: SupportsFloat, **numbers: Any) -> None:
        """Say the validation loss after the last step; inside of section eval also what it took.

        Args:
            val_loss: of the whole evaluation; a tensor will do.
            numbers: what else was measured: `accuracy=` is the metric `user/accuracy`.

        Raises:
            TypeError: a name that is the line's own, or what is no number.
        """

    def should_save(self) -> bool:
        """Whether the order wants a checkpoint after this step; the same answer on every rank.

        Outside gonogo the script saves as it likes: the answer is no. Every rank asks after the
        same steps.
        """
        return False

    def should_halt(self) -> bool:
        """Whether the run must end after this step; the same answer on every rank.

        Every rank asks after the same steps. Where it is yes: save a checkpoint if `finite`, then
        leave the loop and the `with` block, which waits for the other ranks and ends the process
        with code 3.
        """
        return False


def check_section(name: str | None) -> None:
    """Refuse a section that there is none of: a typo would have a deadline of its own."""
    if name is not None and name not in SECTIONS:
        raise ValueError(f"no section {name!r}; there are {', '.join(sorted(SECTIONS))}")
