"""The calls of a script. Outside gonogo they do nothing.

With an order, nothing is trained before the watcher's `.GO`. All ranks learn of a halt at the same
step. `done` is written only by a script that came to its end, `error` by one that raised.
"""

import atexit
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, SupportsFloat, SupportsInt, TypeVar

from gonogo.trainer import ranks
from gonogo.trainer.encoding import plain, sort_out
from gonogo.trainer.heartbeat_writer import HeartbeatWriter, described
from gonogo.trainer.identity import count_model, count_torch, model_device
from gonogo.trainer.position import PAUSES, SECTIONS
from gonogo.trainer.run_dir import HALTED_CODE, RunDir, await_go, owes_manifest, save_manifest

Section = Literal["data", "forward", "backward", "optimizer", "log", "checkpoint", "eval"]
_T = TypeVar("_T")

LINE_NAMES = frozenset(
    (
        *("v", "ts", "iso", "mono", "pid", "rank", "boot", "seq", "step", "msg", "section"),
        *("section_seq", "section_age_s", "collective_seq", "run", "attempt", "backend", "dt"),
        *("dt_step_s", "step_sections", "steps", "path", "val_loss", "type", "text"),
        "write_failures",
    )
)
"""Names of a line that a script cannot give."""

_BY_MODEL = frozenset({"params", "device", "driver", "torch"})
"""Fields of an identity that need the model."""


class Beat:
    """One rank's heartbeats; without a writer its calls do nothing.

    Args:
        whose: run and attempt, for the boot line.
        identity: what is known without a model.
        agree: as in `attach`.

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

    def __init__(
        self,
        rank: int = 0,
        world_size: int = 1,
        writer: HeartbeatWriter | None = None,
        *,
        whose: Mapping[str, Any] | None = None,
        identity: Mapping[str, Any] | None = None,
        agree: Callable[[bool], bool] | None = None,
    ) -> None:
        self.rank, self.world_size, self.finite = rank, world_size, True
        run = RunDir(path=Path()) if writer is None else writer.run_dir
        self.run_dir = None if writer is None else run.path
        self.order, self.steps = run.order, run.steps
        self.resume_from, self.resume_step = run.resume_from, run.resumed_step
        self.last_step = run.steps
        """The last step of the order or of the loop."""
        self._writer, self._run, self._whose = writer, run, dict(whose or {})
        self._identity = dict(identity or {})
        self._agree, self._device = agree, None
        self._booted = self._halted = False
        self._own_names: set[str] = set()
        self._raised_in: tuple[int, str] | None = None
        self._began_after = self.ended
        self._saved_at, self._saved_step = time.monotonic(), self.ended
        self._thread = threading.get_ident()
        if writer is not None:
            atexit.register(self._at_exit)
            writer.start()
            _let_children_be_ended()

    @property
    def writes(self) -> bool:
        """Whether this rank was given a writer."""
        return self._writer is not None

    def _live(self) -> HeartbeatWriter | None:
        """Return the writer; None outside gonogo, after the end, and in a forked child."""
        writer = self._writer
        return writer if writer is not None and writer.is_ours else None

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
        writer = self._live()
        if writer is None:
            return
        left = isinstance(error, SystemExit) and error.code in (None, 0)
        exits = isinstance(error, SystemExit) and error.code == HALTED_CODE
        halted = self._halted and (left or error is None or exits)
        if error is not None and not left and not halted:
            self._say_error(writer, error)
        elif not halted:
            writer.write("done", step=self.ended)
        elif error is None and not self._is_alone():
            with self.waiting():
                self._any(False)  # wait until no rank is saving any more
            if threading.current_thread() is threading.main_thread():
                # Keep the exit code, although torchrun ends the peers of a rank that left.
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._close(writer)
        if error is None or left or halted:
            atexit.register(ranks.let_go)  # at exit: the script may still need its peers
        if halted and error is None:
            raise SystemExit(HALTED_CODE)

    def model(self, model: Any, **identity: Any) -> None:
        """Report the model, and wait until the run may begin.

        For scripts that attach before they build the model; else use `attach(model=…)`.

        Args:
            model: anything with `parameters()`.
            identity: what cannot be counted, such as `dim` or `dataset`.
        """
        if self._live() is None:
            return
        self._device = model_device(model)
        self._identity = {**count_torch(), **self._identity, **count_model(model), **identity}
        self.boot()

    def boot(self) -> None:
        """Write `boot`; the first time, wait until the run may begin.

        Raises:
            SystemExit: 3, halted before the first step; 4, no `.GO` within two minutes.
        """
        writer = self._live()
        if writer is None:
            return
        writer.write("boot", step=self.ended, **self._whose, **self._identity)
        if self._booted:
            return
        self._booted = True
        code = await_go(self._run, self._identity) if self.order else None
        if code is not None:
            if code == HALTED_CODE:
                writer.write("halt_seen")
            self._close(writer)
            raise SystemExit(code)
        self._open(writer)

    def _open(self, writer: HeartbeatWriter) -> None:
        """Begin the next step, unless the last one has ended."""
        writer.begin(opens=self.last_step is None or self.ended < self.last_step)

    @property
    def ended(self) -> int:
        """The last step that has ended; 0 outside gonogo."""
        return 0 if self._writer is None else self._writer.position.ended

    def is_elsewhere(self, step: int) -> bool:
        """Whether steps have ended, and the last of them is not this one."""
        return step != self.ended != self._began_after

    @property
    def awaits_model(self) -> bool:
        """Whether the order checks fields that need the model."""
        checked = _BY_MODEL.intersection(self._run.checked)
        return not checked <= {name for name, told in self._identity.items() if told is not None}

    def resumed(self, step: SupportsInt) -> None:
        """Report that the script loaded a checkpoint of its own, before the first step ends.

        Args:
            step: the last step that the checkpoint holds; a tensor will do.

        Raises:
            TypeError, ValueError: no number.
        """
        step, writer = int(step), self._live()
        if writer is None or step == self.ended or self.ended != self._began_after:
            return
        self._began_after = self._saved_step = step
        writer.go_on_after(step)
        if self._booted:
            self.boot()
            self._open(writer)

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
        writer = self._begun()
        if writer is None:
            return
        _check_names(numbers)
        told = plain({"loss": loss, **numbers})  # outside of the lock: a tensor may wait
        self._judge(told)
        told = sort_out(told, self._own_names)
        writer.end_step(told, None if tokens is None else int(tokens), self.last_step)

    @contextmanager
    def section(self, name: Section) -> Iterator[None]:
        """Name what the rank does meanwhile.

        Each section has its own deadline, so name at least evaluations and checkpoints, whose time
        belongs to no step. The time of the other sections is reported with the step. Evaluations
        and checkpoints contain no section.

        Raises:
            ValueError: no such section.
        """
        _check_section(name)
        outer = None if self._writer is None else self._writer.position.section
        stands: str = outer if outer is not None and outer in PAUSES else name
        self._move(stands)
        try:
            yield
        except BaseException as error:
            self._raised_in = (id(error), stands)
            raise
        finally:
            self._move(outer)

    def enter(self, name: Section | None) -> None:
        """Name what the rank does from now on, for loops with callbacks; None: no section.

        Raises:
            ValueError: no such section.
        """
        _check_section(name)
        self._move(name)

    def _move(self, name: str | None) -> None:
        if writer := self._live():
            writer.enter(name)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark a collective of the script, in which the rank waits for others.

        Outside of any section it is section log.
        """
        writer = self._live()
        if writer is None:
            yield
            return
        outer = writer.position.section
        writer.count_collective()
        self._move("log" if outer is None else outer)
        began = time.monotonic()
        try:
            yield
        finally:
            writer.count_wait(time.monotonic() - began)
            self._move(outer)

    def batches(self, loader: Iterable[_T]) -> Iterator[_T]:
        """Return the batches of a loader, each fetched in section data."""
        with self.section("data"):
            iterator = iter(loader)
        while True:
            with self.section("data"):
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                except Exception as error:
                    if writer := self._live():
                        writer.write("loader_error", **described(error))
                    raise
            yield batch

    def checkpoint(self, path: str | Path) -> None:
        """Report that a checkpoint of the last step is whole, when every rank has written its part.

        Rank 0 writes a manifest into a folder of the run directory's `checkpoints/`
        (`checkpoint_path()`), by which the watcher verifies it. Call it inside section checkpoint,
        or in a thread of its own.
        """
        writer, folder = self._live(), Path(path)
        if writer is None:
            return
        try:
            if self.rank == 0 and owes_manifest(self._run, folder):
                beside = threading.get_ident() != self._thread
                with nullcontext() if beside else self.section("checkpoint"):
                    save_manifest(folder, self.ended)
        except OSError as error:
            writer.write("error", **described(error))
        else:
            told = {"path": self._run.shown(folder), **_lasted(writer, "checkpoint")}
            writer.write("checkpoint", step=self.ended, **told)
        self._saved_at, self._saved_step = time.monotonic(), self.ended
        writer.reopen_step()

    def checkpoint_path(self) -> Path | None:
        """Return the folder for a checkpoint of the last step; None outside gonogo."""
        return None if self._writer is None else self._run.checkpoint(self.ended)

    def eval(self, val_loss: SupportsFloat, **numbers: Any) -> None:
        """Report the validation loss after the last step; inside section eval also its duration.

        Args:
            val_loss: of the whole evaluation; a tensor will do.
            numbers: further measurements: `accuracy=` becomes the metric `user/accuracy`.

        Raises:
            TypeError: a name of the line's own, or no number.
        """
        writer = self._live()
        if writer is None:
            return
        _check_names(numbers)
        told = sort_out(plain({"val_loss": val_loss, **numbers}), self._own_names)
        writer.write("eval", step=self.ended, **told, **_lasted(writer, "eval"))
        writer.reopen_step()

    def should_save(self) -> bool:
        """Whether the order wants a checkpoint after this step; the same answer on every rank.

        Every rank asks after the same steps: it is a collective if the order counts seconds.
        Outside gonogo the answer is no.
        """
        every_steps, every_s = self._run.save_every_steps, self._run.save_every_s
        never = every_steps is None and every_s is None
        if self._begun() is None or never or self.ended == self._saved_step:
            return False
        if self.ended == self._run.steps:
            return True  # the last weights are kept
        due = every_steps is not None and self.ended % every_steps == 0
        if due or every_s is None:
            return due
        return self._ask(lambda: time.monotonic() - self._saved_at >= every_s)

    def should_halt(self) -> bool:
        """Whether the run must end after this step; the same answer on every rank.

        Every rank asks after the same steps. If True: save a checkpoint if `finite`, then leave the
        loop and the `with` block, which waits for the other ranks and exits with code 3.
        """
        writer = None if self._halted else self._begun()
        if writer is None:
            return self._halted
        if self.steps is not None and self.ended >= self.steps:
            return False  # it is complete
        told = self._ask(lambda: self._run.says("HALT"))
        if told:
            self._halted = True
            writer.write("halt_seen")
            if not self._is_alone():
                self.finite = not self._any(not self.finite)
        return told

    def _ask(self, question: Callable[[], bool]) -> bool:
        """Return rank 0's answer on every rank."""
        if self._is_alone():
            return question()
        answer = self.rank == 0 and question()
        with self.waiting():
            return self._any(answer)

    def _is_alone(self) -> bool:
        return self._agree is None and ranks.group() is None

    def mean(self, *numbers: float) -> list[float]:
        """Return the means over ranks; a collective."""
        if ranks.group() is None:
            return list(numbers)
        with self.waiting():
            return ranks.mean(numbers, self._device)

    def _any(self, flag: bool) -> bool:
        return ranks.agree(flag, self._device) if self._agree is None else self._agree(flag)

    def _begun(self) -> HeartbeatWriter | None:
        """Return the writer of a rank whose boot line is written."""
        if not self._booted:
            self.boot()
        return self._live()

    def _judge(self, told: Mapping[str, Any]) -> None:
        """Note numbers that are not finite; fp16 may skip a step."""
        numbers = [told[name] for name in ("loss", "grad_norm") if told.get(name) is not None]
        if told.get("skipped") is not True and not all(map(_is_finite, numbers)):
            self.finite = False

    def _say_error(self, writer: HeartbeatWriter, error: BaseException) -> None:
        if self._raised_in is not None and self._raised_in[0] == id(error):
            writer.enter(self._raised_in[1])
        writer.write("error", **described(error))

    def _at_exit(self) -> None:
        """Write the error of a script that never left its `with` block."""
        writer = self._live()
        if writer is None:
            return
        last = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if isinstance(last, BaseException):
            self._say_error(writer, last)
        self._close(writer)

    def _close(self, writer: HeartbeatWriter) -> None:
        writer.close()
        atexit.unregister(self._at_exit)


def _lasted(writer: HeartbeatWriter, section: Section) -> dict[str, float]:
    """Return the seconds that the rank has been in a section, if it is there."""
    place = writer.position
    inside = place.section == section
    return {"dt": round(place.age_s(time.monotonic()), 6)} if inside else {}


def _let_children_be_ended() -> None:
    """If this process ignores SIGTERM, let its forked children be ended by it.

    A scheduler sends SIGTERM to all processes of a job; a rank leaves by `.HALT` instead.
    """
    ignored = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    if not ignored or threading.current_thread() is not threading.main_thread():
        return
    own = os.getpid()

    def pass_by(number: int, _: object) -> None:
        if os.getpid() != own:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, pass_by)


def _check_names(numbers: Mapping[str, Any]) -> None:
    if taken := LINE_NAMES & numbers.keys():
        raise TypeError(f"{', '.join(sorted(taken))}: a line says that by itself")


def _is_finite(value: Any) -> bool:
    return not isinstance(value, str) and math.isfinite(value)


def _check_section(name: str | None) -> None:
    if name is not None and name not in SECTIONS:
        raise ValueError(f"no section {name!r}; there are {', '.join(sorted(SECTIONS))}")
