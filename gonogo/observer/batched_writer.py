"""Write the lines of an observed rank in batches: a step of a millisecond must not pay for them.

A thread writes the noted steps twice a second, and before every other line. One short step in
2, 4, 8, … is noted, about every `_NOTE_EVERY_S`. Its lines report how many steps they end, and the
loss of the last one; a loss that is not finite counts for all of them.
"""

import math
import time
from collections import deque
from typing import Any, NamedTuple

from gonogo.observer.own_numbers import OWN, Sum
from gonogo.trainer.encoding import plain
from gonogo.trainer.heartbeat_writer import HeartbeatWriter, memory_mb
from gonogo.trainer.run_dir import RunDir

_EVERY_S = 0.5
"""How long a step may wait to be written."""
_MOST = 64
"""Steps that are written at once: the program may wait for the lock meanwhile."""
_NOTE_EVERY_S = 0.05
"""How much time the steps last of which one is noted: noting one takes about 0.1 ms."""
_NOTED_FIRST, _MOST_COUNTED = 16, 64
_LONG_S = 1.0
"""After so long without a step, the last counted one is noted."""


class _Noted(NamedTuple):
    """A step that has ended."""

    step: int
    ended: float
    took_s: float
    section: str | None
    section_seq: int
    parts_s: dict[str, float] | None
    numbers: dict[str, Sum | float | None]
    opens: bool
    """Whether another step begins."""
    steps: int
    """How many steps have ended since the one that was noted before."""


class _Counted(NamedTuple):
    """Steps that were counted since the last noted one."""

    steps: int = 0
    loss: float = 0.0
    """Loss of the last one, or of the first one that is not finite."""
    at: float = 0.0
    """When the last one ended."""


class BatchedWriter(HeartbeatWriter):
    """A writer that notes steps, and writes them later.

    Args:
        run_dir: whose heartbeat file is written.
        rank: number of this rank.

    Raises:
        Taken: another process writes this rank's lines.
    """

    observes = True

    def __init__(self, run_dir: RunDir, rank: int) -> None:
        super().__init__(run_dir, rank)
        self._noted: deque[_Noted] = deque()
        self._wrote = 0.0
        self._notes, self._last_note = 0, 0.0
        self._counted_now = self._counted_before = _Counted()
        """What was counted, and what of it is noted. The script's thread alone replaces the first
        one, so it needs no lock."""
        self._head = f'{{"v":1,"pid":{self._pid},"rank":{rank},"boot":"{self._boot}","section_seq":'

    def count_step(self, loss: float) -> bool:
        """Count that a step has ended which is not noted; return whether the next ones are."""
        steps, before, _ = self._counted_now
        now = time.monotonic()
        worst = loss if math.isfinite(before) else before
        self._counted_now = _Counted(steps + 1, worst, now)
        return now - self._last_note > _LONG_S

    def note_step(self, numbers: dict[str, Sum | float | None], last: int | None) -> int:
        """Note that a step has ended, and begin the next one unless this was the last.

        Args:
            numbers: of the progress line, such as `loss`, `lr`, `grad_norm`, `skipped`.
            last: number of the last step; None if unknown.

        Returns:
            How many of the next steps need only be counted.
        """
        with self._lock:
            now, place = time.monotonic(), self.position
            began = place.began
            counted = self._advance()
            steps = counted.steps + 1
            self._counted_now = self._counted_before = _Counted()
            if counted.steps and not math.isfinite(counted.loss):
                numbers["loss"] = counted.loss
            if not place.is_open:
                place.open_step(now)
            section, took_s = place.section, now - place.began
            if counted.steps:
                took_s = (now - began) / steps
            place.end_step(now)
            seq, parts_s = place.section_seq, place.sections_s()
            opens = last is None or place.ended < last
            row = _Noted(place.ended, now, took_s, section, seq, parts_s, numbers, opens, steps)
            self._noted.append(row)
            if opens:
                place.open_step(now)
            step_s, self._last_note = (now - self._last_note) / steps, now
            self._notes += 1
        if self._notes < _NOTED_FIRST or step_s >= _NOTE_EVERY_S:
            return 0
        every = 2
        while every < _MOST_COUNTED and every * step_s < _NOTE_EVERY_S:
            every *= 2
        left = every if last is None else min(every, last - place.ended)
        return max(0, min(left, every - place.ended % every) - 1)

    def logged_step(self) -> int:
        """Return the step of what is logged now: the open one, if it has computed anything."""
        with self._lock:
            place, ahead = self.position, self._counted_now.steps - self._counted_before.steps
            return (place.ended if place.untouched else place.step) + ahead

    def catch_up(self) -> None:
        """Note the last step that was only counted, with its loss."""
        with self._lock:
            self._catch_up()

    def _catch_up(self) -> None:
        began, seq = self.position.began, self.position.section_seq
        steps, loss, ended = self._advance()
        if steps:
            took_s, number = (ended - began) / steps, self.position.ended
            self._noted.append(
                _Noted(number, ended, took_s, None, seq, None, {"loss": loss}, True, steps)
            )

    def _advance(self) -> _Counted:
        """Move the place over the steps that were counted since the last call; the lock is held."""
        now, before, place = self._counted_now, self._counted_before, self.position
        steps = now.steps - before.steps
        self._counted_before = now
        place.ended += steps
        if steps:
            place.began = place.since = now.at
        return _Counted(steps, now.loss, now.at)

    def write_noted(self, *, wait: bool = False) -> None:
        """Write the steps that were noted, and what the program logged.

        Args:
            wait: also wait for numbers that a device has not copied yet.
        """
        while self._noted:
            with self._lock:
                if not self._write_some(wait=wait):
                    break
        for step, numbers in OWN.take(wait=wait) if OWN else ():
            self.write("metrics", step=step, user=numbers)

    def _write_some(self, *, wait: bool = False) -> bool:
        """Write at most `_MOST` noted steps; the lock is held. Say whether any was written."""
        rows: list[bytes] = []
        ahead_s = time.time() - time.monotonic()
        while self._noted and len(rows) < _MOST:
            row = self._noted[0]
            sums = [value for value in row.numbers.values() if isinstance(value, Sum)]
            if not all([value.settle(wait=wait) for value in sums]):
                break
            self._noted.popleft()
            rows.append(self._lines_of(row, ahead_s, is_last=not self._noted))
        if rows:
            self._wrote = time.monotonic()
            self._append(b"".join(rows))
        return bool(rows)

    def _lines_of(self, row: _Noted, ahead_s: float, *, is_last: bool) -> bytes:
        """Return progress, step_end and step_start; a step costs a few microseconds."""
        at = f',"ts":{row.ended + ahead_s!r},"mono":{row.ended!r},"step":'
        numbers = "".join(_field(name, value) for name, value in row.numbers.items())
        if is_last:
            numbers += "".join(_field(name, value) for name, value in memory_mb().items())
        if "skipped" not in row.numbers:
            numbers += ',"skipped":false'
        section = "null" if row.section is None else f'"{row.section}"'
        parts = ""
        if row.parts_s is not None:
            told = ",".join(f'"{name}":{value:.6f}' for name, value in row.parts_s.items())
            parts = f',"step_sections":{{{told}}}'
            if "data" in row.parts_s:
                numbers += f',"dt_fetch_s":{row.parts_s["data"]:.6f}'
        if row.steps > 1:
            numbers += f',"steps":{row.steps}'
            parts += f',"steps":{row.steps}'
        seq, before = self._seq, max(0, row.section_seq - (row.section is not None))
        opens = ""
        if row.opens:
            opens = (
                f'{self._head}{row.section_seq}{at}{row.step + 1},"msg":"step_start"'
                f',"section":null,"seq":{seq + 3}}}\n'
            )
        self._seq += 2 + row.opens
        return (
            f'{self._head}{before}{at}{row.step},"msg":"progress","section":{section}'
            f',"seq":{seq + 1}{numbers}}}\n'
            f'{self._head}{row.section_seq}{at}{row.step},"msg":"step_end","section":null'
            f',"seq":{seq + 2},"dt_step_s":{row.took_s:.6f}{parts}}}\n{opens}'
        ).encode()

    def _line(self, msg: str, fields: Any, step: int | None = None) -> bytes:
        """Return the next line; what was noted is written before it."""
        self._catch_up()
        while self._noted and self._write_some():
            pass
        return super()._line(msg, fields, step)

    def _write_if_due(self) -> None:
        if time.monotonic() - self._counted_now.at >= _LONG_S:
            self.catch_up()
        if (self._noted or OWN) and time.monotonic() - self._wrote >= _EVERY_S:
            self.write_noted()
        super()._write_if_due()


def _field(name: str, value: Sum | float | None) -> str:
    """Return a field of a line."""
    number = value.total if isinstance(value, Sum) else value
    if number is None:
        return ""
    if name == "skipped":
        return ',"skipped":true' if number else ',"skipped":false'
    text = repr(number) if math.isfinite(number) else f'"{plain(number)}"'
    return f',"{name}":{text}'
