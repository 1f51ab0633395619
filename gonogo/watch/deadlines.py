"""The detectors of deadlines: D2 start, D3 silence, D4 compute, D5 every other place.

D2, D4 and D5 report what `progress` finds, each for its own places. D2 also counts the time until a
rank's first line, and D5 the time until a finished run exits. D3 halts on silence.
"""

from gonogo.contract.finding import Finding, Severity, Source
from gonogo.contract.near import Near
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.patience import Place
from gonogo.contract.tick import ProcessState, Tick
from gonogo.contract.workload import is_ours
from gonogo.timeline.rank import RankStream
from gonogo.watch.culprit import name_culprit
from gonogo.watch.detector import NOTHING_YET, Detector, Seen
from gonogo.watch.progress import (
    MAY_BE_SILENT,
    detector_of,
    overdue,
    standstill,
    stay_of,
    without_line,
)
from gonogo.watch.view import Run, View, found

_GONE_OR_UNKNOWN = frozenset({ProcessState.DEAD, ProcessState.UNKNOWN})
_TABLE = " The limits are in the [table of patience](#table-of-patience)."


class Deadline(Detector[None]):
    """Reports the standstills whose culprit is in places of this detector."""

    ticks = True
    deadline = True

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        rows = run.patience.values()
        limits = [row.seconds for row in rows if row.seconds is not None]
        suspicions = [row.suspect_s for row in rows if row.suspect_s is not None]
        self.quiet_s = min(limits + suspicions)

    def observe_tick(self, own: None, tick: Tick, view: View) -> Seen[None]:
        """Observe a tick: how long the run has stood."""
        return own, [row for row in overdue(view, tick) if row.detector == self.name]

    def near(self, own: None, view: View, mono: float) -> Near:
        """Return how long the run has stood in a place of this detector."""
        group = standstill(view, mono) if self.armed(own, view) else None
        if group is None:
            return Near(blind=NOTHING_YET)
        if detector_of(group.limit.place) != self.name:
            return Near()
        limit_s, stood_s = group.limit.limit_s, max(0.0, group.stood_s)
        left_s = max(0.0, limit_s - stood_s)
        return Near(value=stood_s, limit=limit_s, unit="s", time_left_s=left_s)


class NoFirstHeartbeat(Deadline):
    """D2: does the start take too long?"""

    name = Name.NO_FIRST_HEARTBEAT
    sentence = (
        "Halts when a rank has sent no line, stays in boot, or stays in its first step for too"
        " long. Warns earlier of a user's program that has sent no line. After a restart in place a"
        " program without sections must end a step in time." + _TABLE
    )

    def observe_tick(self, own: None, tick: Tick, view: View) -> Seen[None]:
        """Observe a tick: which ranks have not begun."""
        unheard = _unheard(view, tick)
        if any(finding.severity is Severity.HALT for finding in unheard):
            return own, unheard
        return own, unheard + super().observe_tick(own, tick, view)[1]

    def armed(self, own: None, view: View) -> bool:
        """Whether a rank has yet to end its first step."""
        behind = any(stream.completed_steps == 0 for stream in view.active())
        return behind or (view.watched and bool(without_line(view)))


def _unheard(view: View, tick: Tick) -> list[Finding]:
    """Return the finding about the first rank without a line."""
    row, missing = view.run.patience[Place.START], without_line(view)
    if not missing or not view.watched or row.seconds is None:
        return []
    started_mono, order = view.started_mono, view.run.order
    elapsed_s = tick.n * tick.interval_s if started_mono is None else tick.mono - started_mono
    stages = ((Severity.HALT, row.seconds), (Severity.WARN, row.suspect_s))
    for severity, limit_s in stages:
        if limit_s is None or elapsed_s <= limit_s:
            continue
        text = f"rank {missing[0]} has not sent a line {elapsed_s:.0f} s after its start"
        text = f"{text} (limit {limit_s:g} s)"
        if not is_ours(order.entry, order.command):
            text = f"{text}: unless it hangs, it never attached: add gonogo.trainer.attach()"
        finding = found(
            view,
            Name.NO_FIRST_HEARTBEAT,
            severity,
            episode=f"rank{missing[0]}/exec",
            at=tick.ts,
            rank=missing[0],
            value=elapsed_s,
            threshold=limit_s,
            source=row.source,
            text=text,
        )
        return [finding]
    return []


class Stall(Deadline):
    """D4: does a rank compute without ending its step?"""

    name = Name.STALL
    sentence = (
        "Halts when the run stands and the culprit is in forward, backward or optimizer, or names"
        " no sections. Halts earlier if a held process, a silent rank or unchanged stacks confirm"
        " that the run stands." + _TABLE
    )

    def armed(self, own: None, view: View) -> bool:
        """Whether a step has ended, so that the next one has a deadline."""
        return any(stream.completed_steps > 0 for stream in view.active())


class SectionDeadline(Deadline):
    """D5: does a rank stay too long in a place where it does not compute?"""

    name = Name.SECTION_DEADLINE
    sentence = (
        "Halts when the run stands and the culprit is in data, checkpoint, eval, log or in no"
        " section. Halts a rank that goes from section to section without ending a step after twice"
        " the sum of the limits, until its last step. Warns, and later halts, when all ranks are"
        " done and a process does not exit." + _TABLE
    )

    def observe_tick(self, own: None, tick: Tick, view: View) -> Seen[None]:
        """Observe a tick: how long the run has stood, or has not exited."""
        if view.streams and not view.active():
            return own, _lingering(view, tick)
        return super().observe_tick(own, tick, view)

    def armed(self, own: None, view: View) -> bool:
        """Whether a rank that names its sections is running."""
        return any(stream.labelled for stream in view.active())


def _lingering(view: View, tick: Tick) -> list[Finding]:
    """Return the findings about a run whose ranks are done, and that does not exit."""
    streams, processes = list(view.streams.values()), view.processes
    done = [stream for stream in streams if stream.done]
    if not done or not view.watched or len(streams) < view.run.order.world_size:
        return []
    left = [s for s in done if processes.of(s.rank).state not in _GONE_OR_UNKNOWN]
    if not left and processes.agent.state in _GONE_OR_UNKNOWN:
        return []
    row = view.run.patience[Place.EXIT]
    stages = ((Severity.WARN, row.suspect_s), (Severity.HALT, row.seconds))
    elapsed_s = tick.mono - max(stream.done_mono for stream in done)
    last = left[0] if left else done[0]
    who = f"rank {last.rank}" if len(left) == 1 else "the ranks" if left else "the launcher"
    return [
        found(
            view,
            Name.SECTION_DEADLINE,
            severity,
            episode=f"{last.boot}/done",
            at=tick.ts,
            stream=last,
            named=len(left) == 1,
            value=elapsed_s,
            threshold=limit_s,
            source=row.source,
            text=f"every rank was done {elapsed_s:.0f} s ago (limit {limit_s:g} s), and {who} did"
            " not exit",
        )
        for severity, limit_s in stages
        if limit_s is not None and elapsed_s > limit_s
    ]


class AliveLost(Detector[None]):
    """D3: has a rank fallen silent?"""

    name = Name.ALIVE_LOST
    sentence = (
        "Suspects a rank that sends no line. Halts when its process is held, or when the other"
        " ranks send lines. In boot, first step, data, checkpoint, eval and after the last step the"
        " limit is that of the place, because a rank may hold its interpreter there. A process is"
        " held once it has been stopped for five seconds, or in uninterruptible sleep for"
        " `suspect_s`. A program without sections is halted only if its process is stopped."
        + _TABLE
    )
    ticks = True
    deadline = True
    probes = True

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.quiet_s = run.patience[Place.SILENCE].suspect_s or 0.0

    def observe_tick(self, own: None, tick: Tick, view: View) -> Seen[None]:
        """Observe a tick: the silence of each rank on the watcher's clock."""
        mono, row = tick.mono, view.run.patience[Place.SILENCE]
        suspect_s = row.suspect_s or 0.0
        streams = [
            stream
            for stream in view.active()
            if (stream.labelled or _is_stopped(view, stream, mono)) and not stream.halt_seen
        ]
        silent = [s for s in streams if mono - s.heard_mono > suspect_s]
        peers_live = len(silent) < len(streams) and not view.lines_are_refused()
        findings = [_silent(view, tick, s, Severity.SUSPECT, suspect_s, row.source) for s in silent]
        lost = []
        for stream in silent:
            held = view.held(stream.rank, mono)
            limit_s = silence_limit_s(view, stream, mono)
            over = limit_s is not None and mono - stream.heard_mono > limit_s
            if over and (peers_live or held) and not view.cut_off(stream, mono):
                lost.append(stream)
        culprit = name_culprit(view, lost, mono)
        if culprit is not None:
            limit_s = silence_limit_s(view, culprit.stream, mono) or 0.0
            row_of = (Severity.HALT, limit_s, row.source)
            findings.append(_silent(view, tick, culprit.stream, *row_of))
        return own, findings

    def near(self, own: None, view: View, mono: float) -> Near:
        """Return the longest silence of a rank that names its sections."""
        ranks = [stream for stream in view.active() if stream.labelled]
        limit_s = view.run.patience[Place.SILENCE].seconds
        if not ranks or not view.watched:
            return Near(blind=NOTHING_YET)
        silent_s = max(0.0, mono - min(stream.heard_mono for stream in ranks))
        left_s = None if limit_s is None else max(0.0, limit_s - silent_s)
        return Near(value=silent_s, limit=limit_s, unit="s", time_left_s=left_s)

    def armed(self, own: None, view: View) -> bool:
        """Whether a rank's lines are followed, and silence could be told from lost lines."""
        return view.watched and any(stream.labelled for stream in view.active())


def silence_limit_s(view: View, stream: RankStream, mono: float) -> float | None:
    """Return how long a rank may be silent in its place; None: as long as it likes."""
    usual_s = view.run.patience[Place.SILENCE].seconds
    stopped = view.processes.of(stream.rank).state is not ProcessState.UNINTERRUPTIBLE
    if usual_s is None or (view.held(stream.rank, mono) and stopped):
        return usual_s
    stay = stay_of(view, stream, view.median_step_s(), mono)
    if stay is None or stay.place not in MAY_BE_SILENT:
        return usual_s
    return max(usual_s, stay.limit_s)


def _is_stopped(view: View, stream: RankStream, mono: float) -> bool:
    """Whether a rank's process has been stopped for longer than silence may last."""
    process = view.processes.of(stream.rank)
    limit_s = view.run.patience[Place.SILENCE].seconds
    stopped = process.state is ProcessState.STOPPED
    return stopped and limit_s is not None and process.held_s(mono) > limit_s


def _silent(
    view: View,
    tick: Tick,
    stream: RankStream,
    severity: Severity,
    limit_s: float,
    source: Source,
) -> Finding:
    silent_s = tick.mono - stream.heard_mono
    state = view.processes.of(stream.rank).state
    why = f"its process is {state}" if view.held(stream.rank, tick.mono) else "other ranks speak"
    if severity is Severity.SUSPECT:
        why = "the disk takes no lines" if view.lines_are_refused() else f"its process is {state}"
    return found(
        view,
        Name.ALIVE_LOST,
        severity,
        episode=f"rank{stream.rank}/{stream.boot}/{stream.heard_seq}",
        at=tick.ts,
        stream=stream,
        value=silent_s,
        threshold=limit_s,
        source=source,
        text=f"rank {stream.rank} has been silent for {silent_s:.1f} s (limit {limit_s:g} s)"
        f" at step {stream.step}, and {why}",
    )
