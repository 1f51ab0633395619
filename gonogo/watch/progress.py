"""Progress (D2 to D5): has the run stood longer than its patience?

One mechanism serves all deadlines. Ranks at the lowest step, and those at most one step ahead, wait
for each other. This group stands since the last of its ranks changed its place or its step. It is
overdue when it has stood longer than the longest limit of its ranks. So a rank that waits for a
peer's checkpoint has the limit of a checkpoint, and needs no rule of its own.

The limits are those of the table of patience (`gonogo.contract.patience`) in the order. The place
of the culprit decides which detector reports. Only an advancing step is progress: a rank that goes
from section to section without ending a step is halted after twice the sum of all limits.

Not covered: ranks that hold their interpreters all at once are halted after ALL_SILENT_S; a rank
that goes from section to section after its last step (the deadline of the run
ends it); a rank without sections may stand as long as its table row says, whatever it does.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gonogo.contract.canonical import added
from gonogo.contract.finding import Finding, Severity, Source
from gonogo.contract.heartbeat import COMPUTE_SECTIONS, NON_TRAINING_SECTIONS, Section
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.patience import Place, Typical
from gonogo.contract.tick import ProcessState, Tick
from gonogo.timeline.rank import NAMED_SECTIONS, RankStream
from gonogo.watch.culprit import (
    Culprit,
    blame_who_left,
    collectives_text,
    name_culprit,
    stray,
)
from gonogo.watch.view import ALL_SILENT_S, View, found

CYCLE_X = 2.0
"""Times the sum of all limits within which a step must end."""
_CYCLE = (Place.DATA, Place.CHECKPOINT, Place.EVAL, Place.LOG, Place.NO_SECTION, Place.EARLY_STEPS)
STARTS = frozenset({Place.START, Place.BOOT, Place.FIRST_STEP, Place.PRINTED_RESTART})
MAY_BE_SILENT = STARTS | {
    Place.DATA, Place.CHECKPOINT, Place.EVAL, Place.NO_SECTION, Place.AFTER_LAST,
}  # fmt: skip
"""Places in which a rank may hold its interpreter, so that no thread sends lines."""
_COMPUTES = frozenset(
    {Place.EARLY_STEPS, Place.COMPUTE, Place.PRINTED_STEP, Place.PRINTED_AFTER_LAST}
)
_MEET = _COMPUTES | {Place.LOG, Place.NO_SECTION}
"""Places in which a rank may wait for one that has left."""
_LOCKSTEP = frozenset({Place.COMPUTE, Place.LOG, Place.NO_SECTION})
_ENDED = frozenset({Place.AFTER_LAST, Place.PRINTED_AFTER_LAST})


class PlaceLimit(NamedTuple):
    """How long a place may last, and where the number came from."""

    seconds: float
    source: Source


@dataclass(frozen=True, slots=True)
class Stay:
    """A rank in its place."""

    stream: RankStream
    place: Place
    since_mono: float
    limit_s: float
    source: Source
    suspect_s: float | None


@dataclass(frozen=True, slots=True)
class Standstill:
    """Ranks that wait for each other, and how long none of them has moved."""

    stays: list[Stay]
    stood_s: float
    limit: Stay
    """The stay with the longest limit."""

    @property
    def streams(self) -> list[RankStream]:
        """The ranks."""
        return [row.stream for row in self.stays]


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
    of = view.run.patience[place].of
    stride = stream.pace.stride
    if of is Typical.MEDIAN:
        return (m or stream.first_s) * stride
    if of is Typical.LONGEST:
        if stream.labelled:
            return stream.longest_apart_s
        return max(stream.pace.times_s, default=0.0) * stride
    if of is Typical.USUAL:
        section = Section.CHECKPOINT if place is Place.AFTER_LAST else Section(place)
        return usual_s(view, stream, section)
    return None


def usual_s(view: View, stream: RankStream, section: Section) -> float | None:
    """Return the median of what a section took; of a checkpoint also as its lines report it."""
    times_s = [took_s for name, took_s in stream.section_times if name == section]
    usual = statistics.median(times_s) if times_s else None
    saved_s = [took_s for row in view.streams.values() for took_s in row.saved_s]
    if section is Section.CHECKPOINT and saved_s:
        return max(usual or 0.0, statistics.median(saved_s))
    return usual


def stay_of(view: View, stream: RankStream, m: float | None, mono: float) -> Stay | None:
    """Return a rank in its place; None if the place has no limit."""
    place = place_of(view, stream)
    row, basis_s = view.run.patience[place], _basis_s(view, stream, place, m)
    limit = row.limit(basis_s)
    if limit is None:
        return None
    since_mono = _since_mono(view, stream, place, mono)
    return Stay(stream, place, since_mono, *limit, row.suspect(basis_s))


def standstill(view: View, mono: float) -> Standstill | None:
    """Return the ranks that wait for each other; None if no rank has a limit."""
    streams = followed(view, mono)
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
    longest = max(group, key=lambda stay: stay.limit_s)
    return Standstill(group, mono - moved_mono, longest)


def followed(view: View, mono: float) -> list[RankStream]:
    """Return the running ranks without those on a silent node that their peers have passed."""
    streams = [stream for stream in view.active() if not stream.halt_seen]
    heard = [stream for stream in streams if not view.cut_off(stream, mono)]
    if len(heard) == len(streams) or not heard:
        return streams
    moved_mono = max(stream.advanced_mono for stream in heard)
    ranks = {stream.rank for stream in heard}
    return [row for row in streams if row.rank in ranks or row.heard_mono >= moved_mono]


def _cycle_limit_s(view: View, stream: RankStream) -> float:
    """Return how long a rank may go from section to section without ending a step."""
    m = view.median_step_s()
    places = _CYCLE if stream.completed_steps else (*_CYCLE, Place.BOOT, Place.FIRST_STEP)
    limits = (view.run.patience[row].limit(_basis_s(view, stream, row, m)) for row in places)
    return CYCLE_X * added([limit[0] for limit in limits if limit is not None])


def _halts_after(view: View, group: Standstill, mono: float) -> PlaceLimit:
    """Return the limit of a standstill: an earlier one if more than the clock shows a stall."""
    usual = PlaceLimit(group.limit.limit_s, group.limit.source)
    places, row = {stay.place for stay in group.stays}, view.run.patience[Place.CORROBORATED]
    limit = row.limit(view.median_step_s())
    if limit is None or Place.COMPUTE not in places or not places <= _LOCKSTEP:
        return usual
    is_due = limit[0] < usual.seconds and group.stood_s > limit[0]
    return PlaceLimit(limit[0], row.source) if is_due and corroborated(view, group, mono) else usual


def corroborated(view: View, group: Standstill, mono: float) -> bool:
    """Whether something besides the clock shows that the run stands.

    A process is held; or a rank is silent while others send lines; or two dumps of every rank are
    the same, a minority stands outside the collective, and its main threads use no CPU.
    """
    streams, processes = group.streams, view.processes
    if any(view.held(stream.rank, mono) for stream in streams):
        return True
    if view.speak_on(streams, view.fresh(streams, mono)):
        return True
    if not all(processes.stands(stream.rank, stream.advanced_mono, mono) for stream in streams):
        return False
    waits = {s.rank: processes.waits(s.rank, s.advanced_mono) for s in streams}
    apart = [stream for stream in streams if waits[stream.rank] is False]
    if None in waits.values() or not apart or 2 * len(apart) > len(streams):
        return False
    return all(processes.idles(stream.rank) for stream in apart)


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
    """Return the findings about the ranks that stand longest, of all deadlines."""
    group = standstill(view, tick.mono)
    if group is None:
        return []
    stages, stood_s, suspect_s = [], group.stood_s, group.limit.suspect_s
    if suspect_s is not None and stood_s > suspect_s:
        limit = PlaceLimit(suspect_s, group.limit.source)
        stages.append((Severity.SUSPECT, limit, stood_s, "stood"))
    limit = _halts_after(view, group, tick.mono)
    if stood_s > limit.seconds:
        stages.append((Severity.HALT, limit, stood_s, "stood"))
    else:
        lowest = min(group.streams, key=lambda stream: stream.step)
        step_s = tick.mono - max(stream.advanced_mono for stream in group.streams)
        goes_on = lowest.labelled and lowest.completed < view.run.order.last_step
        if goes_on and step_s > (cycle_s := _cycle_limit_s(view, lowest)):
            limit = PlaceLimit(cycle_s, Source.ADAPTIVE)
            stages.append((Severity.HALT, limit, step_s, "ended no step"))
    culprit = name_culprit(view, group.streams, tick.mono) if stages else None
    if culprit is None:
        return []
    return [
        _finding(view, tick, group, culprit, *stage)
        for stage in stages
        if stage[0] is Severity.SUSPECT or witnessed(view, group.streams, culprit.stream, tick.mono)
    ]


def _finding(
    view: View,
    tick: Tick,
    group: Standstill,
    culprit: Culprit,
    severity: Severity,
    limit: PlaceLimit,
    stood_s: float,
    what: str,
) -> Finding:
    """Return one finding; the culprit's place says which detector reports it."""
    stream = culprit.stream
    place = next(stay.place for stay in group.stays if stay.stream is stream)
    where = place if place in _COMPUTES | STARTS else f"{place}{stream.section_seq}"
    cycle = "" if what == "stood" else "/cycle"
    missing = without_line(view) if place is Place.BOOT else []
    blamed = missing[0] if len(missing) == 1 else None
    text = f"step {stream.step} has {what} for {stood_s:.1f} s (limit {limit.seconds:.1f} s):"
    text = f"{text} {culprit} is in {stream.section or 'no section'}"
    text += collectives_text(view, group.streams, stream)
    if missing:
        text += f"; no line ever came from rank {', '.join(map(str, missing[:8]))}"
    finding = found(
        view,
        detector_of(place, what),
        severity,
        episode=f"rank{stream.rank}/{stream.boot}/{where}/step{stream.step}{cycle}",
        at=tick.ts,
        stream=None if blamed is not None else stream,
        rank=blamed,
        named=culprit.named and not missing,
        value=stood_s,
        threshold=limit.seconds,
        source=limit.source,
        since=stream.advanced_ts,
        text=text,
    )
    if stray(view, group.streams) is stream:
        return finding.model_copy(update={"section": None})
    return blame_who_left(view, finding) if place in _MEET else finding


def detector_of(place: Place, what: str = "stood") -> Name:
    """Return the detector that reports a place."""
    if place in STARTS:
        return Name.NO_FIRST_HEARTBEAT
    return Name.STALL if place in _COMPUTES and what == "stood" else Name.SECTION_DEADLINE


def without_line(view: View) -> list[int]:
    """Return the living ranks that never sent a line."""
    return [
        rank
        for rank in range(view.run.order.world_size)
        if rank not in view.streams and not view.processes.of(rank).dead
    ]
