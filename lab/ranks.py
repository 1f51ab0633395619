"""What do the ranks of a run write? Lines as our trainer writes them, on clocks of their own.

Time is that of the watcher (`now`, seconds); a rank's monotonic clock is that plus an offset.
A line is a `Heartbeat` that was never JSON: a copy of the rank's first one (`like`), so that a
simulated hour costs little more than what the fold takes. Sections are entered as the trainer
enters them: a line when one lasts more than a second or changes outside a step, an `alive` line
after silence.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel

from gonogo.contract.heartbeat import Heartbeat, Msg
from lab.noise import WHOLE, Reporting

Probe = Callable[..., None]
"""Reports to the watcher the state of a rank's process: time, rank, state."""

M = TypeVar("M", bound=BaseModel)
EPOCH = 1_760_000_000.0
ANNOUNCE_AFTER_S = 1.0


@dataclass(slots=True)
class Wall:
    """The wall clock of the host, which may step."""

    steps: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, EPOCH)])
    """From when on, and by how much it is ahead of the watcher's clock."""

    def step(self, now: float, by_s: float) -> None:
        """Let it jump."""
        self.steps.append((now, self.steps[-1][1] + by_s))

    def at(self, now: float) -> float:
        """Return Unix time."""
        for since, ahead in reversed(self.steps):
            if since <= now:
                return now + ahead
        return now + EPOCH


@dataclass(frozen=True, slots=True)
class Stand:
    """A time in which a rank's main thread does not move."""

    since: float
    until: float
    busy: bool
    """Whether it uses its processor meanwhile (garbage collection does, a wait does not)."""


def like(first: M, fields: dict[str, Any]) -> M:
    """Return a copy of a model with other fields, unchecked: a quarter of `model_copy`'s time."""
    copy = object.__new__(type(first))
    object.__setattr__(copy, "__dict__", {**first.__dict__, **fields})
    object.__setattr__(
        copy, "__pydantic_fields_set__", first.__pydantic_fields_set__ | fields.keys()
    )
    object.__setattr__(copy, "__pydantic_extra__", None)
    object.__setattr__(copy, "__pydantic_private__", None)
    return copy


class Rank:
    """One rank's process: where it is, and what it has written that nobody has read yet."""

    __slots__ = (
        "_announced",
        "_proto",
        "_wall",
        "collective_seq",
        "counts",
        "in_step",
        "last_write",
        "lines",
        "mute",
        "now",
        "offset",
        "rank",
        "reporting",
        "rss_mb",
        "section",
        "section_seq",
        "seq",
        "since",
        "step",
        "stood",
    )

    def __init__(
        self, rank: int, *, now: float, offset: float, wall: Wall, reporting: Reporting = WHOLE
    ) -> None:
        self.rank, self.now, self.offset, self.reporting = rank, now, offset, reporting
        self._wall = wall
        self.rss_mb = 2000.0
        self.mute = False
        self.counts = True
        """Whether it reports its collectives."""
        self.stood: Stand | None = None
        self.lines: list[tuple[float, Heartbeat]] = []
        self.begin("boot", first_seq=1)

    def begin(self, boot: str, *, first_seq: int, step: int = 0) -> None:
        """Start a process of this rank after `step`, with all its counters at zero."""
        self._proto = Heartbeat(
            ts=0.0, mono=0.0, pid=1000 + self.rank, rank=self.rank, boot=boot, seq=0, step=0, msg=""
        )
        self.seq = first_seq - 1
        self.step, self.collective_seq = step, 0
        self.section: str | None = "boot"
        self.section_seq = 1
        self.in_step = False
        self._announced = True
        self.since = self.last_write = self.now
        if self.reporting.own_clock:
            self.offset = 1.0 - self.now

    def say(self, msg: str, **fields: Any) -> None:
        """Write one line, unless the process cannot."""
        reporting, now = self.reporting, self.now
        if self.mute:
            return
        if reporting is not WHOLE:
            if not reporting.tells(msg, self.step, self.rank):
                return
            for name in reporting.fields_left_out:
                fields.pop(name, None)
        self.seq += 1
        if not self.counts:
            fields.pop("collective_seq", None)
        fields["ts"] = self._wall.at(now)
        fields["mono"] = now + self.offset
        fields["seq"], fields["step"], fields["msg"] = self.seq, self.step, msg
        if reporting.sections:
            fields["section"], fields["section_seq"] = self.section, self.section_seq
        self.last_write = now
        self.lines.append((now, like(self._proto, fields)))

    def enter(self, section: str | None) -> None:
        """Enter a section, or leave one (None)."""
        self.section = section
        self.section_seq += 1
        self.since = self.now
        self._announced = section is None or not self.in_step
        if not self.in_step:
            self.say("section", collective_seq=self.collective_seq)

    def spend(self, seconds: float) -> None:
        """Let time pass in the present section; the rank's thread speaks meanwhile."""
        end = self.now + seconds
        while not self.mute and Msg.ALIVE not in self.reporting.messages_left_out:
            due = self.last_write + self.reporting.alive_every_s
            if not self._announced:
                due = min(due, self.since + ANNOUNCE_AFTER_S)
            if due >= end:
                break
            self.now = max(due, self.now)
            announces = not self._announced and self.now >= self.since + ANNOUNCE_AFTER_S
            self._announced = self._announced or announces
            self.say(
                "section" if announces else "alive",
                section_age_s=round(self.now - self.since, 3),
                collective_seq=self.collective_seq,
            )
        self.now = end

    def freeze(self, seconds: float, *, busy: bool = True) -> None:
        """Let time pass while the interpreter stands: no thread speaks."""
        self.stood = Stand(since=self.now, until=self.now + seconds, busy=busy)
        self.now += seconds

    def vanish(self, seconds: float) -> None:
        """Let time pass in which nobody writes and nobody stands: a process that starts."""
        self.now += seconds

    def stands(self, now: float) -> Stand | None:
        """Return what keeps the rank at `now`, where something does."""
        stood = self.stood
        return stood if stood is not None and stood.since <= now <= stood.until else None
