"""The timeline of a run: one pass from bytes to lines, boots, steps and sections.

`Timeline` has no clock and no file. It counts what is no heartbeat, drops repeated lines, refuses
lines of earlier boots, and moves each rank's stream on by the lines that remain.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gonogo.contract.errors import Corrupt
from gonogo.contract.heartbeat import Heartbeat, parse_heartbeat
from gonogo.contract.order import Order
from gonogo.contract.tick import LinesSeen
from gonogo.timeline.advance import absorb
from gonogo.timeline.boots import LineRecord, boots_in_front, by_seq
from gonogo.timeline.clock import ActiveClock
from gonogo.timeline.lines import Arrival, Line, digest_of
from gonogo.timeline.rank import RankStream
from gonogo.timeline.steps import Steps

FIRST_CHARS = 80
"""How much of the first unreadable line is kept."""
Sink = Callable[[int, Heartbeat, Arrival], None]
"""Receives each distinct line: its rank, the line as written, and what it was to the stream."""
Placed = tuple[Heartbeat, Arrival, RankStream]
"""A line with active time, what it was to the stream, and the stream after it."""
_AGAIN, _STALE = frozenset({Arrival.DUPLICATE, Arrival.CONFLICT}), Arrival.STALE


@dataclass(slots=True, kw_only=True)
class Unreadable:
    """Lines of one rank's file that are no heartbeat of its own."""

    count: int = 0
    first: str = ""
    """How the first of them begins."""
    since_mono: float = 0.0


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
            try:
                beat = parse_heartbeat(raw)
            except Corrupt:
                self._count_unreadable(rank, raw, mono)
                continue
            if beat.rank == rank:
                parsed.append(Line(beat, digest_of(raw)))
            else:
                self._count_unreadable(rank, raw, mono)
        return parsed

    def _count_unreadable(self, rank: int, raw: bytes, mono: float) -> None:
        found = self.unreadable.get(rank)
        if found is None:
            first = raw[:FIRST_CHARS].decode("utf-8", "replace")
            found = self.unreadable[rank] = Unreadable(first=first, since_mono=mono)
        found.count += 1

    def advance(
        self,
        order: Order,
        rank: int,
        lines: list[Line],
        mono: float,
        sink: Sink | None = None,
    ) -> Iterator[Placed]:
        """Move a rank on by its lines; yield each line that counts, after its stream has moved.

        Args:
            order: names the run and the attempt that boot lines must name.
            rank: whose lines these are.
            lines: in any order.
            mono: when they were received, in active time of the watcher.
            sink: receives every line that is not a repetition.
        """
        if len(lines) > 1:
            lines = by_seq(lines)
        record = self.lines.get(rank)
        if record is None:
            record = self.lines[rank] = LineRecord(run=order.run or None, attempt=order.attempt)
        if record.boot is None:
            for boot in boots_in_front(lines):
                record.refuse(boot)
        for line in lines:
            beat, arrival = line.beat, record.admit(line)
            if arrival in _AGAIN:
                continue
            if sink is not None:
                sink(rank, beat, arrival)
            if arrival is _STALE:
                continue
            active = self.clock.line(beat, mono)
            stream = self.streams.get(rank) or RankStream(rank=rank)
            stream = self.streams[rank] = absorb(stream, active, mono, arrival)
            yield active, arrival, stream

    def lines_seen(self, rank: int) -> LinesSeen | None:
        """Return how far a rank's lines have been read; None before any line."""
        record = self.lines.get(rank)
        return None if record is None else record.seen()
