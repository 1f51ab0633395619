"""What is this rank doing, and for how long has it? Every part of a run is inside a section.

Entering one tells the heartbeat and gives an injected fault its chance; leaving one adds to the
step's account, which `step_end` reports.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from nsa.faults import Fault
from nsa.heartbeat import Heartbeat

ACCOUNTED = ("data", "forward", "backward", "optimizer", "wait")


class Sections:
    """The sections of one rank.

    `spent_s` is the account of the current step; `label` marks sections for a profiler.
    """

    def __init__(self, heart: Heartbeat, fault: Fault) -> None:
        self._heart, self._fault = heart, fault
        self.spent_s: dict[str, float] = {}
        self.began = time.monotonic()
        self.label: Callable[[str], AbstractContextManager[Any]] | None = None
        self._own_s = 0.0
        self._delayed: dict[str, float] = {}

    def begin_step(self, step: int) -> None:
        """Open a step: its number is in every line from here on."""
        self._heart.step, self._heart.in_step = step, True
        self.spent_s = dict.fromkeys(ACCOUNTED, 0.0)
        self._delayed = {}
        self.began = time.monotonic()

    def end_step(self) -> None:
        """Close the step: sections are announced again."""
        self._heart.in_step = False
        own_s = sum(self.spent_s.values()) - self.spent_s["wait"] - sum(self._delayed.values())
        self._own_s = max(0.0, own_s)
        self.spent_s = {}

    @contextmanager
    def enter(self, name: str, *, first_line: str | None = None) -> Iterator[None]:
        """Be in a section; `first_line` is written on entry, before anything can go wrong."""
        began = time.monotonic()
        with self._heart.in_section(name):
            if first_line is not None:
                self._heart.beat(first_line)
            self._fault.strike(name, self._heart.step)
            with self.label(name) if self.label else nullcontext():
                yield
        if name in self.spent_s:
            self.spent_s[name] += time.monotonic() - began

    def suffer_delay(self, name: str) -> None:
        """Let this section take as much longer as an injected fault says, once a step.

        The measure is the step before: what this rank itself did then, without waiting for peers.
        """
        if name not in self._delayed:
            self._delayed[name] = self._fault.delay_s(name, self._heart.step, self._own_s)
            time.sleep(self._delayed[name])

    def count_as_wait(self, seconds: float, instead_of: str | None = None) -> None:
        """Account time spent waiting for peers; `instead_of` takes it off that section."""
        self.spent_s["wait"] += seconds
        if instead_of is not None:
            self.spent_s[instead_of] -= seconds
