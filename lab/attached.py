"""What does a rank write whose script attached our library? The library's own place, its lines.

A step opens where the step before ended, so evaluations and checkpoints fall into it. Afterwards it
opens again if nothing of it was computed yet. The library itself (`gonogo.trainer.position`) gives
the rank's step and section, and the lines that are due. The lines are those of
`gonogo.trainer.heartbeat_writer`, on simulated time.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gonogo.contract.heartbeat import NON_TRAINING_SECTIONS, Msg, StepSections
from gonogo.trainer.position import Position
from lab.ranks import Rank

_OF_THE_LAST = frozenset({Msg.BOOT, Msg.CHECKPOINT, Msg.EVAL, Msg.DONE})
"""Messages about the last step that has ended."""


class AttachedRank(Rank):
    """One rank, by the calls of `gonogo.trainer.Beat`."""

    __slots__ = ("place",)

    def begin(self, boot: str, *, first_seq: int, step: int = 0) -> None:
        """Start a process; the library counts its lines from 1, whatever came before."""
        super().begin(boot, first_seq=1, step=step)
        self.place = Position(ended=step, since=self.now)
        self.counts = False
        self._settle()

    def say(self, msg: str, **fields: Any) -> None:
        """Write one line, about the step that its kind is about."""
        self.step = self.place.ended if msg in _OF_THE_LAST else self.place.step
        super().say(msg, **fields)

    def go(self) -> None:
        """Leave section boot: the first step begins."""
        self.place.enter(None, self.now)
        self._open()

    def enter(self, section: str | None) -> None:
        """Name what the rank does from now on."""
        if section == self.section:
            return
        due = self.place.enter(section, self.now)
        self._settle()
        if due is not None:
            self.say(due, collective_seq=self.collective_seq)

    @contextmanager
    def named(self, section: str) -> Iterator[None]:
        """Name what the rank does meanwhile; inside an evaluation or a checkpoint it is that."""
        outer = self.section
        self.enter(outer if outer in NON_TRAINING_SECTIONS else section)
        yield
        self.enter(outer)

    def wait_until(self, now: float) -> None:
        """Wait for the others in a collective that the library counts."""
        outer = self.section
        self.collective_seq += 1
        self.counts = True
        self.enter("log" if outer is None else outer)
        began = self.now
        self.spend(now - began)
        self.place.waited_s += self.now - began
        self.enter(outer)

    def end_step(self, numbers: Mapping[str, Any], tokens: int, last: int) -> None:
        """End the open step, and open the next one unless this was the last."""
        place = self.place
        if not place.is_open:
            self._open()
        progress, ended = dict(numbers), dict[str, Any](tokens=tokens)
        if place.fetched_s is not None:
            progress["dt_fetch_s"] = place.fetched_s
        took_s = place.end_step(self.now)
        if took_s > 0.0:
            progress["toks_per_s"] = tokens / took_s
        if (times_s := place.sections_s()) is not None:
            ended["step_sections"] = StepSections.model_construct(None, **times_s)
        self.say("progress", **progress)
        self._settle()
        self.say("step_end", dt_step_s=took_s, collective_seq=self.collective_seq, **ended)
        if place.ended < last:
            self._open()

    def tell(self, msg: str, **fields: Any) -> None:
        """Report that an evaluation or a checkpoint is over; outside of it the step opens again."""
        self.say(msg, **fields)
        place = self.place
        if place.is_open and place.untouched and self.section not in NON_TRAINING_SECTIONS:
            self._open()

    def _open(self) -> None:
        self.place.open_step(self.now)
        self._settle()
        self.say("step_start")

    def _settle(self) -> None:
        """Stand where the library says."""
        place = self.place
        self.section, self.section_seq, self.since = place.section, place.section_seq, place.since
        self._announced = place.announced
