"""What does a watcher make of simulated lines? Ticks, now and then late, folded as live ones are.

Lines arrive at the first tick after they were written. A tick that brings nothing changes nothing
unless a deadline has passed, and no deadline is shorter than seconds: of such ticks every second
one or so is folded.
"""

import math
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gonogo.contract.finding import Finding, Near, Severity
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.order import Order
from gonogo.contract.records import ProcessState, RankProbe, StackProbe, Tick
from gonogo.timeline.lines import Line
from gonogo.watch.fold import fold_beats, near, start
from lab.noise import Noise
from lab.ranks import Stand, Wall, like

IDLE_TICK_S = 2.0
ROUNDING_S = 1e-6
"""Beyond what a sum of times is rounded by."""
SECOND_ROUND_S = 6.0
UNHEARD_ROUNDS_S = 20.0
"""Pause between two readings of stacks when no rank is heard."""
BLOCKS_APART = 0.37
"""Shares of a block by which one rank's begin after those of the rank before."""
NODE_SILENT_S = 10.0
"""After which the watcher knows nothing of the processes of a node that it does not hear."""
NODE_CUT_SHARE = 0.7
"""Cuts that are of one node, where there are several."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Ranks whose lines do not come."""

    since: float = 0.0
    until: float = 0.0
    ranks: frozenset[int] = frozenset()
    node: bool = False
    """Whether they are a node's, so that their processes are unknown, too."""

    def off(self, rank: int, now: float) -> bool:
        """Whether nothing comes from a rank at `now`."""
        return self.since <= now < self.until and rank in self.ranks

    def unknown(self, rank: int, now: float) -> bool:
        """Whether nothing is known of its process."""
        return self.node and self.off(rank, now)


def cut_at(
    now: float, order: Order, ranks: Sequence[int], noise: Noise, dice: random.Random
) -> Cut:
    """Return a cut that begins now: of a node but the watcher's own, or of all ranks."""
    seconds = dice.uniform(*noise.cut_s)
    if dice.random() < noise.long_cut_share:
        seconds = dice.uniform(noise.cut_s[1], noise.long_cut_s)
    node = order.nodes > 1 and dice.random() < NODE_CUT_SHARE
    off = [rank for rank in ranks if not node or order.node_of(rank)]
    return Cut(since=now, until=now + seconds, ranks=frozenset(off), node=node)


class Writer(Protocol):
    """A rank whose lines the watcher reads."""

    @property
    def rank(self) -> int:
        """Its number."""

    @property
    def lines(self) -> list[tuple[float, Heartbeat]]:
        """When each line is written, in order; what was read is taken off."""

    def stands(self, now: float) -> Stand | None:
        """Return what keeps its main thread at `now`, where something does."""


class Watcher:
    """Looks at ranks while their time passes, and keeps what it found."""

    def __init__(
        self,
        order: Order,
        ranks: Sequence[Writer],
        *,
        noise: Noise,
        wall: Wall,
        dice: random.Random,
        now: float,
        lag_s: float = 0.0,
        lag_from: int = 0,
    ) -> None:
        self._lag_s, self._lag_from = lag_s, lag_from
        """Lines are read in blocks of so many seconds, of the ranks from this one on."""
        self._ranks, self._noise, self._dice, self._wall = ranks, noise, dice, wall
        self._order, self._cut = order, Cut()
        self._interval_s = dice.choice((0.2, 0.25, 0.5, 1.0))
        self._proto = Tick(n=0, mono=0.0, ts=0.0, interval_s=self._interval_s)
        self._n = 0
        self._now = self._folded = now
        self._state = start(order)
        self._next_late_s = 0.0
        """By how much the next tick comes late."""
        self._probes: list[tuple[float, RankProbe]] = []
        self._rounds: list[float] = []
        """When stacks are to be read."""
        self._heard = self._read = now
        """When lines came last, and when stacks were read."""
        self.findings: list[Finding] = []
        self.found_mono: list[float] = []
        """Clock at each of them; the wall clock may have been set since the onset."""
        self.lines = 0

    def probe(self, now: float, rank: int, state: ProcessState, **fields: Any) -> None:
        """From `now` on a rank's process is found like this."""
        row = RankProbe(rank=rank, pid=1000 + rank, state=state, **fields)
        at = _read_at(self._cut, now if row.code is None else self._readable(rank, now), row)
        self._probes = sorted([*self._probes, (at, row)], key=lambda entry: entry[0])

    @property
    def halted(self) -> bool:
        """Whether a halt was found."""
        return any(finding.severity is Severity.HALT for finding in self.findings)

    def near(self) -> dict[str, Near]:
        """Return how near each detector is to its limit now."""
        return near(self._state, self._now)

    def look_until(self, end: float) -> None:
        """Tick until `end`, the time up to which every rank's lines are known."""
        interval_s, roll = self._interval_s, self._dice.random
        noise = self._noise
        most = max(noise.asleep_rate, noise.late_tick_rate) + noise.cut_rate
        due = self._due()
        while self._now + interval_s + self._next_late_s <= end:
            late_s = self._next_late_s
            self._now += interval_s + late_s
            self._n += 1
            if late_s or self._now >= due:
                self._look(late_s)
                due = self._due()
            chance = roll() * 3600.0 / interval_s
            self._next_late_s = self._late_s(chance) if chance < most else 0.0

    def _due(self) -> float:
        """Return the time before which a tick that comes in time has nothing to do."""
        times = [self._folded + IDLE_TICK_S - ROUNDING_S]
        times += [self._readable(rank.rank, rank.lines[0][0]) for rank in self._ranks if rank.lines]
        if self._probes:
            times.append(self._probes[0][0])
        if self._rounds:
            times.append(self._rounds[0])
        return min(times)

    def _late_s(self, chance: float) -> float:
        """Return by how much the next tick comes late, mostly nothing."""
        noise, dice = self._noise, self._dice
        if chance < noise.asleep_rate:
            return dice.uniform(16.0, noise.asleep_s)
        if chance < noise.late_tick_rate:
            return dice.uniform(*noise.late_tick_s)
        if self._now >= self._cut.until and self._state.view.streams:
            self._cut_off()
        return 0.0

    def _cut_off(self) -> None:
        """From now on the lines of some ranks do not come; of a node, nor do their probes."""
        numbers = [rank.rank for rank in self._ranks]
        cut = cut_at(self._now, self._order, numbers, self._noise, self._dice)
        later = [(_read_at(cut, at, row), row) for at, row in self._probes]
        self._cut, self._probes = cut, []
        if cut.node:
            for rank in sorted(cut.ranks):
                self.probe(cut.until, rank, ProcessState.ALIVE)
            self._probes += [
                (cut.since + NODE_SILENT_S, RankProbe(rank=rank)) for rank in sorted(cut.ranks)
            ]
        self._probes = sorted([*self._probes, *later], key=lambda entry: entry[0])

    def _look(self, late_s: float) -> None:
        now = self._now
        beats = self._arrived(now)
        probes = self._probed(now)
        if not (beats or probes or late_s or now - self._folded >= IDLE_TICK_S):
            return
        self._folded = now
        fields = {"n": self._n, "mono": now, "ts": self._wall.at(now), "late_s": late_s, **probes}
        tick = like(self._proto, fields)
        self._state, found = fold_beats(self._state, tick, _as_lines(beats))
        if found:
            self.findings += found
            self.found_mono += [now] * len(found)
            if any(finding.severity is Severity.SUSPECT for finding in found):
                self._rounds = self._rounds or [now, now + SECOND_ROUND_S]
        if beats:
            self._heard = now
        elif not self._rounds and now - max(self._heard, self._read) >= UNHEARD_ROUNDS_S:
            self._rounds = [now + IDLE_TICK_S]

    def _arrived(self, now: float) -> dict[int, list[Heartbeat]]:
        """Return the lines that this tick brings."""
        beats: dict[int, list[Heartbeat]] = {}
        for rank in self._ranks:
            lines = rank.lines
            if self._cut.off(rank.rank, now):
                continue
            if not lines or lines[0][0] > now:
                continue
            until = self._written_by(rank.rank, now)
            count = 0
            for written, _ in lines:
                if written > until:
                    break
                count += 1
            if not count:
                continue
            beats[rank.rank] = [beat for _, beat in lines[:count]]
            del lines[:count]
            self.lines += count
        return beats

    def _written_by(self, rank: int, now: float) -> float:
        """Return up to when what a rank wrote can be read; blocks of ranks begin apart."""
        if not self._lag_s or rank < self._lag_from:
            return now
        return now - (now - rank * BLOCKS_APART * self._lag_s) % self._lag_s

    def _readable(self, rank: int, written: float) -> float:
        """Return when a line can be read that a rank writes then."""
        if not self._lag_s or rank < self._lag_from:
            return written
        began = rank * BLOCKS_APART * self._lag_s
        return began + math.ceil((written - began) / self._lag_s) * self._lag_s

    def _probed(self, now: float) -> dict[str, Any]:
        """Return what probes see at this tick: processes that changed, stacks where suspect."""
        fields: dict[str, Any] = {}
        rows: list[RankProbe] = []
        while self._probes and self._probes[0][0] <= now:
            rows.append(self._probes.pop(0)[1])
        if rows:
            fields["ranks"] = rows
        if self._rounds and self._rounds[0] <= now:
            self._rounds.pop(0)
            fields["stacks"], self._read = self._stacks(now), now
        return fields

    def _stacks(self, now: float) -> list[StackProbe]:
        """Return where every rank stands: if one hangs, its peers wait for it."""
        known = [rank for rank in self._ranks if not self._cut.unknown(rank.rank, now)]
        standing = {rank.rank: rank.stands(now) for rank in known}
        if not any(standing.values()):
            return [StackProbe(rank=rank, digest="busy", cpu_s=now) for rank in standing]
        probes = []
        for rank, stand in standing.items():
            if stand is None:
                fields = {"digest": "waits", "waiting": True, "cpu_s": now}
            else:
                cpu_s, digest = now if stand.busy else 0.0, f"stands/{stand.since}"
                fields = {"digest": digest, "waiting": False, "cpu_s": cpu_s}
            probes.append(StackProbe(rank=rank, **fields))
        return probes


def _read_at(cut: Cut, at: float, row: RankProbe) -> float:
    """Return when it is read what was so at `at`; an exit's record comes after its lines."""
    late = cut.unknown(row.rank, at) or (row.code is not None and cut.off(row.rank, at))
    return cut.until if late else at


def _as_lines(beats: Mapping[int, list[Heartbeat]]) -> dict[int, list[Line]]:
    """Return the lines with what stands for their digest: two of one moment are the same line."""
    pack = struct.Struct("dd").pack
    return {
        rank: [Line(beat, pack(beat.ts, beat.mono)) for beat in rows]
        for rank, rows in beats.items()
    }
