"""D18: the lines themselves are sound.

Lost, unreadable, repeated and outdated lines are counted and reported once (info). A wall clock
that is off, and stays so, warns. A step that runs backwards without a restart halts, because two
processes write one stream. A line counts as lost when `HOLE_LINES` further lines came, or the rank
is done.
"""

from dataclasses import dataclass, field, replace

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Msg
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import Tick
from gonogo.timeline.boots import LineRecord
from gonogo.timeline.lines import Arrival
from gonogo.timeline.rank import RankStream
from gonogo.timeline.timeline import Unreadable
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.view import Beat, View, found

HOLE_LINES = 64
UNREADABLE_AFTER_S = 2.0
UNREADABLE_LINES = 3
"""A rank that writes so many lines that are no heartbeats, or nothing else, is named: a warning,
once they have been counted for `UNREADABLE_AFTER_S`."""
OFF_LASTS_S = 4.0
OFF_LINES = 20
"""A wall clock is off that has been for so long, in so many lines running, and by more than they
differ among themselves: a line that was written before the host's clock was set, and read after it,
is off by as much, and the next one is not; and where lines can be read every 20 s only, each looks
as old as it waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """Lines of one process running whose wall clock differs from the watcher's."""

    boot: str
    since_mono: float
    """The watcher's clock when the first of them came."""
    lines: int
    least_s: float
    most_s: float
    """By how much they differ, the lowest and the highest; seconds, below 0 where behind."""

    def lasts(self, mono: float) -> bool:
        """Whether it has been so for long, at `mono`."""
        return mono - self.since_mono >= OFF_LASTS_S and self.lines >= OFF_LINES

    def sure(self, limit_s: float) -> bool:
        """Whether it is the clock that is off, rather than lines that waited."""
        nearest_s = min(abs(self.least_s), abs(self.most_s))
        return nearest_s - (self.most_s - self.least_s) > limit_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Skews:
    """Whose wall clock is off."""

    of: dict[int, Skew] = field(default_factory=dict)
    """By rank."""


def _count_findings(view: View, tick: Tick, rank: int, record: LineRecord) -> list[Finding]:
    stream, lines = view.streams.get(rank), record.now
    below = None if stream is not None and stream.done else lines.top - HOLE_LINES
    counted = {
        "lost": lines.gaps(below) if lines.missing else 0,
        "of an earlier boot": record.stale,
    }
    episode = f"rank{rank}/{record.boot}"
    return [
        _counted(view, tick, rank, f"{episode}/{what.replace(' ', '_')}", count, what)
        for what, count in counted.items()
        if count
    ]


def _unreadable(view: View, tick: Tick, rank: int, unreadable: Unreadable) -> Finding:
    """Name a rank whose lines are no heartbeats: how many, and how the first of them begins."""
    return found(
        view,
        Name.HYGIENE,
        Severity.WARN,
        episode=f"rank{rank}/unreadable",
        at=tick.ts,
        rank=rank,
        value=float(unreadable.count),
        threshold=0.0,
        text=f"rank {rank}: {unreadable.count} line(s) are no heartbeats of this rank;"
        f" the first begins {unreadable.first!r}",
    )


def _two_writers(view: View, tick: Tick, rank: int, record: LineRecord) -> Finding:
    return found(
        view,
        Name.HYGIENE,
        Severity.HALT,
        episode=f"rank{rank}/two_writers",
        at=tick.ts,
        rank=rank,
        value=float(record.conflicts),
        threshold=0.0,
        text=f"rank {rank}: two different lines have the same boot and seq, so two processes"
        " write its heartbeats",
    )


def _counted(view: View, tick: Tick, rank: int, episode: str, count: int, what: str) -> Finding:
    return found(
        view,
        Name.HYGIENE,
        Severity.INFO,
        episode=episode,
        at=tick.ts,
        rank=rank,
        value=float(count),
        threshold=0.0,
        text=f"rank {rank}: {count} line(s) {what}",
    )


def _backwards(view: View, tick: Tick, stream: RankStream) -> Finding:
    return found(
        view,
        Name.HYGIENE,
        Severity.HALT,
        episode=f"rank{stream.rank}/{stream.boot}/backwards",
        at=tick.ts,
        stream=stream,
        value=None if stream.backwards is None else float(stream.backwards),
        threshold=float(stream.step),
        text=f"rank {stream.rank} went back from step {stream.step} to {stream.backwards}"
        " without a restart",
    )


def _looked(own: Skews, view: View, event: Beat) -> tuple[Skews, float | None]:
    """Return by how much a rank's wall clock disagrees with the watcher's, once it lasts.

    Both by receipt (a line that waited to be read is old, not wrong) and by the monotonic clock
    that processes of one host share (ranks elsewhere have another one): only together they tell.
    """
    line, tick = event.line, event.tick
    limit_s = view.run.watch.hygiene.skew_s
    if not view.watched or tick.late_s > limit_s or event.arrival is Arrival.LATE:
        return own, None
    skew_s = line.ts - tick.ts
    ahead_s = (line.ts - line.mono) - (tick.ts - tick.mono) + view.clock.apart_s(line.rank)
    if abs(skew_s) <= limit_s or abs(ahead_s) <= limit_s:
        if line.rank in own.of:
            own = replace(own, of={k: v for k, v in own.of.items() if k != line.rank})
        return own, None
    skew = _grown(own.of.get(line.rank), line.boot, tick.mono, skew_s)
    off = skew.lasts(tick.mono)
    if off and not skew.sure(limit_s):
        skew, off = _grown(None, line.boot, tick.mono, skew_s), False
    return replace(own, of={**own.of, line.rank: skew}), skew_s if off else None


def _grown(skew: Skew | None, boot: str, mono: float, skew_s: float) -> Skew:
    """Return what is known after one more line; of another process it begins anew."""
    if skew is None or skew.boot != boot:
        return Skew(boot=boot, since_mono=mono, lines=1, least_s=skew_s, most_s=skew_s)
    least_s, most_s = min(skew.least_s, skew_s), max(skew.most_s, skew_s)
    return replace(skew, lines=skew.lines + 1, least_s=least_s, most_s=most_s)


def _clock_findings(view: View, event: Beat, skew_s: float) -> list[Finding]:
    line, tick = event.line, event.tick
    limit_s = view.run.watch.hygiene.skew_s
    return [
        found(
            view,
            Name.HYGIENE,
            Severity.WARN,
            episode=f"rank{line.rank}/{line.boot}/skew",
            at=tick.ts,
            rank=line.rank,
            step=line.step,
            value=skew_s,
            threshold=limit_s,
            source=view.run.source("hygiene.skew_s"),
            text=f"rank {line.rank}'s wall clock is off by {skew_s:.1f} s (limit {limit_s:g} s)",
        )
    ]


class Hygiene(Detector[Skews]):
    """D18 (module docstring)."""

    name = Name.HYGIENE
    sentence = (
        "Counts lost, unreadable and outdated lines, warns of clocks that stay wrong, and halts "
        "when a step runs backwards without a restart or two different lines claim the "
        "same place: then two processes write one stream."
    )
    lines = frozenset({Msg.BOOT, Msg.STEP_START, Msg.ALIVE, Msg.SECTION})
    State = Skews
    ticks = True

    def observe_line(self, own: Skews, beat: Beat, view: View) -> Seen[Skews]:
        """Observe a line's clock."""
        near = abs(beat.line.ts - beat.tick.ts) <= self.settings.skew_s
        if near and beat.line.rank not in own.of:
            return own, []
        own, skew_s = _looked(own, view, beat)
        return own, [] if skew_s is None else _clock_findings(view, beat, skew_s)

    def observe_tick(self, own: Skews, tick: Tick, view: View) -> Seen[Skews]:
        """Observe what was counted so far."""
        findings = []
        for rank, record in view.lines.items():
            stream = view.streams.get(rank)
            if stream is not None and stream.backwards is not None:
                findings.append(_backwards(view, tick, stream))
            if record.conflicts:
                findings.append(_two_writers(view, tick, rank, record))
            if record.stale or record.now.missing:
                findings += _count_findings(view, tick, rank, record)
        for rank, unreadable in view.unreadable.items():
            count = unreadable.count
            findings.append(
                _counted(view, tick, rank, f"rank{rank}/unreadable", count, "unreadable")
            )
            many = count >= UNREADABLE_LINES or rank not in view.streams
            if many and tick.mono - unreadable.since_mono >= UNREADABLE_AFTER_S:
                findings.append(_unreadable(view, tick, rank, unreadable))
        return own, findings

    def armed(self, own: Skews, view: View) -> bool:
        """Whether any line has come."""
        return bool(view.streams)
