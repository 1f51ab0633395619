"""D2: does start-up take too long?

Three clocks: from the watcher's first look to a rank's first line, in the boot section, and in the
first step. A rank that names no sections has the first clock only: how long it boots, or how many
steps lie between its lines, it does not say.
"""

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Section
from gonogo.contract.outcome import Detector
from gonogo.contract.tick import Tick
from gonogo.judge.watch.rank_divergence import name_culprit
from gonogo.judge.watch.stream import RankStream
from gonogo.judge.watch.view import Event, Limit, Run, View, found


def observe(own: None, event: Event, view: View) -> tuple[None, list[Finding]]:
    """Observe a tick: who has not begun yet."""
    if not isinstance(event, Tick) or not view.watched:
        return own, []
    exec_s = view.run.watch.no_first_heartbeat.exec_s
    elapsed_s = _since_exec_s(view, event)
    if elapsed_s > exec_s:
        missing = _without_line(view)
        if missing:
            return own, [_never_spoke(view, event, missing[0], elapsed_s)]
    if all(stream.completed_steps for stream in view.streams.values()):
        return own, []
    streams = [stream for stream in view.active() if not stream.halt_seen]
    culprit = name_culprit(view, streams)
    if culprit is None or not culprit.labelled or culprit.completed_steps:
        return own, []
    return own, _slow_start(view, event, culprit, streams)


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


def _never_spoke(view: View, tick: Tick, rank: int, elapsed_s: float) -> Finding:
    exec_s = view.run.watch.no_first_heartbeat.exec_s
    return found(
        view,
        Detector.NO_FIRST_HEARTBEAT,
        Severity.HALT,
        episode=f"rank{rank}/exec",
        at=tick.ts,
        rank=rank,
        value=elapsed_s,
        threshold=exec_s,
        source=view.run.source("no_first_heartbeat.exec_s"),
        text=f"rank {rank} has not written a line {elapsed_s:.0f} s after its start"
        f" (limit {exec_s:g} s)",
    )


def first_step_limit(run: Run) -> Limit:
    """Return the limit of the first step; a model that is compiled has longer."""
    settings = run.watch.no_first_heartbeat
    plain = "no_first_heartbeat.first_step_s"
    if run.order.train.get("compile") and "first_step_s" not in settings.model_fields_set:
        name = "no_first_heartbeat.first_step_compile_s"
        return Limit(seconds=settings.first_step_compile_s, source=run.source(name))
    return Limit(seconds=settings.first_step_s, source=run.source(plain))


def _slow_start(
    view: View, tick: Tick, culprit: RankStream, streams: list[RankStream]
) -> list[Finding]:
    if culprit.started_mono is not None:
        what, elapsed_s = "first step", tick.mono - culprit.started_mono
        limit = first_step_limit(view.run)
    elif culprit.section == Section.BOOT:
        what, elapsed_s = "boot", tick.mono - culprit.section_mono
        limit = Limit(
            seconds=view.run.watch.no_first_heartbeat.boot_s,
            source=view.run.source("no_first_heartbeat.boot_s"),
        )
    else:
        return []
    if elapsed_s <= limit.seconds or not view.testified(streams, culprit, tick.mono):
        return []
    return [
        found(
            view,
            Detector.NO_FIRST_HEARTBEAT,
            Severity.HALT,
            episode=f"rank{culprit.rank}/{culprit.seen.boot}/{what.replace(' ', '_')}",
            at=tick.ts,
            stream=culprit,
            value=elapsed_s,
            threshold=limit.seconds,
            source=limit.source,
            text=f"the {what} has lasted {elapsed_s:.0f} s (limit {limit.seconds:g} s):"
            f" rank {culprit.rank} stands in {culprit.section or 'no section'}",
        )
    ]


def armed(view: View, own: None) -> bool:
    """Whether a rank has yet to end its first step."""
    behind = any(stream.completed_steps == 0 for stream in view.active())
    return view.watched and (behind or bool(_without_line(view)))
