"""Find the rank that this process writes for, and write its first and its last lines.

The heartbeat file is opened when the process shows that it trains: it joins a process group, or it
has made an optimizer and reads a `DataLoader` or computes a backward pass. Launchers, loader
workers and helpers of a rank do none of that before their rank has.
"""

import atexit
import hashlib
import sys
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gonogo.observer.own_numbers import OWN, Sum
from gonogo.trainer import ranks
from gonogo.trainer.heartbeat_writer import (
    ATTACHED,
    OBSERVABLE,
    OBSERVED,
    READ,
    Due,
    HeartbeatWriter,
    Taken,
    described,
    memory_mb,
    writes_already,
)
from gonogo.trainer.identity import count_environment, count_model, digest_files
from gonogo.trainer.position import PAUSES
from gonogo.trainer.run_dir import RunDir, load_run_dir
from gonogo.trainer.settings import (
    Settings,
    is_launched,
    is_of_rank,
    launcher_rank,
    load_settings,
    mark,
)

_LEAVE_S = 1.0


class ObservedRank(HeartbeatWriter):
    """One rank's heartbeats, as far as the observer sees it.

    Its steps are noted, and written by the thread or before any other line: the program waits for
    no disk, and for no device that still copies a loss.

    Raises:
        Taken: another process writes this rank's lines.
    """

    observes = True

    def __init__(self, run: RunDir, settings: Settings, rank: int) -> None:
        super().__init__(run, rank)
        self._settings = settings
        self._noted: deque[list[Due]] = deque()
        self._reported: tuple[int, dict[str, Any]] | None = None
        """The step and the identity of the last boot line."""
        self._trained_by: int | None = None
        """The thread that trains."""
        atexit.register(self.finish)
        self.start()

    @property
    def section(self) -> str | None:
        """The section that the rank is in."""
        return self.position.section

    @property
    def logged_step(self) -> int:
        """The step of what is logged now: the open one, if it has computed anything."""
        place = self.position
        return place.ended if place.untouched else place.step

    @property
    def may_log(self) -> bool:
        """Whether the thread that trains asks, and no evaluation or checkpoint is under way."""
        return threading.get_ident() == self._trained_by and self.section not in PAUSES

    def enter(self, section: str | None) -> None:
        """Move to a section; before the first step the rank stays in `boot`, unless it pauses."""
        if self._reported is not None or section == "data":
            super().enter(section)

    def boot(self, optimizer: Any, after: int) -> None:
        """Report what runs; again before the first step, if it has changed since.

        Args:
            optimizer: the primary one.
            after: the last step of the checkpoint that it was loaded from; 0 for a fresh one.
        """
        self._trained_by = threading.get_ident()
        group, order = ranks.group(), self.run_dir.order
        size = self._settings.world_size or (1 if group is None else group.get_world_size())
        rows = {id(row): row for each in optimizer.param_groups for row in each["params"]}
        first = next(iter(rows.values()), None)
        identity = {
            **count_environment(self._settings.nsa_env, size),
            **count_model(SimpleNamespace(parameters=rows.values)),
            "dtype": None if first is None else str(first.dtype).removeprefix("torch."),
            **(digest_files(order) or _script_digest()),
        }
        if self._reported == (after, identity):
            return
        again, self._reported = self._reported is not None, (after, identity)
        if again or after != self.position.ended:
            self.go_on_after(after)
        whose = {"run": self._settings.run or order.get("run")}
        if order:
            whose["attempt"] = order.get("attempt", 1)
        self.write("boot", step=after, **whose, **identity)
        steps = self.run_dir.steps
        self.begin(opens=steps is None or after < steps)

    def note_step(self, numbers: Mapping[str, Sum | float | bool | None]) -> None:
        """Note that a step has ended: the fields of its progress line."""
        with self._lock:
            self._noted.append(self._end(numbers, None, self.run_dir.steps, {}))

    def write_noted(self, *, wait: bool = False) -> None:
        """Write the steps that were noted, and what the program logged.

        Args:
            wait: also wait for numbers that a device has not copied yet.
        """
        with self._lock:
            if rows := self._settled(wait=wait):
                super()._append(*rows)
        for step, numbers in OWN.take(wait=wait):
            self.write("metrics", step=step, user=numbers)

    def _settled(self, *, wait: bool = False) -> list[Due]:
        """Return the lines of the noted steps whose numbers are there."""
        found: list[Due] = []
        while self._noted:
            rows = self._noted[0]
            sums = [value for row in rows for value in row.fields.values() if _is_sum(value)]
            if not all([value.settle(wait=wait) for value in sums]):
                break
            found += self._noted.popleft()
        for row in found:
            told = {name: value.total for name, value in row.fields.items() if _is_sum(value)}
            if "skipped" in told:
                told["skipped"] = bool(told["skipped"])
            row.fields.update(told)
        for row in [row for row in found if row.msg == "progress"][-1:]:
            row.fields.update(memory_mb())
        return found

    def _append(self, *rows: Due) -> None:
        super()._append(*self._settled(), *rows)

    def _write_if_due(self) -> None:
        self.write_noted()
        super()._write_if_due()

    def give_up(self, error: BaseException) -> None:
        """Say that nothing more is observed, and leave the rank to what the program prints."""
        atexit.unregister(self.finish)
        self.write_noted(wait=True)
        self.write("unobserved", **described(error))
        self.close()
        for name in (ATTACHED, OBSERVED, OBSERVABLE):
            (self.run_dir.path / name).unlink(missing_ok=True)

    def leave(self, code: int) -> None:
        """Write what was noted before the process ends at once, unless a disk hangs."""
        if not self._lock.acquire(timeout=_LEAVE_S):
            return
        self._lock.release()
        if code == 0:
            self.finish()
        else:
            self.write_noted(wait=True)
            self.close()

    def finish(self) -> None:
        """Write how the process ended, as far as Python knows."""
        atexit.unregister(self.finish)
        if not self.is_ours:
            return
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        self.write_noted(wait=True)
        if isinstance(error, BaseException):
            self.write("error", **described(error))
        elif self._reported is not None:
            self.write("done", step=self.position.ended)
        self.close()


def _is_sum(value: Any) -> bool:
    return isinstance(value, Sum)


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
        return ObservedRank(run, settings, rank)
    except Taken:
        return None


def _script_digest() -> dict[str, str]:
    """Return `git_sha` of the script that runs, by its content."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        content = Path(str(script)).read_bytes()
    except OSError:
        return {}
    return {"git_sha": f"files-{hashlib.sha256(content).hexdigest()[:40]}"}
