"""The timeline of a run: one pass from bytes to lines, boots, steps and sections.

`Timeline` has no clock and no file. It counts what is no heartbeat, drops repeated lines, refuses
lines of earlier boots, and moves each rank's stream on by the lines that remain.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gonogo.contract.errors import Corrupt
from gonogo.contract.heartbeat import Heartbeat, Msg, parse_heartbeat
from gonogo.contract.order import Order
from gonogo.contract.tick import LinesSeen, Tick
from gonogo.timeline.advance import absorb, absorb_late
from gonogo.timeline.clock import ActiveClock
from gonogo.timeline.lines import Arrival, Line, LineRecord, by_seq, digest_of
from gonogo.timeline.rank import RankStream
from gonogo.timeline.step import Step, Steps

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
        self, order: Order, rank: int, lines: list[Line], tick: Tick, sink: Sink | None = None
    ) -> Iterator[Placed]:
        """Move a rank on by its lines; yield each line that counts, after its stream has moved.

        Args:
            order: names the ranks, and the run and the attempt that boot lines must name.
            rank: whose lines these are.
            lines: in any order.
            tick: that brought them, with active time.
            sink: receives every line that is not a repetition.
        """
        if len(lines) > 1:
            lines = by_seq(lines)
        record = self.lines.get(rank)
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
            active = self.clock.line(beat, tick.mono)
            stream = self.streams.get(rank) or RankStream(rank=rank)
            if arrival is _LATE:
                absorb_late(stream, active)
            else:
                stream = self.streams[rank] = absorb(stream, active, tick.mono)
                if beat.msg == _BOOT:
                    self.steps.forget(beat)
            steps: list[Step] = []
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

    def lines_seen(self, rank: int) -> LinesSeen | None:
        """Return how far a rank's lines have been read; None before any line."""
        record = self.lines.get(rank)
        return None if record is None else record.seen()
