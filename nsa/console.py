"""The lines that a training rank prints: step, loss, speed, time left."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

_EVERY_S = 5.0
LOG_EVERY_S = 30.0
"""Under a supervisor: 15 MB in the 62 days of the longest run."""


def _write(line: str) -> None:
    """Write a line at once; one that cannot be written (a full disk) is left out."""
    with suppress(OSError):
        os.write(1, f"{line}\n".encode())


class Console:
    """Progress of a run, at most one line every `every_s` seconds; first and last step always.

    Time left is the mean of the steps so far times those to come; the first step, which warms up,
    does not count. `done` steps were finished before this process began.
    """

    def __init__(
        self,
        steps: int,
        done: int,
        *,
        every_s: float = _EVERY_S,
        write: Callable[[str], None] = _write,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps, self._done = steps, done
        self._every_s, self._write, self._now = every_s, write, now
        self._warm_at: float | None = None
        self._told_at = -every_s

    def log_step(self, step: int, fields: Mapping[str, Any]) -> None:
        """A step has ended; `fields` are those of its progress line."""
        now = self._now()
        first = self._warm_at is None
        if self._warm_at is None:
            self._warm_at = now
        if not first and step != self._steps and now - self._told_at < self._every_s:
            return
        self._told_at = now
        parts = [
            f"step {step}/{self._steps}",
            f"loss {fields['loss']:.4f}",
            f"grad {fields['grad_norm']:.3g}",
            f"lr {fields['lr']:.2e}",
            f"{fields['toks_per_s']:.0f} tok/s",
        ]
        timed = step - self._done - 1
        if timed > 0:
            step_s = (now - self._warm_at) / timed
            left_s = step_s * (self._steps - step)
            parts.append(f"{step_s:.2f} s/step")
            parts.append(f"{duration(left_s)} left" if left_s else "done")
        self._write("  ".join(parts))

    def log(self, text: str) -> None:
        """Something that is not a step: a checkpoint, a validation loss."""
        self._write(text)


def duration(seconds: float) -> str:
    """m:ss, h:mm:ss from an hour, and days in front from a day."""
    whole = round(seconds)
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days} d {hours}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
