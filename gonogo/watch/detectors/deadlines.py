"""The detectors of deadlines: D2 start, D3 silence, D4 compute, D5 every other place.

D2, D4 and D5 report what `progress` finds, each for its own places. D2 also counts the time until a
rank's first line, and D5 the time until a finished run exits. D3 halts on silence.
"""

from gonogo.contract.finding import Finding, Near, Severity
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.records import STATE_WORDS, ProcessState, Tick
from gonogo.contract.watch import Limit, Place, ProgramKind
from gonogo.timeline.rank import RankStream
from gonogo.watch.detector import NOTHING_YET, Detector, Seen
from gonogo.watch.detectors.culprit import name_culprit
from gonogo.watch.progress import STARTS, detector_of, overdue, standstill, stay_of, without_line
from gonogo.watch.view import Run, View, found

MAY_BE_SILENT = STARTS | {
    Place.DATA, Place.CHECKPOINT, Place.EVAL, Place.NO_SECTION, Place.AFTER_LAST,
}  # fmt: skip
"""Places in which a rank may hold its interpreter, so that no thread sends lines."""
_GONE_OR_UNKNOWN = frozenset({ProcessState.DEAD, ProcessState.UNKNOWN})
_OF_PLACES = (Name.NO_FIRST_HEARTBEAT, Name.STALL, Name.SECTION_DEADLINE)


class Deadline(Detector[None]):
    """Reports the standstills whose culprit is in places of this detector.

    The first of these detectors that an order names looks at the ticks, and reports for the others.
    """

    ticks = True
    deadline = True

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.reported = [row for row in _OF_PLACES if row in (run.order.detectors or _OF_PLACES)]
        self.ticks = self.name not in self.reported[1:]
        rows = run.patience.values()
        seconds = [row.seconds for row in rows] + [row.suspect_s for row in rows]
        self.quiet_s = min(limit_s for limit_s in seconds if limit_s is not None)

    def observe_tick(self, own: None, tick: Tick, view: View) -> Seen[None]:
        """Observe a tick: how long the run has stood, has not begun, or has not exited."""
        findings = [*_unheard(view, tick), *_lingering(view, tick), *overdue(view, tick)]
        return own, [row for row in findings if row.detector in self.reported]

    def armed(self, own: None, view: View) -> bool:
        """Whether a rank runs, or its first line is awaited."""
        return bool(view.active()) or (view.watched and bool(without_line(view)))

    def near(self, own: None, view: View, mono: float) -> Near:
        """Return how long the run has stood in a place of this detector."""
        waited_s = _unheard_s(view, mono)
        if self.name == Name.NO_FIRST_HEARTBEAT and waited_s is not None:
            return Near.in_time(waited_s, view.run.patience[Place.START].seconds)
        group = standstill(view, mono)
        if group is None:
            return Near(blind=NOTHING_YET)
        longest = group.stays[0]
        if detector_of(longest.place) != self.name:
            return Near()
        return Near.in_time(group.stood_s, longest.limit.seconds)


class NoFirstHeartbeat(Deadline):
    """D2: does the start take too long?"""

    name = Name.NO_FIRST_HEARTBEAT
    sentence = (
        "Halts when a rank has sent no line, stays in boot, or stays in its first step for "
        "too long. Warns earlier of a user's program that has sent no line."
    )


class Stall(Deadline):
    """D4: does a rank compute without ending its step?"""

    name = Name.STALL
    sentence = (
        "Halts when the run stands and the culprit is in forward, backward or optimizer, or "
        "names no sections. Halts earlier if a held process, a silent rank or unchanged "
        "stacks confirm that the run stands."
    )


class SectionDeadline(Deadline):
    """D5: does a rank stay too long in a place where it does not compute?"""

    name = Name.SECTION_DEADLINE
    sentence = (
        "Halts when the run stands and the culprit is in data, checkpoint, eval, log or in no "
        "section. Halts a rank that goes from section to section without ending a step after "
        "twice the sum of the limits."
    )


def _unheard_s(view: View, mono: float) -> float | None:
    """Return for how long a rank's first line has been awaited; None: every rank was heard."""
    if view.started_mono is None or not view.watched or not without_line(view):
        return None
    return mono - view.started_mono


def _unheard(view: View, tick: Tick) -> list[Finding]:
    """Return the finding about the first rank without a line."""
    missing, order = without_line(view) if view.watched else [], view.run.order
    since = view.started_mono
    elapsed_s = tick.n * tick.interval_s if since is None else tick.mono - since
    passed = view.run.patience[Place.START].passed(elapsed_s) if missing else None
    if passed is None:
        return []
    severity, limit = passed
    text = f"rank {missing[0]} has not sent a line {elapsed_s:.0f} s after its start"
    text = f"{text} (limit {limit.seconds:g} s)"
    if order.program_kind is ProgramKind.PRINTED:
        text = f"{text}: no step was observed, nor read from what it prints"
    elif order.program_kind is ProgramKind.ATTACHED:
        text = f"{text}: unless it hangs, it never attached: add gonogo.trainer.attach()"
    finding = found(
        view,
        Name.NO_FIRST_HEARTBEAT,
        severity,
        episode=f"rank{missing[0]}/exec",
        at=tick.ts,
        rank=missing[0],
        value=elapsed_s,
        threshold=limit.seconds,
        source=limit.source,
        text=text,
    )
    return [finding]


def _lingering(view: View, tick: Tick) -> list[Finding]:
    """Return the finding about a run whose ranks are done, and that does not exit."""
    streams, processes = list(view.streams.values()), view.processes
    done = [stream for stream in streams if stream.done]
    if not done or view.active() or not view.watched or len(streams) < view.run.order.world_size:
        return []
    left = [s for s in done if processes.of(s.rank).state not in _GONE_OR_UNKNOWN]
    if not left and processes.agent.state in _GONE_OR_UNKNOWN:
        return []
    elapsed_s = tick.mono - max(stream.done_mono for stream in done)
    passed = view.run.patience[Place.EXIT].passed(elapsed_s)
    if passed is None:
        return []
    severity, limit = passed
    last = left[0] if left else done[0]
    who = f"rank {last.rank}" if len(left) == 1 else "the ranks" if left else "the launcher"
    finding = found(
        view,
        Name.SECTION_DEADLINE,
        severity,
        episode=f"{last.boot}/done",
        at=tick.ts,
        stream=last,
        named=len(left) == 1,
        value=elapsed_s,
        threshold=limit.seconds,
        source=limit.source,
        text=f"every rank was done {elapsed_s:.0f} s ago (limit {limit.seconds:g} s), and {who} did"
        " not exit",
    )
    return [finding]


class AliveLost(Deadline):
    """D3: has a rank fallen silent?"""

    name = Name.ALIVE_LOST
    sentence = (
        "Suspects a rank that sends no line. Halts when its process is held, or when the "
        "other ranks send lines. A process is held once it has been stopped for five seconds, "
        "or in uninterruptible sleep for `suspect_s`. A program without sections is halted "
        "only if its process is stopped."
    )
    probes = True

    def observe_tick(self, own: None, tick: Tick, view: View) -> Seen[None]:
        """Observe a tick: the silence of each rank on the watcher's clock."""
        mono, usual, processes = tick.mono, view.run.patience[Place.SILENCE], view.processes
        stopped = {
            rank
            for rank, row in processes.ranks.items()
            if row.state is ProcessState.STOPPED
            if usual.seconds is not None and row.held_s(mono) > usual.seconds
        }
        streams = [row for row in view.active() if row.labelled or row.rank in stopped]
        streams = [row for row in streams if not row.halt_seen]
        suspicion = Limit(usual.suspect_s or 0.0, usual.source)
        silent = [row for row in streams if mono - row.heard_mono > suspicion.seconds]
        peers_live = len(silent) < len(streams) and not view.lines_are_refused()
        findings = [_silent(view, tick, row, Severity.SUSPECT, suspicion) for row in silent]
        lost = {
            row.rank: limit
            for row in silent
            if (peers_live or view.held(row.rank, mono)) and not view.cut_off(row, mono)
            if (limit := self._limit(row, view, mono)) is not None
            if mono - row.heard_mono > limit.seconds
        }
        culprit = name_culprit(view, [row for row in silent if row.rank in lost], mono)
        if culprit is not None:
            limit = lost[culprit.stream.rank]
            findings.append(_silent(view, tick, culprit.stream, Severity.HALT, limit))
        return own, findings

    def _limit(self, stream: RankStream, view: View, mono: float) -> Limit | None:
        """Return how long a silent rank may be silent in its place; None: as long as it likes."""
        usual = view.run.patience[Place.SILENCE].limit()
        if usual is None or view.held(stream.rank, mono):
            return usual
        stay = stay_of(view, stream, view.median_step_s(), mono)
        if stay is None or stay.place not in MAY_BE_SILENT:
            return usual
        return max(usual, stay.limit)

    def near(self, own: None, view: View, mono: float) -> Near:
        """Return the longest silence of a rank that names its sections."""
        ranks = [stream for stream in view.active() if stream.labelled]
        limit_s = view.run.patience[Place.SILENCE].seconds
        if not ranks or not view.watched:
            return Near(blind=NOTHING_YET)
        return Near.in_time(mono - min(stream.heard_mono for stream in ranks), limit_s)

    def armed(self, own: None, view: View) -> bool:
        """Whether a rank's lines are followed, and silence can be distinguished from lost lines."""
        return view.watched and any(stream.labelled for stream in view.active())


def _silent(
    view: View, tick: Tick, stream: RankStream, severity: Severity, limit: Limit
) -> Finding:
    silent_s = tick.mono - stream.heard_mono
    state = view.processes.of(stream.rank).state
    held = state if view.held(stream.rank, tick.mono) else None
    suspects = severity is Severity.SUSPECT
    why = f"its process is {STATE_WORDS[state]}" if held or suspects else "other ranks speak"
    if suspects and view.lines_are_refused():
        why = "the disk takes no lines"
    return found(
        view,
        Name.ALIVE_LOST,
        severity,
        episode=f"rank{stream.rank}/{stream.boot}/{stream.heard_seq}",
        at=tick.ts,
        stream=stream,
        value=silent_s,
        threshold=limit.seconds,
        source=limit.source,
        held=held,
        text=f"rank {stream.rank} has been silent for {silent_s:.1f} s (limit {limit.seconds:g} s)"
        f" at step {stream.step}, and {why}",
    )
