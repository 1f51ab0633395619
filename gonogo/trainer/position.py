"""The position of a rank: its step, its section, and since when. Pure; the clock is an argument.

A step opens as soon as the step before it has ended. An evaluation or a checkpoint between two
steps falls into the open step. Afterwards the step opens again, so the pause belongs to no step.
"""

from dataclasses import dataclass, field

SECTIONS = frozenset(("data", "forward", "backward", "optimizer", "log", "checkpoint", "eval"))
"""Sections that a script may name; `boot` is the library's own."""
COMPUTING = frozenset(("forward", "backward", "optimizer"))
PARTS = COMPUTING | {"data"}
PAUSES = frozenset(("checkpoint", "eval"))


@dataclass(slots=True, kw_only=True)
class Position:
    """The place of one rank. Times are seconds of its monotonic clock."""

    ended: int = 0
    """The last step that has ended; 0 before the first."""
    is_open: bool = False
    """Whether the step after it has begun."""
    began: float = 0.0
    section: str | None = "boot"
    section_seq: int = 0
    since: float = 0.0
    announced: bool = True
    """Whether a line has reported the section, or none needs to."""
    untouched: bool = False
    """Whether the open step has no computing section yet."""
    spent_s: dict[str, float] = field(default_factory=dict)
    """Named section of the open step → its seconds."""
    waited_s: float = 0.0
    """Seconds of the open step spent waiting for other ranks."""

    @property
    def step(self) -> int:
        """The open step, else the last one."""
        return self.ended + self.is_open

    def open_step(self, now: float) -> None:
        """Begin the next step, or restart the open one."""
        self.is_open = self.untouched = True
        self.began = self.since = now
        self.spent_s, self.waited_s = {}, 0.0

    def enter(self, section: str | None, now: float) -> str | None:
        """Move to a section; return the message that is due: section, step_start, or none."""
        left = self.section
        if section == left:
            return None
        self._account(now)
        edge = left in PAUSES or section in PAUSES
        reopens = edge and section not in PAUSES and self.is_open and self.untouched
        if reopens:
            self.open_step(now)
        self.section, self.since = section, now
        self.section_seq += 1
        if section in COMPUTING:
            self.untouched = False
        told = edge or not self.is_open
        self.announced = told or section is None
        if reopens:
            return "step_start"
        return "section" if told else None

    def end_step(self, now: float) -> float:
        """End the open step; return its seconds. The rank is in no section then."""
        self._account(now)
        if self.section is not None:
            self.section, self.since, self.announced = None, now, True
            self.section_seq += 1
        self.ended, self.is_open = self.step, False
        return now - self.began

    def sections_s(self) -> dict[str, float] | None:
        """Return seconds by section of the last step; None if the script named none."""
        if not self.spent_s:
            return None
        return {**self.spent_s, "wait": self.waited_s}

    def age_s(self, now: float) -> float:
        """Return how long the rank has been where it is."""
        return now - self.since

    def _account(self, now: float) -> None:
        section = self.section
        if section in PARTS and section is not None and self.is_open:
            self.spent_s[section] = self.spent_s.get(section, 0.0) + now - self.since
