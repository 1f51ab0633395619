"""Place the lines of a run that no watcher stamped on one clock.

Each process start (boot) of each rank gets one offset. A line's clock is its own monotonic clock
plus that offset. So a wall clock that is set in the middle of a run changes nothing: only the start
of a boot uses it. No line is placed before 0.0, which detectors take for the moment before the run.

Two processes whose wall clocks are ahead of their own clocks by the same share one clock. Ranks of
different hosts are aligned by the ends of the steps that they took together. Otherwise the wall
clocks decide.

Example: rank 1 runs on another host, whose clock reads 5 000 s more at the end of each common
step: its offset is -5 000 s.

Not covered: a wall clock that is wrong, or that is set between two processes of a rank, if no steps
in common show it.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gonogo.contract.heartbeat import Heartbeat, Msg

SAME_CLOCK_S = 5.0
"""Processes whose wall clocks are ahead of their own by the same, give or take this, share one."""
EQUAL_S = 0.01
"""Within this no step is asked. Clocks that count from starts seconds apart differ by more."""
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
        told.least_mono = min(told.least_mono, beat.mono) if told.ahead_s else beat.mono
        if len(told.ahead_s) < FIRST_LINES:
            told.ahead_s.append(told.last_ahead_s)
        if beat.msg == Msg.STEP_END and len(told.ends) < STEPS_KEPT:
            told.ends.setdefault(beat.step, beat.mono)

    def offsets(self) -> dict[Boot, float]:
        """Return boot → seconds to add to its monotonic clock to get the run's."""
        placed: dict[Boot, float] = {}
        for generation in _generations(self._told):
            earlier = list(reversed(placed))
            for boot in _best_first(self._told, generation):
                peers = [peer for peer in generation if peer in placed]
                own = [row for row in earlier if row[0] == boot[0]]
                others = [row for row in earlier if row[0] != boot[0]]
                placed[boot] = self._place(boot, peers, own + others, placed)
        least = min((self._told[boot].least_mono + placed[boot] for boot in placed), default=0.0)
        return {boot: offset - min(least, 0.0) for boot, offset in placed.items()}

    def _place(
        self,
        boot: Boot,
        peers: Sequence[Boot],
        earlier: Sequence[Boot],
        placed: Mapping[Boot, float],
    ) -> float:
        """Return the offset of a boot.

        Args:
            boot: that has none yet.
            peers: boots of other ranks that started with it.
            earlier: boots that started before it, those of its own rank first.
            placed: boot → its offset, of all of these.
        """
        own = self._told[boot]
        ahead_s = {peer: abs(own.first_ahead_s - self._told[peer].first_ahead_s) for peer in peers}
        for peer in peers:
            if ahead_s[peer] <= EQUAL_S:
                return placed[peer]
        for peer in peers:
            ends = self._told[peer].ends
            apart = [ends[step] - mono for step, mono in own.ends.items() if step in ends]
            if len(apart) >= STEPS_NEEDED:
                return placed[peer] + statistics.median(apart)
        since_s = {row: own.first_ahead_s - self._told[row].last_ahead_s for row in earlier}
        ahead_s |= {row: abs(seconds) for row, seconds in since_s.items()}
        for row in (*peers, *earlier):
            if ahead_s[row] <= SAME_CLOCK_S:
                return placed[row]
        if peers:
            return placed[peers[0]] + own.first_ahead_s - self._told[peers[0]].first_ahead_s
        return placed[earlier[0]] + since_s[earlier[0]] if earlier else 0.0


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
