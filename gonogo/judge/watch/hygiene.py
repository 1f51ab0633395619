"""D18: are the lines themselves sound?

Lost, unreadable, repeated and outdated lines are counted and told once (info); a wall clock that
is off warns; a step that runs backwards without a restart halts, for then two things write one
stream. A hole counts as lost when `HOLE_LINES` further lines came, or the rank is done: until then
the line may be on its way.
"""

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.outcome import Detector
from gonogo.contract.tick import Tick
from gonogo.judge.watch.stream import RankStream
from gonogo.judge.watch.view import Beat, Event, View, found

HOLE_LINES = 64


def observe(own: None, event: Event, view: View) -> tuple[None, list[Finding]]:
    """Observe a line (its clock and step) or a tick (what was counted)."""
    if isinstance(event, Beat):
        return own, _clock_findings(view, event)
    findings = []
    for stream in view.streams.values():
        if stream.backwards is not None:
            findings.append(_backwards(view, event, stream))
        findings += _count_findings(view, event, stream)
    findings += [
        _counted(view, event, rank, f"rank{rank}/unreadable", count, "unreadable")
        for rank, count in view.unreadable.items()
    ]
    return own, findings


def _count_findings(view: View, tick: Tick, stream: RankStream) -> list[Finding]:
    seen = stream.seen
    below = None if stream.done else seen.top - HOLE_LINES
    counted = {
        "lost": seen.gaps(below) if seen.missing else 0,
        "of an earlier boot": seen.stale,
    }
    episode = f"rank{stream.rank}/{seen.boot}"
    return [
        _counted(view, tick, stream.rank, f"{episode}/{what.replace(' ', '_')}", count, what)
        for what, count in counted.items()
        if count
    ]


def _counted(view: View, tick: Tick, rank: int, episode: str, count: int, what: str) -> Finding:
    return found(
        view,
        Detector.HYGIENE,
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
        Detector.HYGIENE,
        Severity.HALT,
        episode=f"rank{stream.rank}/{stream.seen.boot}/backwards",
        at=tick.ts,
        stream=stream,
        value=None if stream.backwards is None else float(stream.backwards),
        threshold=float(stream.step),
        text=f"rank {stream.rank} went back from step {stream.step} to {stream.backwards}"
        " without a restart",
    )


def _clock_findings(view: View, event: Beat) -> list[Finding]:
    """Warn when a rank's wall clock disagrees with the watcher's.

    Both by receipt (a line that waited to be read is old, not wrong) and by the monotonic clock
    that processes of one host share (ranks elsewhere have another one): only together they tell.
    """
    line, tick = event.line, event.tick
    limit_s = view.run.watch.hygiene.skew_s
    skew_s = line.ts - tick.ts
    if abs(skew_s) <= limit_s or not view.watched or tick.late_s > limit_s:
        return []
    if abs((line.ts - line.mono) - (tick.ts - tick.mono)) <= limit_s:
        return []
    return [
        found(
            view,
            Detector.HYGIENE,
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


def armed(view: View, own: None) -> bool:
    """Whether any line has come."""
    return bool(view.streams)
