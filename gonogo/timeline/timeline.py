"""The timeline of a run: one pass from bytes to lines, boots, steps and sections.

`Timeline` reads no clock and no file. It counts what is no heartbeat, drops repeated lines, refuses
lines of earlier boots, and moves each rank's stream on by the lines that remain.

Ticks and lines have active time here: both clocks of a run without the seconds in which it was
suspended. A scheduler, a virtual machine or a closed lid suspends a run together with its watcher.

- The watcher's clock stops for as long as the watcher was away: a tick came more than `SLEPT_S`
  late.
- A rank's own clock stops only if the rank wrote no line in that time. A rank that wrote one was
  awake, and the watcher was away alone.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.contract.order import Order
from gonogo.contract.records import LinesSeen, Tick
from gonogo.timeline.advance import absorb, absorb_late
from gonogo.timeline.lines import Arrival, Line, LineRecord, read_line
from gonogo.timeline.rank import RankStream
from gonogo.timeline.step import Step, Steps

SLEPT_S = 15.0
"""A tick that comes so late shows that the watcher, or its host, was suspended."""
WAKES_S = 15.0
"""A rank and its watcher that are suspended together fall asleep and wake at most so far apart."""
MOST_PENDING = 64
"""Suspensions that are kept for a rank that has not written a line since."""
FIRST_CHARS = 80
"""How much of the first unreadable line is kept."""
Sink = Callable[[int, Heartbeat, Arrival], None]
"""Receives each distinct line: its rank, the line as written, and what it was to the stream."""
Placed = tuple[Heartbeat, Arrival, list[Step]]
"""A line with active time, what it was to the stream, and the steps that it completes."""
_AGAIN = frozenset({Arrival.DUPLICATE, Arrival.CONFLICT})
_STALE, _LATE, _BOOT = Arrival.STALE, Arrival.LATE, Msg.BOOT


@dataclass(slots=True, kw_only=True)
class Unreadable:
    """Lines of one rank's file that are no heartbeat of its own."""

    count: int = 0
    first: str = ""
    """How the first of them begins."""
    since_mono: float = 0.0


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


@dataclass(slots=True, kw_only=True)
class Timeline:
    """What the lines of all ranks have shown so far."""

    clock: ActiveClock = field(default_factory=ActiveClock)
    streams: dict[int, RankStream] = field(default_factory=dict)
    lines: dict[int, LineRecord] = field(default_factory=dict)
    """Rank → its lines as such: duplicates, holes, digests."""
    steps: Steps = field(default_factory=Steps)
    unreadable: dict[int, Unreadable] = field(default_factory=dict)

    def parse(self, rank: int, raw_lines: Sequence[bytes], mono: float) -> list[Line]:
        """Return a rank's heartbeats among lines that were received at `mono`; count the others."""
        parsed: list[Line] = []
        for raw in raw_lines:
            if not raw or raw.isspace():
                continue
            line = read_line(raw, rank)
            if line is None:
                self._count_unreadable(rank, raw, mono)
            else:
                parsed.append(line)
        return parsed

    def _count_unreadable(self, rank: int, raw: bytes, mono: float) -> None:
        found = self.unreadable.get(rank)
        if found is None:
            first = raw[:FIRST_CHARS].decode("utf-8", "replace")
            found = self.unreadable[rank] = Unreadable(first=first, since_mono=mono)
        found.count += 1

    def advance(
        self, order: Order, rank: int, lines: list[Line], tick: Tick, sink: Sink | None = None
    ) -> Iterator[Placed]:
        """Move a rank on by its lines; yield each line that counts, after its stream has moved.

        Args:
            order: names the ranks, and the run and the attempt that boot lines must name.
            lines: in the order in which they were read.
            sink: receives every line that is not a repetition.
        """
        record, stream, mono = self.lines.get(rank), self.streams.get(rank), tick.mono
        if record is None or record.boot is None:
            record = self._begin(order, rank, lines)
        for line in lines:
            beat, arrival = line.beat, record.admit(line)
            if arrival in _AGAIN:
                continue
            if sink is not None:
                sink(rank, beat, arrival)
            if arrival is _STALE:
                continue
            active = self.clock.line(beat, mono)
            steps: list[Step] = []
            stream = stream or RankStream(rank=rank)
            if arrival is _LATE:
                absorb_late(stream, active)
            else:
                stream = self.streams[rank] = absorb(stream, active, mono)
                if beat.msg == _BOOT:
                    self.steps.forget(beat)
            if stream.ready:
                needed = order.world_size if stream.labelled else len(self.streams)
                steps, stream.ready = self.steps.add(stream.ready, needed, tick), []
            yield active, arrival, steps

    def _begin(self, order: Order, rank: int, lines: list[Line]) -> LineRecord:
        """Return the record of a rank that obeys no boot yet; boots in front are refused."""
        new = LineRecord(run=order.run or None, attempt=order.attempt)
        record = self.lines.setdefault(rank, new)
        record.refuse_in_front(lines)
        return record

    def lines_seen(self, ranks: Iterable[int]) -> dict[str, LinesSeen]:
        """Return how far the lines of ranks have been read, for the tick that delivered them."""
        records = {str(rank): self.lines.get(rank) for rank in ranks}
        found = {rank: None if row is None else row.seen() for rank, row in records.items()}
        return {rank: seen for rank, seen in found.items() if seen is not None}
