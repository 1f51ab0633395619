"""Deadlines: D2 start, D3 silence, D4 compute, D5 every other place.

One mechanism serves D2, D4 and D5. Ranks at the lowest step, and those at most one step ahead, wait
for each other. This group stands since the last of its ranks changed its place or its step. It is
overdue when it has stood longer than the longest limit of its ranks, by the table of patience in
the order. So a rank that waits for a peer's checkpoint has the limit of a checkpoint. The place of
the culprit decides which detector reports. Only an advancing step is progress: a rank that goes
from section to section without ending a step is halted after twice the sum of all limits.

Not covered: ranks that all hold their interpreters at once are halted after ALL_SILENT_S. A rank
that goes from section to section after its last step is ended by the run's deadline. Ranks of a
node without a connection are not seen while their peers continue.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gonogo.contract.canonical import added
from gonogo.contract.finding import Finding, Near, Severity, Source
from gonogo.contract.heartbeat import COMPUTE_SECTIONS, NON_TRAINING_SECTIONS, Section
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.records import STATE_WORDS, ProcessState, Tick
from gonogo.contract.watch import Limit, Place, ProgramKind, Typical
from gonogo.timeline.rank import NAMED_SECTIONS, RankStream
from gonogo.watch.detector import NOTHING_YET, Detector, Seen
from gonogo.watch.detectors.culprit import Culprit, blame_who_left, name_culprit, recorded
from gonogo.watch.view import ALL_SILENT_S, Run, View, found

CYCLE_X = 2.0
"""Times the sum of all limits within which a step must end."""
_CYCLE = (Place.DATA, Place.CHECKPOINT, Place.EVAL, Place.LOG, Place.NO_SECTION, Place.EARLY_STEPS)
IDLE_S = 120.0
"""After so long, ranks that stand where they are and use no CPU show a stall."""
STARTS = frozenset({Place.START, Place.BOOT, Place.FIRST_STEP, Place.PRINTED_RESTART})
_ENDED = frozenset({Place.AFTER_LAST, Place.PRINTED_AFTER_LAST})
_COMPUTES = frozenset(
    {Place.EARLY_STEPS, Place.COMPUTE, Place.PRINTED_STEP, Place.PRINTED_AFTER_LAST}
)
_LOCKSTEP = frozenset({Place.EARLY_STEPS, Place.COMPUTE, Place.LOG, Place.NO_SECTION})
"""Places in which unchanged stacks show a stall early."""
_PAUSES = frozenset({Place.DATA, Place.CHECKPOINT, Place.EVAL})
"""Places in which no rank waits for one that has left."""
STOOD = "stood"


@dataclass(frozen=True, slots=True)
class Stay:
    """A rank in its place."""

    stream: RankStream
    place: Place
    since_mono: float
    limit: Limit
    suspect_s: float | None


@dataclass(frozen=True, slots=True)
class Standstill:
    """Ranks that wait for each other, and how long none of them has moved."""

    stays: list[Stay]
    """The one with the longest limit comes first."""
    streams: list[RankStream]
    stood_s: float


class Due(NamedTuple):
    """A limit that has passed."""

    severity: Severity
    stood_s: float
    limit: Limit
    what: str = STOOD
    """What the ranks have done for `stood_s`."""


def place_of(view: View, stream: RankStream) -> Place:
    """Return the place of a rank."""
    process, order = view.processes.of(stream.rank), view.run.order
    if (process.renewed_mono or 0.0) > stream.heard_mono and process.pid != stream.pid:
        return Place.START
    ended = stream.completed >= order.last_step
    if not stream.labelled:
        if ended:
            return Place.PRINTED_AFTER_LAST
        if stream.completed_steps:
            return Place.PRINTED_STEP
        return Place.PRINTED_RESTART if stream.top_step else Place.PRINTED_START
    section = stream.section
    if section in NON_TRAINING_SECTIONS:
        return Place(str(section))
    if section not in NAMED_SECTIONS and ended:
        return Place.AFTER_LAST
    if not stream.completed_steps:
        booting = section == Section.BOOT and stream.started_mono is None
        return Place.BOOT if booting else Place.FIRST_STEP
    if section in COMPUTE_SECTIONS:
        few = stream.completed_steps < view.run.watch.stall.min_steps
        return Place.EARLY_STEPS if few else Place.COMPUTE
    return Place(str(section)) if section in (Section.DATA, Section.LOG) else Place.NO_SECTION


def _since_mono(view: View, stream: RankStream, place: Place, mono: float) -> float:
    """Return when a rank came to its place; in no section, a step that advances is a move."""
    if place is Place.START:
        return view.processes.of(stream.rank).renewed_mono or stream.heard_mono
    if place is Place.PRINTED_RESTART:
        return stream.first_mono
    if place is Place.FIRST_STEP and stream.started_mono is not None:
        return max(stream.started_mono, stream.left_mono)
    if not stream.labelled:
        return stream.advanced_mono
    if place in (Place.EARLY_STEPS, Place.COMPUTE):
        return mono - stream.computed_s(mono)
    if stream.section is not None:
        return stream.section_mono
    return max(stream.section_mono, stream.advanced_mono)


def _basis_s(view: View, stream: RankStream, place: Place, m: float | None) -> float | None:
    """Return the seconds that a place's multiple multiplies."""
    of, stride = view.run.patience[place].of, stream.pace.stride
    if of is Typical.MEDIAN:
        return (m or stream.first_s) * stride
    if of is Typical.LONGEST:
        if stream.labelled:
            return stream.longest_apart_s
        return max(stream.pace.times_s, default=0.0) * stride
    section = str(Section.CHECKPOINT if place is Place.AFTER_LAST else place)
    times_s = [took_s for name, took_s in stream.section_times if name == section]
    saved_s = stream.saved_s if section == Section.CHECKPOINT else ()
    return max((statistics.median(row) for row in (times_s, saved_s) if row), default=None)


def stay_of(view: View, stream: RankStream, m: float | None, mono: float) -> Stay | None:
    """Return a rank in its place; None if the place has no limit."""
    place = place_of(view, stream)
    row, basis_s = view.run.patience[place], _basis_s(view, stream, place, m)
    limit = row.limit(basis_s)
    if limit is None:
        return None
    since_mono = _since_mono(view, stream, place, mono)
    return Stay(stream, place, since_mono, limit, row.suspect(basis_s))


def standstill(view: View, mono: float) -> Standstill | None:
    """Return the ranks that wait for each other; None if no rank has a limit.

    Lines of a rank may come late. If others have continued without the group, it has stood only as
    long as they did, by the median step.

    A silent node may have lost only its connection. Its ranks count in their last place until the
    others end a step, which shows that they continue.
    """
    streams = [stream for stream in view.active() if not stream.halt_seen]
    heard = [row.advanced_mono for row in streams if not view.cut_off(row, mono)]
    moved_mono = max(heard, default=0.0)
    streams = [r for r in streams if not view.cut_off(r, mono) or r.heard_mono >= moved_mono]
    m = view.median_step_s()
    stays = [stay for stream in streams if (stay := stay_of(view, stream, m, mono)) is not None]
    if not stays:
        return None
    lowest = min(stays, key=lambda stay: stay.stream.step).stream
    upto = lowest.step + lowest.pace.stride
    group = [stay for stay in stays if stay.stream.step <= upto]
    group = [stay for stay in group if stay.place not in _ENDED] or group
    done = [stream.done_mono for stream in view.streams.values() if stream.done]
    moved_mono = max([*(stay.since_mono for stay in group), *done])
    top = max(streams, key=lambda stream: stream.step)
    if m is not None and top.step > upto:
        moved_mono = max(moved_mono, top.advanced_mono - m * (top.step - upto))
    group.sort(key=lambda stay: -stay.limit.seconds)
    return Standstill(group, [stay.stream for stay in group], mono - moved_mono)


def _cycle_limit(view: View, stream: RankStream) -> Limit:
    """Return how long a rank may go from section to section without ending a step."""
    m = view.median_step_s()
    places = _CYCLE if stream.completed_steps else (*_CYCLE, Place.BOOT, Place.FIRST_STEP)
    limits = (view.run.patience[row].limit(_basis_s(view, stream, row, m)) for row in places)
    return Limit(CYCLE_X * added([row.seconds for row in limits if row]), Source.ADAPTIVE)


def corroborated(view: View, streams: Sequence[RankStream], mono: float, silence: bool) -> bool:
    """Whether something besides the clock shows that ranks stand.

    A process is held. Or two dumps of every rank are the same, and a minority that uses no CPU
    stands outside of the collective, by the flight recorders or else by every native stack. Or, if
    `silence` counts, one rank alone is silent. Otherwise it may only hold its interpreter.
    """
    processes = view.processes
    if any(view.held(stream.rank, mono) for stream in streams):
        return True
    if silence and view.speak_on(streams, view.fresh(streams, mono)):
        return True
    if not all(processes.stands(stream.rank, stream.advanced_mono, mono) for stream in streams):
        return False
    waits = {s.rank: processes.waits(s.rank, s.advanced_mono) for s in streams}
    apart = [rank for rank in recorded(view, streams).get("behind", ()) if rank in waits]
    if not apart and None not in waits.values():
        apart = [rank for rank, waiting in waits.items() if waiting is False]
    few = 0 < 2 * len(apart) <= len(streams)
    return few and all(processes.idles(rank) and not waits[rank] for rank in apart)


def idle(view: View, streams: Sequence[RankStream], mono: float) -> bool:
    """Whether the last two dumps of each rank are the same, and it uses no CPU in between."""
    look = view.processes
    return all(look.stands(s.rank, s.advanced_mono, mono) and look.idles(s.rank) for s in streams)


def witnessed(view: View, streams: Sequence[RankStream], culprit: RankStream, mono: float) -> bool:
    """Whether a missed deadline is the ranks' own, and not the loss of their lines.

    All ranks silent at once may be the transport. That is unknown until a probe shows the culprit
    held, or until the silence has lasted ALL_SILENT_S with living processes. A disk that refuses
    lines explains any silence.
    """
    if view.held(culprit.rank, mono):
        return True
    if not view.watched:
        return view.all_silent_s(mono) == 0.0
    if view.lines_are_refused():
        return bool(view.fresh([culprit], mono))
    if view.fresh(streams, mono):
        return True
    if any(view.processes.of(row.rank).state is ProcessState.UNKNOWN for row in streams):
        return False
    return mono - max(row.heard_mono for row in streams) > ALL_SILENT_S


def overdue(view: View, tick: Tick) -> list[Finding]:
    """Return the finding about the ranks that stand longest, of all deadlines."""
    group = standstill(view, tick.mono)
    if group is None:
        return []
    longest, halt, suspect = group.stays[0], _halt_due(view, group, tick.mono), None
    if longest.suspect_s is not None and group.stood_s > longest.suspect_s:
        limit = Limit(longest.suspect_s, longest.limit.source)
        suspect = Due(Severity.SUSPECT, group.stood_s, limit)
    culprit = name_culprit(view, group.streams, tick.mono) if halt or suspect else None
    if culprit is None:
        return []
    if halt is not None and witnessed(view, group.streams, culprit.stream, tick.mono):
        return [_finding(view, tick, group, culprit, halt)]
    return [] if suspect is None else [_finding(view, tick, group, culprit, suspect)]


def _halt_due(view: View, group: Standstill, mono: float) -> Due | None:
    """Return the limit that halts: an earlier one if more than the clock shows a stall."""
    limit, places = group.stays[0].limit, {stay.place for stay in group.stays}
    early = view.run.patience[Place.CORROBORATED].limit(view.median_step_s())
    if early is not None and places <= _LOCKSTEP:
        is_due = early.seconds < min(limit.seconds, group.stood_s)
        late = Limit(max(IDLE_S, 2.0 * early.seconds), early.source)
        if is_due and corroborated(view, group.streams, mono, Place.COMPUTE in places):
            limit = early
        elif late.seconds < min(limit.seconds, group.stood_s) and idle(view, group.streams, mono):
            limit = late
    if group.stood_s > limit.seconds:
        return Due(Severity.HALT, group.stood_s, limit)
    lowest = min(group.streams, key=lambda stream: stream.step)
    if not lowest.labelled or lowest.completed >= view.run.order.last_step:
        return None
    step_s = mono - max(stream.advanced_mono for stream in group.streams)
    if step_s <= CYCLE_X * (view.run.patience[Place.CHECKPOINT].seconds or 0.0):
        return None  # a part of the limit, which is asked for at each tick
    cycle = _cycle_limit(view, lowest)
    return Due(Severity.HALT, step_s, cycle, "ended no step") if step_s > cycle.seconds else None


def _finding(view: View, tick: Tick, group: Standstill, culprit: Culprit, due: Due) -> Finding:
    """Return the finding; the culprit's place says which detector reports it."""
    stream, what = culprit.stream, due.what
    place = next(stay.place for stay in group.stays if stay.stream is stream)
    where = place if place in _COMPUTES | STARTS else f"{place}{stream.section_seq}"
    cycle = "" if what == STOOD else "/cycle"
    ended = f"after step {stream.completed}, the last, the run"
    who = ended if place in _ENDED else f"step {stream.step}"
    finding = found(
        view,
        detector_of(place, what),
        due.severity,
        episode=f"rank{stream.rank}/{stream.boot}/{where}/step{stream.step}{cycle}",
        at=tick.ts,
        stream=stream,
        rank=stream.rank if culprit.named else None,
        value=due.stood_s,
        threshold=due.limit.seconds,
        source=due.limit.source,
        held=culprit.held,
        text=f"{who} has {what} for {due.stood_s:.1f} s (limit {due.limit.seconds:.1f} s):"
        f" {culprit.who} is in {stream.section or 'no section'}{culprit.why}{culprit.place}",
    )
    return finding if place in _PAUSES or culprit.why else blame_who_left(view, finding)


def detector_of(place: Place, what: str = STOOD) -> Name:
    """Return the detector that reports a place."""
    if place in STARTS:
        return Name.NO_FIRST_HEARTBEAT
    return Name.STALL if place in _COMPUTES and what == STOOD else Name.SECTION_DEADLINE


def without_line(view: View) -> list[int]:
    """Return the living ranks that never sent a line."""
    return [
        rank
        for rank in range(view.run.order.world_size)
        if rank not in view.streams and not view.processes.of(rank).dead
    ]


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
        findings = [*_unheard(view, tick), *_lingering(view, tick), *overdue(view, tick)]
        return own, [row for row in findings if row.detector in self.reported]

    def armed(self, own: None, view: View) -> bool:
        return bool(view.active()) or (view.watched and bool(without_line(view)))

    def near(self, own: None, view: View, mono: float) -> Near:
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
        rank=last.rank if len(left) == 1 else None,
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
        ranks = [stream for stream in view.active() if stream.labelled]
        limit_s = view.run.patience[Place.SILENCE].seconds
        if not ranks or not view.watched:
            return Near(blind=NOTHING_YET)
        return Near.in_time(mono - min(stream.heard_mono for stream in ranks), limit_s)

    def armed(self, own: None, view: View) -> bool:
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
