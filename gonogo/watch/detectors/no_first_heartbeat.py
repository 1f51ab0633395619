"""D2: does start-up take too long?

Three clocks: from the watcher's first look to a rank's first line, in the boot section, and in the
first step. A rank that names no sections has the first clock only: how long it boots, or how many
steps lie between its lines, it does not say. One that has shown a step, and was started anew in
place since, has as long as a program of a user's may boot and a step may last that names nothing.
The first step of a user's program has the time of one that compiles: it may, and a resumed one may
pass over all batches before its own.
Where nobody watched, nobody knows when a rank without
a line was started: the first clock stands still, the others go by the lines. It stands still, too,
for a command that nobody wrote for us, unless the plan sets it. A user's program may attach before
it loads a model and tokenises its texts, or wait for the one that does so before it attaches: boot
may last as long as the longest first step. Or all attach after it, as a callback does that
is made with its `Trainer`: it has as long for its first line, and is warned of when one of ours
would be halted. A rank of another node that no probe
has seen may not have been started when the first was: it has the time of a boot. An evaluation
before the first step is D5's, and the step begins when it is over, for those who waited for it,
too. Of a rank that never tells where a step begins or ends, only in which one it is, each step has
the time of a first one: D4 does not know how long they last.

Whoever waits in boot for a rank without a line is not why; nor need be one in its first step.
"""

from collections.abc import Mapping
from operator import attrgetter

from gonogo.contract.finding import Finding, Severity, Source
from gonogo.contract.heartbeat import COMPUTE_SECTIONS, NON_TRAINING_SECTIONS, Section
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import ProcessState, Tick
from gonogo.contract.workload import is_ours
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.detectors.rank_divergence import (
    MOST_TIED,
    Culprit,
    freed_mono,
    name_culprit,
)
from gonogo.watch.detectors.stall import AS_BEFORE_X, UNNAMED_X
from gonogo.watch.stream import RankStream
from gonogo.watch.view import Limit, Run, View, found

_ENDED = attrgetter("completed_steps")
USERS_BOOT_S = 1800.0
"""What a user's program may take in boot: a callback attaches as it is made, and what is prepared
then (texts are tokenised) was part of no section before; or a rank that prepares for all attaches
that much later than the others, who wait for it in boot."""


def _since_exec_s(view: View, tick: Tick) -> float:
    """Return seconds since the watcher began, told by ticks where nothing was recorded yet."""
    if view.started_mono is None:
        return tick.n * tick.interval_s
    return tick.mono - view.started_mono


def _without_line(view: View) -> list[int]:
    return [
        rank
        for rank in range(view.run.order.world_size)
        if rank not in view.streams and not view.processes.of(rank).dead
    ]


def _exec_limit(view: View, rank: int) -> Limit:
    """Return how long a rank may take to its first line.

    A rank of another node that nobody has seen yet may be started later than the first of all; it
    has the time of a boot. One of a user's program may prepare its data before it attaches.
    """
    run = view.run
    settings = run.watch.no_first_heartbeat
    source = run.source("no_first_heartbeat.exec_s")
    if source is Source.DEFAULT and not is_ours(run.order.entry, run.order.command):
        return Limit(seconds=max(settings.exec_s, USERS_BOOT_S), source=source)
    unseen = run.order.nodes > 1 and view.processes.of(rank).state is ProcessState.UNKNOWN
    if unseen and source is Source.DEFAULT:
        return Limit(seconds=max(settings.exec_s, settings.boot_s), source=source)
    return Limit(seconds=settings.exec_s, source=source)


def _may_be_mute(run: Run) -> bool:
    """Whether it is unknown that the program ever says a line: nobody wrote it for us."""
    said = "exec_s" in run.watch.no_first_heartbeat.model_fields_set
    return run.order.command is not None and not said


def _never_spoke(
    view: View, tick: Tick, rank: int, elapsed_s: float, severity: Severity, limit: Limit
) -> Finding:
    return found(
        view,
        Name.NO_FIRST_HEARTBEAT,
        severity,
        episode=f"rank{rank}/exec",
        at=tick.ts,
        rank=rank,
        value=elapsed_s,
        threshold=limit.seconds,
        source=limit.source,
        text=f"rank {rank} has not written a line {elapsed_s:.0f} s after its start"
        f" (limit {limit.seconds:g} s){_advice(view.run)}",
    )


def _unheard(view: View, tick: Tick) -> list[Finding]:
    """Return what is found of ranks that have not written a line: the first of them stands for all.

    One of a user's program may have as long as its data takes; that it is silent is said meanwhile.
    """
    order, settings = view.run.order, view.run.watch.no_first_heartbeat
    elapsed_s = _since_exec_s(view, tick)
    if not view.watched or elapsed_s <= settings.exec_s or _may_be_mute(view.run):
        return []
    missing = _without_line(view)
    for rank in missing:
        limit = _exec_limit(view, rank)
        if elapsed_s > limit.seconds:
            return [_never_spoke(view, tick, rank, elapsed_s, Severity.HALT, limit)]
    if not missing or is_ours(order.entry, order.command):
        return []
    usual = Limit(seconds=settings.exec_s, source=Source.DEFAULT)
    return [_never_spoke(view, tick, missing[0], elapsed_s, Severity.WARN, usual)]


def _advice(run: Run) -> str:
    """Return what may be wrong with a program that is not the bundled one: it knows no gonogo."""
    if is_ours(run.order.entry, run.order.command):
        return ""
    return (
        ": unless it hangs, the script never attached: add gonogo.trainer.attach(), or run it as"
        " `command` with a pattern"
    )


def first_step_limit(run: Run) -> Limit:
    """Return the limit of the first step; a model that is compiled, or may be, has longer."""
    settings = run.watch.no_first_heartbeat
    plain = "no_first_heartbeat.first_step_s"
    if _may_be_compiled(run) and "first_step_s" not in settings.model_fields_set:
        name = "no_first_heartbeat.first_step_compile_s"
        return Limit(seconds=settings.first_step_compile_s, source=run.source(name))
    return Limit(seconds=settings.first_step_s, source=run.source(plain))


def boot_limit(view: View) -> Limit:
    """Return the limit of boot; longer for a user's program: a rank may attach that much later."""
    run = view.run
    seconds, source = run.watch.no_first_heartbeat.boot_s, run.source("no_first_heartbeat.boot_s")
    if source is Source.DEFAULT and not is_ours(run.order.entry, run.order.command):
        seconds = max(seconds, USERS_BOOT_S)
    return Limit(seconds=seconds, source=source)


def _may_be_compiled(run: Run) -> bool:
    """Whether the configuration says `engine: {compile: true}`; it may lack engine.

    What a user's program does in its first step nobody knows: it may compile, or pass over the
    batches that were trained on before it was resumed.
    """
    if not is_ours(run.order.entry, run.order.command):
        return True
    engine = run.order.train.get("engine")
    return isinstance(engine, Mapping) and engine.get("compile") is True


def _slow_start(
    view: View, tick: Tick, culprit: Culprit, streams: list[RankStream]
) -> list[Finding]:
    stream = culprit.stream
    if stream.section in NON_TRAINING_SECTIONS:
        return []
    if stream.started_mono is not None:
        freed = max(stream.left_mono, freed_mono(view, stream, streams, tick.mono))
        what, elapsed_s = "first step", tick.mono - max(_began_mono(stream), freed)
        limit = first_step_limit(view.run)
    elif stream.section in COMPUTE_SECTIONS:  # the line that opened its step is late, or was lost
        freed = freed_mono(view, stream, streams, tick.mono)
        what, elapsed_s = "first step", tick.mono - max(stream.section_mono, freed)
        limit = first_step_limit(view.run)
    elif stream.section == Section.BOOT:
        what, elapsed_s = "boot", tick.mono - stream.section_mono
        limit = boot_limit(view)
    else:
        return []
    if elapsed_s <= limit.seconds or not view.testified(streams, stream, tick.mono):
        return []
    missing = _without_line(view)
    # in boot all wait for it: none is let begin before every rank has spoken
    blamed = missing[0] if len(missing) == 1 and what == "boot" else None
    return [
        found(
            view,
            Name.NO_FIRST_HEARTBEAT,
            Severity.HALT,
            episode=f"rank{stream.rank}/{stream.boot}/{what.replace(' ', '_')}",
            at=tick.ts,
            stream=None if blamed is not None else stream,
            rank=blamed,
            named=culprit.named and not missing,
            value=elapsed_s,
            threshold=limit.seconds,
            source=limit.source,
            since=stream.advanced_ts,
            text=f"the {what} has lasted {elapsed_s:.0f} s (limit {limit.seconds:g} s):"
            f" {culprit} stands in {stream.section or 'no section'}{_missing_text(view, missing)}",
        )
    ]


def _slow_again(
    view: View, tick: Tick, culprit: Culprit, streams: list[RankStream]
) -> list[Finding]:
    """Return what is found of a rank that names no sections, and shows no step since it restarted.

    What ran to its last step, or said that it was done, may come again to evaluate.
    """
    stream, run = culprit.stream, view.run
    if not 0 < stream.top_step < run.order.last_step:
        return []
    step_s = max(UNNAMED_X * run.watch.stall.early_s, AS_BEFORE_X * stream.first_s)
    start = boot_limit(view)
    limit_s = start.seconds + max(step_s, first_step_limit(run).seconds)
    elapsed_s = tick.mono - _began_mono(stream)
    if elapsed_s <= limit_s or not view.testified(streams, stream, tick.mono):
        return []
    return [
        found(
            view,
            Name.NO_FIRST_HEARTBEAT,
            Severity.HALT,
            episode=f"rank{stream.rank}/{stream.boot}/again",
            at=tick.ts,
            stream=stream,
            named=culprit.named,
            value=elapsed_s,
            threshold=limit_s,
            source=start.source,
            since=stream.advanced_ts,
            text=f"{culprit} started anew, and has shown no step for {elapsed_s:.0f} s"
            f" (limit {limit_s:g} s)",
        )
    ]


def _began_mono(stream: RankStream) -> float:
    """Return when the step began that a rank stands in, of which it has told no end so far.

    One that tells only in which step it is has ended those before.
    """
    if stream.started_mono is None or stream.step > stream.from_step + 1:
        return stream.advanced_mono
    return stream.started_mono


def _missing_text(view: View, missing: list[int]) -> str:
    """Return what a finding says of ranks without a line, for which the others may wait."""
    if not missing:
        return ""
    more = " and others" if len(missing) > MOST_TIED else ""
    ranks = ", ".join(map(str, missing[:MOST_TIED]))
    return f"; nothing was ever heard of rank {ranks}{more}{_advice(view.run)}"


class NoFirstHeartbeat(Detector[None]):
    """D2: does start-up take too long?"""

    name = Name.NO_FIRST_HEARTBEAT
    sentence = (
        "Halts when a rank has not written a line two minutes after its start (five where it is on"
        " another node and nobody has seen its process; a program of yours has half an hour, unless"
        " the plan sets `exec_s`, and is warned of after two minutes: it may prepare its data"
        " before it attaches), boots for "
        "over five minutes (half an hour of a program of yours, unless the plan sets `boot_s`: one "
        "that attaches early prepares its data then, or waits for a rank that does), or"
        " takes over fifteen for its first step (thirty when the model is compiled, as a program of"
        " yours may do, unless the plan sets `first_step_s`). A command that never says a line"
        " is not halted, unless the plan sets `exec_s`: nobody knows whether it can. One that"
        " names no sections is halted in its start only where it was started anew in place after"
        " it had shown a step: an hour later, half of it for its start."
    )
    """2: also where nobody watched, by the lines; no rank is named on a tie. 3: a rank that tells
    only in which step it is has ended those before; one that names no sections, and has shown a
    step, has to show one after it was started anew; those of a user's program wait in boot for as
    long as one that has not attached has for that, and have the time of compiling for their first
    step."""
    ticks = True
    deadline = True

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._ranks = frozenset(range(run.order.world_size))

    def observe_tick(self, own: None, tick: Tick, view: View) -> Seen[None]:
        """Observe a tick: who has not begun yet."""
        everyone_spoke = view.streams.keys() >= self._ranks
        if everyone_spoke and all(map(_ENDED, view.streams.values())):
            return own, []
        unheard = _unheard(view, tick)
        if any(finding.severity is Severity.HALT for finding in unheard):
            return own, unheard
        if all(stream.completed_steps for stream in view.streams.values()):
            return own, unheard
        running = [stream for stream in view.active() if not stream.halt_seen]
        streams = view.known(running, tick.mono)
        culprit = name_culprit(view, streams, tick.mono)
        if culprit is None or culprit.stream.completed_steps:
            return own, unheard
        if not culprit.stream.labelled:
            return own, unheard + _slow_again(view, tick, culprit, streams)
        return own, unheard + _slow_start(view, tick, culprit, streams)

    def armed(self, own: None, view: View) -> bool:
        """Whether a rank has yet to end its first step."""
        behind = any(stream.completed_steps == 0 for stream in view.active())
        return behind or (view.watched and bool(_without_line(view)))
