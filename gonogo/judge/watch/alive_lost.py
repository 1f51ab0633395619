"""D3: has a rank fallen silent?

A rank speaks even while it waits (`alive` lines). Silence is suspect; it halts when the process is
stopped, dead or uninterruptible, or when its peers go on speaking. All ranks silent at once may be
the transport: UNKNOWN, until a probe tells.
"""

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.outcome import Detector
from gonogo.contract.tick import Tick
from gonogo.judge.watch.rank_divergence import name_culprit
from gonogo.judge.watch.stream import RankStream
from gonogo.judge.watch.view import Event, View, found


def observe(own: None, event: Event, view: View) -> tuple[None, list[Finding]]:
    """Observe a tick: silence of each rank on the watcher's clock."""
    if not isinstance(event, Tick):
        return own, []
    settings = view.run.watch.alive_lost
    streams = [stream for stream in view.active() if stream.labelled and not stream.halt_seen]
    silent = [s for s in streams if event.mono - s.heard_mono > settings.suspect_s]
    if not silent:
        return own, []
    peers_live = len(silent) < len(streams)
    findings = [_suspect(view, event, stream, peers_live) for stream in silent]
    lost = [
        stream
        for stream in silent
        if event.mono - stream.heard_mono > settings.halt_s
        and (peers_live or view.held(stream.rank))
    ]
    culprit = name_culprit(view, lost)
    if culprit is not None:
        findings.append(_halt(view, event, culprit, peers_live))
    return own, findings


def _suspect(view: View, tick: Tick, stream: RankStream, peers_live: bool) -> Finding:
    silent_s = tick.mono - stream.heard_mono
    threshold = view.run.watch.alive_lost.suspect_s
    which = "its peers go on" if peers_live else "all ranks are silent at once"
    return found(
        view,
        Detector.ALIVE_LOST,
        Severity.SUSPECT,
        episode=_episode(stream),
        at=tick.ts,
        stream=stream,
        value=silent_s,
        threshold=threshold,
        source=view.run.source("alive_lost.suspect_s"),
        text=f"rank {stream.rank} has been silent for {silent_s:.1f} s; {which}",
    )


def _halt(view: View, tick: Tick, stream: RankStream, peers_live: bool) -> Finding:
    silent_s = tick.mono - stream.heard_mono
    threshold = view.run.watch.alive_lost.halt_s
    state = view.processes.of(stream.rank).state
    why = f"its process is {state}" if view.held(stream.rank) else "its peers live"
    return found(
        view,
        Detector.ALIVE_LOST,
        Severity.HALT,
        episode=_episode(stream),
        at=tick.ts,
        stream=stream,
        value=silent_s,
        threshold=threshold,
        source=view.run.source("alive_lost.halt_s"),
        text=f"rank {stream.rank} has been silent for {silent_s:.1f} s (limit {threshold:g} s)"
        f" at step {stream.step}, and {why}",
    )


def _episode(stream: RankStream) -> str:
    return f"rank{stream.rank}/{stream.seen.boot}/{stream.seen.top}"


def armed(view: View, own: None) -> bool:
    """Whether a rank's lines are followed, and silence could be told from lost lines."""
    return view.watched and any(stream.labelled for stream in view.active())
