"""The beat under gonogo: it writes lines and obeys the run directory.

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
from typing import Any, SupportsFloat, SupportsInt, TypeVar

from gonogo.trainer import ranks
from gonogo.trainer.beat import Beat, Section, check_section
from gonogo.trainer.encoding import plain, sort_out
from gonogo.trainer.heartbeat_writer import HeartbeatWriter, described
from gonogo.trainer.identity import count_model, count_torch, model_device
from gonogo.trainer.position import PAUSES
from gonogo.trainer.run_dir import HALTED_CODE, Saving, await_go, save_manifest

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


class SupervisedBeat(Beat):
    """The beat that writes.

    Args:
        whose: run and attempt, for the boot line.
        identity: what is known without a model.
        agree: as in `attach`.
    """

    def __init__(
        self,
        writer: HeartbeatWriter,
        *,
        rank: int,
        world_size: int,
        whose: Mapping[str, Any],
        identity: Mapping[str, Any],
        agree: Callable[[bool], bool] | None,
    ) -> None:
        super().__init__(rank, world_size)
        run_dir = writer.run_dir
        self.run_dir, self.order, self.steps = run_dir.path, run_dir.order, run_dir.steps
        self.resume_from, self.resume_step = run_dir.resume_from, run_dir.resumed_step
        self.last_step = run_dir.steps
        """The last step of the order or of the loop."""
        self._writer, self._run, self._whose = writer, run_dir, whose
        self._identity = dict(identity)
        self._agree, self._device = agree, None
        self._booted = self._halted = False
        self._own_names: set[str] = set()
        self._raised_in: tuple[int, str] | None = None
        self._began_after = self.ended
        self._saving = Saving(run_dir, ended=self.ended)
        self._thread = threading.get_ident()
        atexit.register(self._at_exit)
        writer.start()
        if writer.is_ours:
            _let_children_be_ended()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Write how it ended."""
        if not self._writer.is_ours:
            return
        left = isinstance(error, SystemExit) and error.code in (None, 0)
        exits = isinstance(error, SystemExit) and error.code == HALTED_CODE
        halted = self._halted and (left or error is None or exits)
        if error is not None and not left and not halted:
            self._say_error(error)
        elif not halted:
            self._writer.write("done", step=self.ended)
        elif error is None and not self._is_alone():
            with self.waiting():
                self._any(False)  # wait until no rank is saving any more
            if threading.current_thread() is threading.main_thread():
                # Keep the exit code, although torchrun ends the peers of a rank that left.
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._close()
        if error is None or left or halted:
            atexit.register(ranks.let_go)  # at exit: the script may still need its peers
        if halted and error is None:
            raise SystemExit(HALTED_CODE)

    def model(self, model: Any, **identity: Any) -> None:
        """Count a model, write `boot`, and wait for `.GO`."""
        if not self._writer.is_ours:
            return
        self._device = model_device(model)
        self._identity = {**count_torch(), **self._identity, **count_model(model), **identity}
        self.boot()

    def boot(self) -> None:
        """Write `boot`; the first time, wait until the run may begin.

        Raises:
            SystemExit: 3, halted before the first step; 4, no `.GO` within two minutes.
        """
        writer = self._writer
        writer.write("boot", step=self.ended, **self._whose, **self._identity)
        if self._booted:
            return
        self._booted = True
        if self.order:
            self._wait_for_go()
        self._open()

    def _open(self) -> None:
        """Begin the next step, unless the last one has ended."""
        self._writer.begin(opens=self.last_step is None or self.ended < self.last_step)

    @property
    def ended(self) -> int:
        """The last step that has ended."""
        return self._writer.position.ended

    def is_elsewhere(self, step: int) -> bool:
        """Whether steps have ended, and the last of them is not this one."""
        return step != self.ended != self._began_after

    @property
    def awaits_model(self) -> bool:
        """Whether the order checks fields that need the model."""
        checked = _BY_MODEL.intersection(self._run.checked)
        return not checked <= {name for name, told in self._identity.items() if told is not None}

    def resumed(self, step: SupportsInt) -> None:
        """Count the steps from here; the open step begins again."""
        step = int(step)
        if not self._writer.is_ours or step == self.ended or self.ended != self._began_after:
            return
        self._began_after = step
        self._writer.go_on_after(step)
        self._saving.began_after(step)
        if self._booted:
            self.boot()
            self._open()

    def step(
        self, loss: SupportsFloat | None, *, tokens: int | None = None, **numbers: Any
    ) -> None:
        """Write progress and step_end, and step_start of the next."""
        if not self._writer.is_ours:
            return
        self._begin()
        _check_names(numbers)
        told = plain({"loss": loss, **numbers})  # outside of the lock: a tensor may wait
        self._judge(told)
        told = sort_out(told, self._own_names)
        self._writer.end_step(told, None if tokens is None else int(tokens), self.last_step)

    @contextmanager
    def section(self, name: Section) -> Iterator[None]:
        """Name what the rank does meanwhile; evaluations and checkpoints contain no section."""
        outer = self._writer.position.section
        check_section(name)
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
        """Name what the rank does from now on."""
        check_section(name)
        self._move(name)

    def _move(self, name: str | None) -> None:
        if self._writer.is_ours:
            self._writer.enter(name)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count a collective and its time; outside of any section it is section log."""
        if not self._writer.is_ours:
            yield
            return
        outer = self._writer.position.section
        self._writer.count_collective()
        self._move("log" if outer is None else outer)
        began = time.monotonic()
        try:
            yield
        finally:
            self._writer.count_wait(time.monotonic() - began)
            self._move(outer)

    def batches(self, loader: Iterable[_T]) -> Iterator[_T]:
        """Fetch each batch in section data."""
        with self.section("data"):
            iterator = iter(loader)
        while True:
            with self.section("data"):
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                except Exception as error:
                    if self._writer.is_ours:
                        self._writer.write("loader_error", **described(error))
                    raise
            yield batch

    def checkpoint(self, path: str | Path) -> None:
        """Write the manifest if it is ours to write, and report that the checkpoint is whole.

        The manifest needs every file to be read, which is part of section checkpoint. In a thread
        of its own it does not change the section.
        """
        writer, folder = self._writer, Path(path)
        if not writer.is_ours:
            return
        try:
            if self._saving.owes_manifest(folder, rank=self.rank):
                beside = threading.get_ident() != self._thread
                with nullcontext() if beside else self.section("checkpoint"):
                    save_manifest(folder, self.ended)
        except OSError as error:
            writer.write("error", **described(error))
        else:
            told = {"path": self._run.shown(folder), **self._lasted("checkpoint")}
            writer.write("checkpoint", step=self.ended, **told)
        self._saving.saved(self.ended)
        writer.reopen_step()

    def checkpoint_path(self) -> Path:
        """Return the folder for a checkpoint of the last step."""
        return self._run.checkpoint(self.ended)

    def eval(self, val_loss: SupportsFloat, **numbers: Any) -> None:
        """Write the results of an evaluation."""
        if not self._writer.is_ours:
            return
        _check_names(numbers)
        writer = self._writer
        told = sort_out(plain({"val_loss": val_loss, **numbers}), self._own_names)
        writer.write("eval", step=self.ended, **told, **self._lasted("eval"))
        writer.reopen_step()

    def _lasted(self, section: Section) -> dict[str, float]:
        place = self._writer.position
        inside = place.section == section
        return {"dt": round(place.age_s(time.monotonic()), 6)} if inside else {}

    def should_save(self) -> bool:
        """Follow the order's cadence; a collective if it counts seconds, by rank 0's clock."""
        if not self._writer.is_ours:
            return False
        self._begin()
        return self._saving.due(self.ended, self._ask)

    def should_halt(self) -> bool:
        """Look for `.HALT`; a collective."""
        writer = self._writer
        if not writer.is_ours or self._halted:
            return self._halted
        self._begin()
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

    def _begin(self) -> None:
        if not self._booted:
            self.boot()

    def _judge(self, told: Mapping[str, Any]) -> None:
        """Note numbers that are not finite; fp16 may skip a step."""
        numbers = [told[name] for name in ("loss", "grad_norm") if told.get(name) is not None]
        if told.get("skipped") is not True and not all(map(_is_finite, numbers)):
            self.finite = False

    def _wait_for_go(self) -> None:
        code = await_go(self._run, self._identity)
        if code is None:
            return
        if code == HALTED_CODE:
            self._writer.write("halt_seen")
        self._close()
        raise SystemExit(code)

    def _say_error(self, error: BaseException) -> None:
        if self._raised_in is not None and self._raised_in[0] == id(error):
            self._writer.enter(self._raised_in[1])
        self._writer.write("error", **described(error))

    def _at_exit(self) -> None:
        """Write the error of a script that never left its `with` block."""
        if not self._writer.is_ours:
            return
        last = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if isinstance(last, BaseException):
            self._say_error(last)
        self._close()

    def _close(self) -> None:
        self._writer.close()
        atexit.unregister(self._at_exit)


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
