"""D4: does a rank compute without ending its step?

Counted is only the time since the last step end that the culprit (D6: the rank behind) spent in
forward, backward or optimizer; boot and the first step belong to D2, every other section to D5. So
a peer that waits in its backward for a slow loader stalls nobody, neither while it waits nor when
the loader has come back. m is the run's median step. What the first step did, a later one may do
again: a model is compiled anew for the last, smaller batch of an epoch or a longer sequence. So may
each what one of the last steps did: one in four generates answers, one in fifty evaluates. So,
unless the plan says how long a step may take, it has 1.5 times what the first one took, or the
longest of those, up to the early limit. Of the second step nobody knows more than of the first, and
steps of minutes differ: where neither plan nor profile says how long one takes, it may take ten
times as long, up to what a first step may.
"""

from gonogo.contract.finding import Finding, Severity, Source
from gonogo.contract.heartbeat import NON_TRAINING_SECTIONS, Section
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import Tick
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.detectors.rank_divergence import (
    Culprit,
    blame_who_left,
    freed_mono,
    late_text,
    name_culprit,
    passed_mono,
    stray,
    stray_text,
)
from gonogo.watch.stream import RankStream
from gonogo.watch.view import Limit, Run, View, found

UNNAMED_X = 6.0
"""A rank that names no sections has this multiple of the early limit, where nobody chose another:
it may be evaluating, and nobody knows how many steps lie between its first lines. One that tells
every tenth step or so, or whose lines were read from what it prints and may be counted, has it for
as long as the early limit counts: that is hundreds of steps."""
AFTER_LAST_X = 8.0
"""Times a limit after the last ordered step: what is left to do, evaluations, an export, is known
to nobody."""
_OF_OWN_TIME = NON_TRAINING_SECTIONS | {Section.DATA}
AS_BEFORE_X = 1.5
"""A step is neither suspect nor halted before it has taken this multiple of the one before: a run
that moves, however slowly, is D8's, and evidence at every step would slow it further."""


def limits(run: Run, stream: RankStream, m: float | None, longest_s: float) -> tuple[Limit, Limit]:
    """Return the limits of suspicion and of a halt for a rank.

    Args:
        run: what was ordered.
        stream: the rank.
        m: the median step; None before the second step has ended.
        longest_s: what the longest of the last steps computed.
    """
    stall = run.watch.stall
    if m is None or stream.completed_steps < stall.min_steps:
        expected = run.expected_step_s() or m or 0.0
        expected *= stream.pace.stride
        told = stream.pace.stride == 1 and not _may_be_counted(run)
        known = stream.labelled or (m is not None and told)
        least_s = stall.early_s if known else UNNAMED_X * stall.early_s
        if m is None:  # the first step is no sample, but all there is
            expected = max(expected, AS_BEFORE_X * stream.first_s / stall.early_x)
            least_s = max(least_s, _second_s(run, stream))
        early = _larger(run, "stall.early_s", least_s, stall.early_x * expected)
        return Limit(seconds=early.seconds / 2, source=early.source), early
    m *= stream.pace.stride
    as_before_s = AS_BEFORE_X * stream.pace.last_s
    suspect_s = max(stall.suspect_x * m, as_before_s)
    adaptive_s = max(stall.halt_x * m, as_before_s)
    halt_s = stall.halt_s
    if run.source("stall.halt_s") is Source.DEFAULT:
        as_longest_s = min(AS_BEFORE_X * longest_s * stream.pace.stride, stall.early_s)
        suspect_s = max(suspect_s, as_longest_s)
        adaptive_s = max(adaptive_s, min(AS_BEFORE_X * stream.first_s, stall.early_s), as_longest_s)
        halt_s = halt_s if stream.labelled else max(halt_s, UNNAMED_X * stall.early_s)
    return (
        _larger(run, "stall.suspect_s", stall.suspect_s, suspect_s),
        _larger(run, "stall.halt_s", halt_s, adaptive_s),
    )


def _second_s(run: Run, stream: RankStream) -> float:
    """Return how long the second step may take where only the first one tells of it; else 0.0."""
    known = run.expected_step_s() is not None
    if known or run.source("stall.early_s") is not Source.DEFAULT:
        return 0.0
    most_s = run.watch.no_first_heartbeat.first_step_s
    return min(run.watch.stall.early_x * stream.first_s, most_s)


def _may_be_counted(run: Run) -> bool:
    """Whether a line may be many steps, as of a program that is read, and nobody says how long."""
    return bool(run.order.patterns) and run.source("stall.early_s") is Source.DEFAULT


def _limits(view: View, stream: RankStream, m: float | None) -> tuple[Limit, Limit]:
    """Return the same, or far longer ones where the rank names nothing and no step is owed."""
    run = view.run
    suspect, halt = limits(run, stream, m, view.longest_step_s())
    if not _ended(run, stream):
        return suspect, halt
    path, least_s = "section_deadline.eval.halt_s", run.watch.section_deadline.eval.halt_s
    after = AFTER_LAST_X * max(least_s, halt.seconds)
    source = run.source(path) if least_s >= halt.seconds else halt.source
    return Limit(seconds=after / 2, source=source), Limit(seconds=after, source=source)


def _larger(run: Run, path: str, fixed_s: float, adaptive_s: float) -> Limit:
    if adaptive_s > fixed_s:
        return Limit(seconds=adaptive_s, source=Source.ADAPTIVE)
    return Limit(seconds=fixed_s, source=run.source(path))


def _effective(
    view: View,
    culprit: RankStream,
    streams: list[RankStream],
    tick: Tick,
    elapsed_s: float,
    halt: Limit,
    m: float | None,
) -> Limit:
    """Return the earlier limit of a corroborated stall that has passed it, else the plain one.

    Not where the culprit saves, evaluates or fetches within a step that has computed for long:
    that has a time of its own, and sleeping uninterruptibly is what it does.
    """
    if culprit.section in _OF_OWN_TIME:
        return halt
    stall = view.run.watch.stall
    if m is None or any(stream.completed_steps < stall.min_steps for stream in streams):
        return halt
    early = _larger(view.run, "stall.corroborate_s", stall.corroborate_s, stall.corroborate_x * m)
    if min(halt.seconds, elapsed_s) <= early.seconds or not corroborated(view, streams, tick.mono):
        return halt
    return early


def corroborated(view: View, streams: list[RankStream], mono: float) -> bool:
    """Whether something besides the clock says that the run stands.

    A rank is held, or silent while others speak and stand, too; or two readings of every stack are
    the same, at most half of the ranks stand elsewhere than in the collective (of two ranks one,
    for which the other waits), and their main threads use no CPU. The same stacks alone say nothing
    (a GC pause, every rank in `.item()`).
    """
    if any(view.held(stream.rank, mono) for stream in streams):
        return True
    if not any(stream.labelled for stream in streams):
        return False  # one may write a checkpoint while the others wait: neither says so
    telling = [stream for stream in streams if not view.cut_off(stream, mono)]
    fresh = view.fresh(telling, mono)
    silent = view.speak_on(telling, fresh) and not _goes_on(telling, fresh)
    if silent and all(stream.labelled for stream in streams):
        return True
    processes = view.processes
    if not all(processes.stands(stream.rank, stream.advanced_mono, mono) for stream in streams):
        return False
    waits = {s.rank: processes.waits(s.rank, s.advanced_mono) for s in streams}
    apart = [stream for stream in streams if waits[stream.rank] is False]
    if None in waits.values() or not apart or 2 * len(apart) > len(streams):
        return False
    return all(processes.idles(stream.rank) for stream in apart)


def _goes_on(streams: list[RankStream], fresh: list[RankStream]) -> bool:
    """Whether the run goes on though one of its ranks is silent.

    Others have ended steps that lockstep would not let them end without it, or save or evaluate:
    then its lines do not come through (a shared disk that tells of them late), or nobody waits for
    it, and its silence is D3's.
    """
    steps = [stream.step for stream in streams]
    if max(steps) > min(steps) + 1:
        return True
    return any(stream.section in NON_TRAINING_SECTIONS for stream in fresh)


def _stood_s(view: View, culprit: RankStream, streams: list[RankStream], mono: float) -> float:
    """Return for how long the step has stood, in seconds of the culprit's computing.

    A rank that waited in its backward for a peer's loader has computed for as long as that took.
    So nothing counts from before the last rank of this step was fed: each of them has computed, or
    waited in log, at least as long. Nor from before a peer that is ahead came beside the culprit,
    nor from before one came back that had saved or evaluated for all.
    """
    stood_s = min(culprit.computed_s(mono), mono - freed_mono(view, culprit, streams, mono))
    for stream in streams:
        if stream.step > culprit.step:
            stood_s = min(stood_s, mono - passed_mono(stream, culprit))
        elif stream.step == culprit.step and stream.labelled:
            waits_s = 0.0 if stream.computing else max(0.0, mono - stream.section_mono)
            stood_s = min(stood_s, stream.computed_s(mono) + waits_s)
    return stood_s


def _may_be_over(view: View, mono: float) -> bool:
    """Whether any rank has computed for longer than its lowest limit: who is behind is dear to ask.

    No step has stood for longer than its culprit has computed, and before its first step has ended
    no rank is this detector's.
    """
    stall = view.run.watch.stall
    least_s = min(stall.suspect_s, stall.halt_s, stall.corroborate_s, stall.early_s / 2)
    streams = [stream for stream in view.streams.values() if stream.completed_steps]
    streams = [stream for stream in streams if stream.computed_s(mono) > least_s]
    m = view.median_step_s() if streams else None
    if m is None:
        return bool(streams)
    corroborated_s = max(stall.corroborate_s, stall.corroborate_x * m)
    for stream in streams:
        if stream.completed_steps < stall.min_steps:
            return True
        step_s = m * stream.pace.stride
        suspect_s = max(stall.suspect_s, stall.suspect_x * step_s)
        halt_s = max(stall.halt_s, stall.halt_x * step_s)
        if stream.computed_s(mono) > min(suspect_s, halt_s, corroborated_s):
            return True
    return False


def _ended(run: Run, stream: RankStream) -> bool:
    """Whether a rank that names no sections has taken its last step, and says nothing of the rest.

    One that names them is in no section then, which is D5's.
    """
    return not stream.labelled and stream.step >= run.order.last_step


def _running(view: View) -> list[RankStream]:
    """Return the ranks that have steps to take; where none has, those that have not left."""
    streams = [stream for stream in view.active() if not stream.halt_seen]
    return [stream for stream in streams if not _ended(view.run, stream)] or streams


def _astray(view: View, streams: list[RankStream], finding: Finding) -> Finding:
    """Return the finding of a rank that stands in a collective of its own: in no section's work.

    Or that of ranks which wait for one that has left.
    """
    strayed = stray(view, streams)
    if strayed is None or strayed.rank != finding.rank:
        return blame_who_left(view, finding)
    text = f"{finding.text}: {stray_text(view)}"
    return finding.model_copy(update={"section": None, "text": text})


def _finding(
    view: View, tick: Tick, culprit: Culprit, severity: Severity, elapsed_s: float, limit: Limit
) -> Finding:
    stream = culprit.stream
    where = stream.section or "no section it names"
    return found(
        view,
        Name.STALL,
        severity,
        episode=f"rank{stream.rank}/{stream.boot}/step{stream.step}",
        at=tick.ts,
        stream=stream,
        named=culprit.named,
        value=elapsed_s,
        threshold=limit.seconds,
        source=limit.source,
        text=f"step {stream.step} has computed for {elapsed_s:.1f} s"
        f" (limit {limit.seconds:.1f} s): {culprit} stands in {where}{late_text(view, stream)}",
    )


class Stall(Detector[None]):
    """D4: does a rank compute without ending its step?"""

    name = Name.STALL
    sentence = (
        "Halts when a rank has computed on one step for far longer than the median step: "
        "forward, backward and optimizer count, waiting for data, checkpoints and evaluation do"
        " not. Where all ranks are silent at once, which may be the transport, this and the "
        "other deadlines wait until a probe tells, or until fifteen times `alive_lost.halt_s` "
        "(at least a quarter of an hour) while their processes are seen alive: four times as "
        "long for a program that names no sections, which has after its last step eight times its "
        "limit or that of an evaluation, whichever is longer. Unless the plan sets `halt_s`, a step"
        " may take 1.5 times as long as the first one, which may compile, or as the longest of the"
        " last 256 (some generate answers, or evaluate, in one step of many), up to `early_s`."
        " The second step may take `early_x` times as long as the first, up to what a first step"
        " may, where neither plan nor profile says how long steps take."
    )
    """2: no halt before 1.5 times the last step or (up to the early limit) the first one, nor for
    waiting that a peer's loader caused; no rank is named on a tie; a rank that names no sections
    may evaluate for half an hour, unless the plan says how long a step may take; the second step
    may take ten times as long as the first, where nothing else is known of it; who waited has stood
    since the last of those that are ahead came beside it; stacks that were read more than half a
    minute ago say nothing, nor, where no rank is heard, do those of a thread that leaves the
    interpreter to others, or was elsewhere since it was heard last; for how long the run was
    suspended with its watcher is no time that the step before took."""
    ticks = True
    deadline = True

    def observe_tick(self, own: None, tick: Tick, view: View) -> Seen[None]:
        """Observe a tick: how long the rank behind has computed on its present step."""
        if not _may_be_over(view, tick.mono):
            return own, []
        streams = view.known(_running(view), tick.mono)
        culprit = name_culprit(view, streams, tick.mono)
        if culprit is None or culprit.stream.completed_steps == 0:
            return own, []
        elapsed_s = _stood_s(view, culprit.stream, streams, tick.mono)
        m = view.median_step_s()
        suspect, halt = _limits(view, culprit.stream, m)
        findings = []
        if elapsed_s > suspect.seconds:
            findings.append(_finding(view, tick, culprit, Severity.SUSPECT, elapsed_s, suspect))
        halt = _effective(view, culprit.stream, streams, tick, elapsed_s, halt, m)
        if elapsed_s > halt.seconds and view.testified(streams, culprit.stream, tick.mono):
            findings.append(_finding(view, tick, culprit, Severity.HALT, elapsed_s, halt))
        return own, [_astray(view, streams, finding) for finding in findings]

    def armed(self, own: None, view: View) -> bool:
        """Whether a step has ended, so that the next one has a deadline."""
        return any(stream.completed_steps > 0 for stream in view.active())
