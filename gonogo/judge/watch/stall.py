"""D4: does a rank compute without ending its step?

Counted is only the time since the last step end that the culprit (D6: the rank behind) spent in
forward, backward or optimizer; boot and the first step belong to D2, every other section to D5. So
a peer that waits in its backward for a slow loader stalls nobody. m is the run's median step.
"""

from gonogo.contract.finding import Finding, Severity, Source
from gonogo.contract.outcome import Detector
from gonogo.contract.tick import Tick
from gonogo.contract.watch import Stall
from gonogo.judge.watch.rank_divergence import name_culprit
from gonogo.judge.watch.stream import RankStream
from gonogo.judge.watch.view import Event, Limit, Run, View, found

AS_BEFORE_X = 1.5
"""A step is not suspect before it has taken this multiple of the one before: a run that has become
slow is D8's, and evidence at every step would slow it further."""


def observe(own: None, event: Event, view: View) -> tuple[None, list[Finding]]:
    """Observe a tick: how long the rank behind has computed on its present step."""
    if not isinstance(event, Tick):
        return own, []
    stall = view.run.watch.stall
    least_s = min(stall.suspect_s, stall.halt_s, stall.corroborate_s, stall.early_s / 2)
    if all(stream.computed_s(event.mono) <= least_s for stream in view.streams.values()):
        return own, []
    streams = [stream for stream in view.active() if not _finished(view, stream)]
    culprit = name_culprit(view, streams)
    if culprit is None or culprit.completed_steps == 0:
        return own, []
    elapsed_s = culprit.computed_s(event.mono)
    m = view.median_step_s()
    suspect, halt = limits(view.run, culprit, m)
    findings = []
    if elapsed_s > suspect.seconds:
        findings.append(_finding(view, event, culprit, Severity.SUSPECT, elapsed_s, suspect))
    if elapsed_s > min(halt.seconds, _corroborated_s(view.run.watch.stall, m)):
        halt = _effective(view, streams, event.mono, halt, m)
        if elapsed_s > halt.seconds and view.testified(streams, culprit, event.mono):
            findings.append(_finding(view, event, culprit, Severity.HALT, elapsed_s, halt))
    return own, findings


def limits(run: Run, stream: RankStream, m: float | None) -> tuple[Limit, Limit]:
    """Return the limits of suspicion and of a halt for a rank, given the median step m."""
    stall = run.watch.stall
    if m is None or stream.completed_steps < stall.min_steps:
        expected = run.expected_step_s() or m or 0.0
        early = _larger(run, "stall.early_s", stall.early_s, stall.early_x * expected)
        return Limit(seconds=early.seconds / 2, source=early.source), early
    m *= stream.pace.stride
    usual_s = max(stall.suspect_x * m, AS_BEFORE_X * stream.pace.last_s)
    return (
        _larger(run, "stall.suspect_s", stall.suspect_s, usual_s),
        _larger(run, "stall.halt_s", stall.halt_s, stall.halt_x * m),
    )


def _larger(run: Run, path: str, fixed_s: float, adaptive_s: float) -> Limit:
    if adaptive_s > fixed_s:
        return Limit(seconds=adaptive_s, source=Source.ADAPTIVE)
    return Limit(seconds=fixed_s, source=run.source(path))


def _corroborated_s(stall: Stall, m: float | None) -> float:
    return max(stall.corroborate_s, stall.corroborate_x * (m or 0.0))


def _effective(
    view: View, streams: list[RankStream], mono: float, halt: Limit, m: float | None
) -> Limit:
    """Return the earlier limit of a corroborated stall, else the plain one."""
    stall = view.run.watch.stall
    early = _larger(
        view.run, "stall.corroborate_s", stall.corroborate_s, stall.corroborate_x * (m or 0.0)
    )
    if m is None or any(stream.completed_steps < stall.min_steps for stream in streams):
        return halt
    if early.seconds >= halt.seconds or not corroborated(view, streams, mono):
        return halt
    return early


def corroborated(view: View, streams: list[RankStream], mono: float) -> bool:
    """Whether something besides the clock says that the run stands.

    A rank is held or silent while others speak; or two readings of every stack are the same,
    a minority stands elsewhere than in the collective, and its main threads use no CPU. The same
    stacks alone say nothing (a GC pause, every rank in `.item()`).
    """
    if any(view.held(stream.rank) for stream in streams):
        return True
    fresh = view.fresh(streams, mono)
    if fresh and len(fresh) < len(streams) and all(stream.labelled for stream in streams):
        return True
    processes = view.processes
    if not all(processes.stands(stream.rank, stream.advanced_mono) for stream in streams):
        return False
    apart = [stream for stream in streams if processes.waits(stream.rank) is False]
    if not 0 < 2 * len(apart) <= len(streams):
        return False
    return all(processes.idles(stream.rank) for stream in apart)


def _finished(view: View, stream: RankStream) -> bool:
    return stream.halt_seen or (not stream.labelled and stream.step >= view.run.order.steps)


def _finding(
    view: View, tick: Tick, culprit: RankStream, severity: Severity, elapsed_s: float, limit: Limit
) -> Finding:
    where = culprit.section or "no section it names"
    return found(
        view,
        Detector.STALL,
        severity,
        episode=f"rank{culprit.rank}/{culprit.seen.boot}/step{culprit.step}",
        at=tick.ts,
        stream=culprit,
        value=elapsed_s,
        threshold=limit.seconds,
        source=limit.source,
        text=f"step {culprit.step} has computed for {elapsed_s:.1f} s"
        f" (limit {limit.seconds:.1f} s): rank {culprit.rank} stands in {where}",
    )


def armed(view: View, own: None) -> bool:
    """Whether a step has ended, so that the next one has a deadline."""
    return any(stream.completed_steps > 0 for stream in view.active())
