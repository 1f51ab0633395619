"""D3: has a rank fallen silent?

A rank speaks even while it waits (`alive` lines). Silence is suspect; it halts when the process is
stopped, dead or uninterruptible, or when its peers go on speaking. All ranks silent at once may be
the transport: UNKNOWN, until a probe tells; so is any silence while the disk takes no lines, and
that of a node that nobody hears (its peers stand where it does: that is D4's and D5's).

Serialising a checkpoint, an evaluation, opening data, importing and compiling may hold the
interpreter for minutes, and then no thread speaks: in these a silent rank has the deadline of its
section (D5) or of its start (D2), unless its process is stopped or dead. So has who has told
nothing since a step began, or stands in no section after the last one: see D5. Ranks that a
launcher restarts in place start one after the other: while a peer starts anew, a silent rank has
the time of a start; and its silence counts since the peer was back, for its own lines may come
later.

A program that names no sections may speak little, so its silence says nothing. A stopped process
does: who is stopped for as long as silence may last is lost, from the first step on.
"""

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Section
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import ProcessState, Tick
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.detectors.no_first_heartbeat import boot_limit, first_step_limit
from gonogo.watch.detectors.rank_divergence import name_culprit
from gonogo.watch.detectors.section_deadline import deadline_of, limit_of, section_of
from gonogo.watch.stream import RankStream
from gonogo.watch.view import Limit, View, found

MAY_BE_SILENT = frozenset({Section.DATA, Section.CHECKPOINT, Section.EVAL})


def _suspect(view: View, tick: Tick, stream: RankStream, peers_live: bool) -> Finding:
    silent_s = tick.mono - stream.heard_mono
    threshold = view.run.watch.alive_lost.suspect_s
    which = "its peers go on" if peers_live else "all ranks are silent at once"
    if view.lines_are_refused():
        which = "the disk takes no lines"
    return found(
        view,
        Name.ALIVE_LOST,
        Severity.SUSPECT,
        episode=_episode(stream),
        at=tick.ts,
        stream=stream,
        value=silent_s,
        threshold=threshold,
        source=view.run.source("alive_lost.suspect_s"),
        text=f"rank {stream.rank} has been silent for {silent_s:.1f} s; {which}",
    )


def limit_of_silence(view: View, stream: RankStream, mono: float) -> Limit:
    """Return how long a rank may be silent where it stands.

    A process that is stopped has no more than the usual time anywhere. One in uninterruptible sleep
    writes to a disk, which is what a checkpoint does: it has the time of its section.
    """
    run = view.run
    usual = Limit(seconds=run.watch.alive_lost.halt_s, source=run.source("alive_lost.halt_s"))
    waits_for_disk = view.processes.of(stream.rank).state is ProcessState.UNINTERRUPTIBLE
    if view.held(stream.rank, mono) and not waits_for_disk:
        return usual
    allowed = usual
    if stream.section == Section.BOOT and stream.started_mono is None:
        allowed = boot_limit(view)
    elif (section := section_of(run, stream)) in MAY_BE_SILENT:
        name, deadline = deadline_of(run.watch.section_deadline, section)
        allowed = limit_of(view, stream, name, deadline, view.median_step_s())
    elif stream.completed_steps == 0:  # some tell no start of a step, only its end
        allowed = first_step_limit(run)
    elif anew := [row for row in view.streams.values() if row.first_mono > stream.heard_mono]:
        gone_s = max(row.first_mono for row in anew) - stream.heard_mono
        usual = Limit(seconds=gone_s + usual.seconds, source=usual.source)
        if any(not row.completed_steps for row in anew):
            allowed = boot_limit(view)
    return max(usual, allowed, key=lambda limit: limit.seconds)


def _is_stopped(view: View, stream: RankStream, mono: float) -> bool:
    """Whether a rank's process has been stopped for longer than silence may last."""
    process = view.processes.of(stream.rank)
    halt_s = view.run.watch.alive_lost.halt_s
    return process.state is ProcessState.STOPPED and process.held_s(mono) > halt_s


def _halt(view: View, tick: Tick, stream: RankStream) -> Finding:
    silent_s = tick.mono - stream.heard_mono
    limit = limit_of_silence(view, stream, tick.mono)
    state = view.processes.of(stream.rank).state
    why = f"its process is {state}" if view.held(stream.rank, tick.mono) else "its peers live"
    return found(
        view,
        Name.ALIVE_LOST,
        Severity.HALT,
        episode=_episode(stream),
        at=tick.ts,
        stream=stream,
        value=silent_s,
        threshold=limit.seconds,
        source=limit.source,
        text=f"rank {stream.rank} has been silent for {silent_s:.1f} s (limit {limit.seconds:g} s)"
        f" at step {stream.step}, and {why}",
    )


def _episode(stream: RankStream) -> str:
    return f"rank{stream.rank}/{stream.boot}/{stream.heard_seq}"


class AliveLost(Detector[None]):
    """D3: has a rank fallen silent?"""

    name = Name.ALIVE_LOST
    sentence = (
        "Suspects a rank that has been silent for half a minute, and halts after a minute when "
        "its process is held or its peers go on speaking; where a section or the start may last"
        " longer (data, checkpoint, evaluation, boot, first step), at that deadline; where a "
        "rank has only said that a step begins, at that of data, and in no section after the last "
        "step, at that of a checkpoint. A process "
        "is held once it has been stopped for five seconds, or in uninterruptible sleep for "
        "`suspect_s`; the latter, a write to a slow disk, keeps the time of its section, and that "
        "of a checkpoint where no rank is heard: lines wait for disks, too. Of a program that names"
        " no sections, and may speak little, a process that has been stopped for a minute halts."
    )
    """2: silence in data, checkpoint, evaluation and at the start has the deadline of those.
    3: of a program that names no sections, a stopped process is lost; who has only said that a step
    begins may fetch its batch, and save after the last; who sleeps uninterruptibly while nobody is
    heard has the time of a checkpoint."""
    ticks = True
    deadline = True
    probes = True

    def observe_tick(self, own: None, tick: Tick, view: View) -> Seen[None]:
        """Observe a tick: silence of each rank on the watcher's clock."""
        settings = view.run.watch.alive_lost
        mono, suspect_s = tick.mono, settings.suspect_s
        if all(mono - stream.heard_mono <= suspect_s for stream in view.streams.values()):
            return own, []
        streams = [
            stream
            for stream in view.active()
            if (stream.labelled or _is_stopped(view, stream, mono)) and not stream.halt_seen
        ]
        silent = [s for s in streams if mono - s.heard_mono > suspect_s]
        if not silent:
            return own, []
        peers_live = len(silent) < len(streams) and not view.lines_are_refused()
        findings = [_suspect(view, tick, stream, peers_live) for stream in silent]
        lost = [
            stream
            for stream in silent
            if (peers_live or view.held(stream.rank, tick.mono))
            and not view.cut_off(stream, tick.mono)
            and tick.mono - stream.heard_mono > limit_of_silence(view, stream, tick.mono).seconds
        ]
        culprit = name_culprit(view, lost, tick.mono)
        if culprit is not None:
            findings.append(_halt(view, tick, culprit.stream))
        return own, findings

    def armed(self, own: None, view: View) -> bool:
        """Whether a rank's lines are followed, and silence could be told from lost lines."""
        return view.watched and any(stream.labelled for stream in view.active())
