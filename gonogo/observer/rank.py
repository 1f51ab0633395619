"""Find the rank that this process writes for, and write its first and its last lines.

The heartbeat file is opened when the process shows that it trains: it joins a process group, or it
has made an optimizer and reads a `DataLoader` or computes a backward pass. Launchers, loader
workers and helpers of a rank do none of that before their rank has.
"""

import atexit
import hashlib
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from gonogo.observer.batched_writer import BatchedWriter
from gonogo.observer.own_numbers import Sum
from gonogo.observer.settings import (
    Settings,
    is_launched,
    is_of_rank,
    launcher_rank,
    load_settings,
    mark,
)
from gonogo.trainer import ranks
from gonogo.trainer.heartbeat_writer import writes_already
from gonogo.trainer.identity import count_environment, count_model, digest_files
from gonogo.trainer.line_file import ATTACHED, OBSERVABLE, OBSERVED, READ, Taken
from gonogo.trainer.position import PAUSES
from gonogo.trainer.run_dir import RunDir, load_run_dir

_TEXT_CHARS = 2000
_LEAVE_S = 1.0


class Parameters:
    """The parameters of an optimizer, in the form of a module."""

    def __init__(self, optimizer: Any) -> None:
        self._groups = optimizer.param_groups

    def parameters(self) -> list[Any]:
        """Return them, each once."""
        found = {id(row): row for group in self._groups for row in group["params"]}
        return list(found.values())


class ObservedRank:
    """One rank's heartbeats, as far as the observer sees it.

    Args:
        run: the run directory.
        writer: writes the lines.
        settings: of the environment.
        rank: number of this rank.
    """

    def __init__(self, run: RunDir, writer: BatchedWriter, settings: Settings, rank: int) -> None:
        self._run, self._writer, self._settings, self.rank = run, writer, settings, rank
        self._reported: tuple[int, dict[str, Any]] | None = None
        """The step and the identity of the last boot line."""
        self._thread: int | None = None
        """The thread that trains."""
        atexit.register(self.close)
        writer.start()

    @property
    def is_ours(self) -> bool:
        """Whether this process may write: not as a forked child."""
        return self._writer.is_ours

    @property
    def section(self) -> str | None:
        """The section that the rank is in."""
        return self._writer.position.section

    @property
    def logged_step(self) -> int:
        """The step of what is logged now: the open one, if it has computed anything."""
        return self._writer.logged_step()

    @property
    def may_log(self) -> bool:
        """Whether the thread that trains asks, and no evaluation or checkpoint is under way."""
        return threading.get_ident() == self._thread and self.section not in PAUSES

    def enter(self, section: str | None) -> None:
        """Move to a section; before the first step the rank stays in `boot`, unless it pauses."""
        if self._reported is not None or section == "data":
            self._writer.enter(section)

    def boot(self, optimizer: Any, after: int) -> None:
        """Report what runs; again before the first step, if it has changed since.

        Args:
            optimizer: the primary one.
            after: the last step of the checkpoint that it was loaded from; 0 for a fresh one.
        """
        self._thread = threading.get_ident()
        group = ranks.group()
        size = self._settings.world_size or (1 if group is None else group.get_world_size())
        model = Parameters(optimizer)
        first = next(iter(model.parameters()), None)
        identity = {
            **count_environment(self._settings.nsa_env, size),
            **count_model(model),
            "dtype": None if first is None else str(first.dtype).removeprefix("torch."),
            **(digest_files(self._run.order) or _script_digest()),
        }
        if self._reported == (after, identity):
            return
        again, self._reported = self._reported is not None, (after, identity)
        if again or after != self._writer.position.ended:
            self._writer.go_on_after(after)
        whose = {"run": self._settings.run or self._run.order.get("run")}
        if self._run.order:
            whose["attempt"] = self._run.order.get("attempt", 1)
        self._writer.write("boot", step=after, **whose, **identity)
        steps = self._run.steps
        self._writer.begin(opens=steps is None or after < steps)

    def note_step(self, numbers: dict[str, Sum | float | None]) -> int:
        """Note that a step has ended; return how many of the next ones need only be counted."""
        return self._writer.note_step(numbers, self._run.steps)

    def count_step(self, loss: float) -> bool:
        """Count that a step has ended; return whether the next ones are to be noted."""
        return self._writer.count_step(loss)

    def give_up(self, error: BaseException) -> None:
        """Say that nothing more is observed, and leave the rank to what the program prints."""
        atexit.unregister(self.close)
        self._writer.write_noted(wait=True)
        self._writer.write("unobserved", **_described(error))
        self._writer.close()
        for name in (ATTACHED, OBSERVED, OBSERVABLE):
            (self._run.path / name).unlink(missing_ok=True)

    def leave(self, code: int) -> None:
        """Write what was noted before the process ends at once, unless a disk hangs."""
        if not self._writer.is_free(_LEAVE_S):
            return
        if code == 0:
            self.close()
        else:
            self._writer.write_noted(wait=True)
            self._writer.close()

    def close(self) -> None:
        """Write how the process ended, as far as Python knows."""
        atexit.unregister(self.close)
        if not self.is_ours:
            return
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        self._writer.write_noted(wait=True)
        if isinstance(error, BaseException):
            self._writer.write("error", **_described(error))
        elif self._reported is not None:
            self._writer.write("done", step=self._writer.position.ended)
        self._writer.close()


def is_in_group() -> bool:
    """Whether this process is of a process group, or about to join one."""
    return is_launched() or ranks.group() is not None


def announce() -> None:
    """Let the reader of printed lines know that this program can be observed."""
    folder = load_settings().run_dir
    if folder is not None and not is_of_rank():
        with suppress(OSError):
            (folder / OBSERVABLE).touch()


def open_rank() -> ObservedRank | None:
    """Return the rank whose lines this process writes; None where it writes none."""
    settings = load_settings()
    if settings.run_dir is None or (is_of_rank() and ranks.group() is None):
        return None
    run, group = load_run_dir(settings.run_dir), ranks.group()
    if group is not None:
        rank = int(group.get_rank())
    else:
        rank = launcher_rank() if settings.rank is None else settings.rank
    if writes_already(run, rank):
        return None
    mark()
    for name in (OBSERVED, READ, ATTACHED):
        (run.path / name).touch()
    try:
        writer = BatchedWriter(run, rank)
    except Taken:
        return None
    return ObservedRank(run, writer, settings, rank)


def _script_digest() -> dict[str, str]:
    """Return `git_sha` of the script that runs, by its content."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        content = Path(str(script)).read_bytes()
    except OSError:
        return {}
    return {"git_sha": f"files-{hashlib.sha256(content).hexdigest()[:40]}"}


def _described(error: BaseException) -> dict[str, Any]:
    name = type(error).__name__
    return {"type": name, "text": str(error)[:_TEXT_CHARS] or name}
