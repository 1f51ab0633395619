"""Active time: both clocks of a run without the seconds in which it was suspended.

A scheduler, a virtual machine or a closed lid suspends a run together with its watcher. The clock
subtracts that time once, where ticks and lines enter the fold. Detectors see active seconds only.

- The watcher's clock stops for as long as the watcher was away: a tick came more than `SLEPT_S`
  late.
- A rank's own clock stops only if the rank wrote no line in that time. A rank that wrote one was
  awake, and the watcher was away alone.
"""

from dataclasses import dataclass, field

from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.tick import Tick

SLEPT_S = 15.0
"""A tick that comes so late shows that the watcher, or its host, was suspended."""
WAKES_S = 15.0
"""A rank and its watcher that are suspended together fall asleep and wake at most so far apart."""
MOST_PENDING = 64
"""Suspensions that are kept for a rank that has not written a line since."""


@dataclass(slots=True, kw_only=True)
class RankClock:
    """The own monotonic clock of one process of a rank."""

    boot: str
    last: float
    """The clock on the last line."""
    ahead_s: float
    """How far it is ahead of the watcher's clock."""
    suspended_s: float = 0.0
    pending: tuple[tuple[float, float], ...] = ()
    """Absences of the watcher since the last line: the end on this clock, and the seconds."""

    def wake(self, own: float) -> None:
        """Subtract the absences in which the rank was suspended, at a line written at `own`."""
        gap_s = own - self.last
        for back, seconds in self.pending:
            spans = self.last <= back - seconds + WAKES_S and back <= own + WAKES_S
            if spans and gap_s > seconds - WAKES_S:
                self.suspended_s += min(gap_s, seconds)
                gap_s -= min(gap_s, seconds)
        self.pending = tuple(row for row in self.pending if row[0] > own + WAKES_S)


@dataclass(slots=True, kw_only=True)
class ActiveClock:
    """The active time of a run, for the watcher and for each rank."""

    away_s: float = 0.0
    """Seconds in which the watcher was away, or all ranks were silent at once."""
    ranks: dict[int, RankClock] = field(default_factory=dict)

    def at(self, mono: float) -> float:
        """Return the active time at a reading of the watcher's clock."""
        return mono - self.away_s

    def advance(self, tick: Tick) -> Tick:
        """Move on to a tick; return the tick with active time."""
        if tick.late_s > SLEPT_S:
            self.away_s += tick.late_s
            for clock in self.ranks.values():
                row = (tick.mono + clock.ahead_s, tick.late_s)
                clock.pending = (*clock.pending[1 - MOST_PENDING :], row)
        return self.active(tick) if self.away_s else tick

    def active(self, tick: Tick) -> Tick:
        """Return a tick with active time."""
        if not self.away_s:
            return tick
        return tick.model_copy(update={"mono": tick.mono - self.away_s})

    def line(self, beat: Heartbeat, mono: float) -> Heartbeat:
        """Return a line, received at `mono` in active time, with the active time of its rank."""
        own = beat.mono
        ahead_s = own - mono - self.away_s
        clock = self.ranks.get(beat.rank)
        if clock is None or clock.boot != beat.boot:
            self.ranks[beat.rank] = RankClock(boot=beat.boot, last=own, ahead_s=ahead_s)
            return beat
        if clock.pending:
            clock.wake(own)
        if own > clock.last:
            clock.last = own
        if ahead_s > clock.ahead_s - WAKES_S:  # a line that waited to be read says nothing
            clock.ahead_s = ahead_s
        if not clock.suspended_s:
            return beat
        return beat.model_copy(update={"mono": own - clock.suspended_s})

    def apart_s(self, rank: int) -> float:
        """Return how much longer the watcher was away than the rank was suspended."""
        clock = self.ranks.get(rank)
        return self.away_s - (0.0 if clock is None else clock.suspended_s)
