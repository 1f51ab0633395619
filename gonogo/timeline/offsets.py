"""When was a line written, on one clock of the whole run? For lines that no watcher stamped.

Each process start (boot) of each rank gets one offset, fitted once; a line's clock is its own
monotonic clock plus that. So a wall clock that steps in mid-run moves nothing: it is asked only at
the start of a boot, whether two processes share a monotonic clock, and where nothing else can tell
(a boot that has no step in common with any other). Ranks of different hosts are laid over each
other by the ends of the steps that they took together.

Of a restart's two places, on the earlier process's clock or by a wall clock that may have been set
meanwhile, it gets the one that leaves the shorter gap: no deadline is missed by a doubt.

No line is placed before 0.0, which detectors hold for the moment before anything happened: where a
rank's own clock counts from below zero, all offsets are larger by as much.

Example: rank 1 runs on another host, whose clock reads 5 000 s more at the end of each common
step: its offset is -5 000 s.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gonogo.contract.heartbeat import Heartbeat, Msg

SAME_CLOCK_S = 5.0
"""Two processes whose wall clocks are ahead of their own by the same, but for so much, share it."""
SOON_S = 900.0
"""Where the wall clock says that a process started before the earlier one's last line, both share
their own clock if that says that it was so soon after it."""
EQUAL_S = 0.01
"""Within so much nobody need ask the steps. Processes that count from their own starts, seconds
apart, are further from each other than that."""
FIRST_LINES = 16
STEPS_KEPT = 256
STEPS_NEEDED = 3

Boot = tuple[int, str]
"""Rank and id of one process start."""


@dataclass(slots=True)
class _Told:
    """What one boot's lines tell of its clock."""

    ahead_s: list[float] = field(default_factory=list)
    """By how much the wall clock was ahead of its own, on its first lines."""
    last_ahead_s: float = 0.0
    first_mono: float = 0.0
    last_mono: float = 0.0
    least_mono: float = 0.0
    ends: dict[int, float] = field(default_factory=dict)
    """Step → its own clock at the end, of the first steps."""

    @property
    def first_ahead_s(self) -> float:
        return statistics.median(self.ahead_s)


class Clocks:
    """Collects lines in any order of ranks, each rank's in its own, then fits offsets.

    Memory does not grow with the number of lines.
    """

    def __init__(self) -> None:
        self._told: dict[Boot, _Told] = {}

    def add(self, beat: Heartbeat) -> None:
        """Take one line into account."""
        told = self._told.setdefault((beat.rank, beat.boot), _Told())
        told.last_ahead_s = beat.ts - beat.mono
        told.first_mono = told.first_mono if told.ahead_s else beat.mono
        told.last_mono = max(told.last_mono, beat.mono)
        told.least_mono = min(told.least_mono, beat.mono) if told.ahead_s else beat.mono
        if len(told.ahead_s) < FIRST_LINES:
            told.ahead_s.append(told.last_ahead_s)
        if beat.msg == Msg.STEP_END and len(told.ends) < STEPS_KEPT:
            told.ends.setdefault(beat.step, beat.mono)

    def offsets(self) -> dict[Boot, float]:
        """Return boot → seconds to add to its monotonic clock to get the run's."""
        sure: dict[Boot, float] = {}
        self._place(sure)  # what a rank's later process tells is known then
        placed = self._place(sure)
        least = min((self._told[boot].least_mono + placed[boot] for boot in placed), default=0.0)
        return {boot: offset - min(least, 0.0) for boot, offset in placed.items()}

    def _place(self, sure: dict[Boot, float]) -> dict[Boot, float]:
        """Return all offsets; `sure` gets those that clocks or steps in common tell."""
        placed: dict[Boot, float] = {}
        before: dict[Boot, float] = {}
        for generation in _generations(self._told):
            for boot in _best_first(self._told, generation):
                peers = [peer for peer in generation if peer in placed]
                offset = self._of_peers(boot, peers, placed)
                if offset is not None:
                    sure[boot] = offset
                elif peers:
                    offset = self._of_itself(boot, {**sure, **before})
                if offset is None:
                    offset = self._of_start(boot, peers, placed)
                if offset is None:
                    offset = self._of_earlier(boot, before)
                placed[boot] = 0.0 if offset is None else offset
            before = dict(placed)
        return placed

    def _of_peers(
        self, boot: Boot, peers: Sequence[Boot], placed: Mapping[Boot, float]
    ) -> float | None:
        """Return the offset by a peer that is placed: one that shares a clock, or steps."""
        own = self._told[boot]
        ahead_s = {p: abs(own.first_ahead_s - self._told[p].first_ahead_s) for p in peers}
        for peer in peers:
            if ahead_s[peer] <= EQUAL_S:
                return placed[peer]
        for peer in peers:
            ends = self._told[peer].ends
            apart = [ends[step] - mono for step, mono in own.ends.items() if step in ends]
            if len(apart) >= STEPS_NEEDED:
                return placed[peer] + statistics.median(apart)
        for peer in peers:
            if ahead_s[peer] <= SAME_CLOCK_S:
                return placed[peer]
        return None

    def _of_itself(self, boot: Boot, before: dict[Boot, float]) -> float | None:
        """Return the offset by another process of this rank, whose clock it shares."""
        own = self._told[boot]
        for row in reversed(before):
            told = self._told[row]
            after_s = abs(own.first_ahead_s - told.last_ahead_s)
            apart_s = min(after_s, abs(told.first_ahead_s - own.last_ahead_s))
            if row[0] == boot[0] and row != boot and apart_s <= SAME_CLOCK_S:
                return before[row]
        return None

    def _of_start(
        self, boot: Boot, peers: Sequence[Boot], placed: Mapping[Boot, float]
    ) -> float | None:
        """Return the offset by when a peer started: together, by a clock that they share or not."""
        if not peers:
            return None
        own, peer = self._told[boot], self._told[peers[0]]
        stepped_s = own.first_ahead_s - peer.first_ahead_s
        apart_s = own.first_mono - peer.first_mono
        together = abs(apart_s) <= abs(apart_s + stepped_s)  # then a wall clock is wrong
        return placed[peers[0]] + (0.0 if together else stepped_s)

    def _of_earlier(self, boot: Boot, before: dict[Boot, float]) -> float | None:
        """Return the offset by earlier boots: this rank's first, the latest of them first."""
        own = self._told[boot]
        earlier = sorted(reversed(before), key=lambda row: row[0] != boot[0])
        for row in earlier:
            if abs(own.first_ahead_s - self._told[row].last_ahead_s) <= SAME_CLOCK_S:
                return before[row]
        if not earlier:
            return None
        last = self._told[earlier[0]]
        stepped_s = own.first_ahead_s - last.last_ahead_s
        gap_s = own.first_mono - last.last_mono
        by_wall_s = gap_s + stepped_s
        if 0.0 <= gap_s <= (by_wall_s if by_wall_s >= 0.0 else SOON_S):
            return before[earlier[0]]  # the wall clock was set meanwhile: nobody waited for so long
        return before[earlier[0]] + stepped_s


def fit_clocks(beats: Iterable[Heartbeat]) -> dict[Boot, float]:
    """Return boot → offset of all lines; see `Clocks`."""
    clocks = Clocks()
    for beat in beats:
        clocks.add(beat)
    return clocks.offsets()


def _generations(told: Mapping[Boot, _Told]) -> list[list[Boot]]:
    """Return the boots by how many each rank had had before: first starts, then restarts."""
    found: list[list[Boot]] = []
    count: dict[int, int] = {}
    for boot in told:
        number = count.get(boot[0], 0)
        count[boot[0]] = number + 1
        if number == len(found):
            found.append([])
        found[number].append(boot)
    return found


def _best_first(told: Mapping[Boot, _Told], boots: Iterable[Boot]) -> list[Boot]:
    """Return boots with the one that ended the most steps first: the others are laid over it."""
    return sorted(boots, key=lambda boot: (-len(told[boot].ends), boot))
