"""The section that a rank is in, and how long each took in a step.

Entering a section writes a heartbeat and lets an injected fault act. Times are read when the step
is over, so that nothing waits for the device.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from nsa.faults import Fault
from nsa.heartbeat import Heartbeat

Moment = float | torch.cuda.Event


class Stopwatch:
    """Moments of a device: the monotonic clock's, or events in a GPU's queue."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"

    def now(self) -> Moment:
        """The moment when the work that is queued by now is done."""
        if not self._on_gpu:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def between_s(begin: Moment, end: Moment) -> float:
    """Seconds from one moment to another, both of which have passed."""
    if isinstance(begin, torch.cuda.Event):
        assert isinstance(end, torch.cuda.Event)
        return begin.elapsed_time(end) / 1e3
    assert not isinstance(end, torch.cuda.Event)
    return end - begin


ACCOUNTED = ("data", "forward", "backward", "optimizer", "wait")


class Sections:
    """The sections of one rank; `label` marks them for a profiler, `stopwatch` times them."""

    def __init__(self, heart: Heartbeat, fault: Fault) -> None:
        self._heart, self._fault = heart, fault
        self.began = time.monotonic()
        self.label: Callable[[str], AbstractContextManager[Any]] | None = None
        self.stopwatch: Stopwatch | None = None
        self._spans: list[tuple[str, Moment, Moment]] = []
        self._waits: list[tuple[str | None, Moment, Moment]] = []
        self._waited_s = self._own_s = 0.0
        self._delayed: dict[str, float] = {}

    def begin_step(self, step: int) -> None:
        """Open a step: its number is in every line from here on."""
        self._heart.step, self._heart.in_step = step, True
        self._spans, self._waits, self._waited_s = [], [], 0.0
        self._delayed = {}
        self.began = time.monotonic()

    def spent_s(self) -> dict[str, float]:
        """The account of the step, in s; to be called when the device has done its work."""
        spent_s = dict.fromkeys(ACCOUNTED, 0.0)
        for name, begin, end in self._spans:
            if name in spent_s:
                spent_s[name] += between_s(begin, end)
        for instead_of, begin, end in self._waits:
            seconds = between_s(begin, end)
            spent_s["wait"] += seconds
            if instead_of is not None:
                spent_s[instead_of] -= seconds
        spent_s["wait"] += self._waited_s
        return spent_s

    def end_step(self, spent_s: dict[str, float]) -> None:
        """Close the step, which took what its account says: sections are announced again."""
        self._heart.in_step = False
        own_s = sum(spent_s.values()) - spent_s["wait"] - sum(self._delayed.values())
        self._own_s = max(0.0, own_s)

    @contextmanager
    def enter(self, name: str, *, first_line: str | None = None) -> Iterator[None]:
        """Be in a section; `first_line` is written on entry, before anything can go wrong."""
        timed = self.stopwatch is not None and self._heart.in_step and name in ACCOUNTED
        begin = self._now() if timed else None
        with self._heart.in_section(name):
            if first_line is not None:
                self._heart.beat(first_line)
            self._fault.strike(name, self._heart.step)
            with self.label(name) if self.label else nullcontext():
                yield
        if begin is not None:
            self._spans.append((name, begin, self._now()))

    def suffer_delay(self, name: str) -> None:
        """Take as much longer as an injected fault says, by this rank's last own step."""
        if name not in self._delayed:
            self._delayed[name] = self._fault.delay_s(name, self._heart.step, self._own_s)
            time.sleep(self._delayed[name])

    def count_as_wait(self, seconds: float) -> None:
        """Account time spent waiting for peers."""
        self._waited_s += seconds

    def waited_since(self, begin: Moment | None, *, instead_of: str) -> None:
        """Account the time from a moment until now as waiting, and take it off a section."""
        if begin is not None:
            self._waits.append((instead_of, begin, self._now()))

    def _now(self) -> Moment:
        assert self.stopwatch is not None
        return self.stopwatch.now()
