"""D6: which rank is the culprit? The one behind; it names the culprit of D2 to D5.

A held (stopped, uninterruptible) rank is the culprit by its state, unless the one behind stood long
before that; else a rank that alone entered a
collective while every other stands in another, as the flight recorders tell; else the lowest (step,
collectives, sections of the step), by more than these differ by when all is well; but one rank may
save or evaluate for all, and is waited for. In DDP's
backward the innocent rank's Python stack shows no collective, hence the counter and, on a tie, what
else tells the ranks apart: one that is silent while its peers speak, the one of which the flight
recorders of all ranks say that it has not come to the collective that the others stand in, or the
native stack of the one that does not wait in a collective. Where nothing does, no rank is named: to
accuse the lowest number would send a person to the wrong host. One rank alone in a section that
those behind are not known to enter (it logs, it reads for all) tells nothing either. Nor is one
named while a node is cut off: it may be what the others wait for. Who said `done` before the
others, and lives on, is who they wait for.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from gonogo.contract.canonical import added
from gonogo.contract.finding import Finding
from gonogo.contract.heartbeat import COMPUTE_SECTIONS, NON_TRAINING_SECTIONS, Section
from gonogo.contract.outcome import Detector as Name
from gonogo.watch.detector import Detector
from gonogo.watch.processes import STOPPED_AFTER_S
from gonogo.watch.stream import RankStream
from gonogo.watch.view import View

COLLECTIVES = "collectives"
"""Kind of the observation: `gonogo.contract.collectives.Standing`."""
MOST_TIED = 8
"""Ranks that are listed where one of them is the culprit."""
STOOD_X = 1.5
"""Times the median step that a rank behind has stood when another is held: then the latter is not
why. Within less the two may have gone on side by side."""

_OWN_WORK = NON_TRAINING_SECTIONS | {Section.DATA}
"""Sections in which a rank need not wait for another."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """The rank that the others wait for, or one of several that nothing tells apart."""

    stream: RankStream
    named: bool
    """Whether it may be named."""
    unheard: tuple[int, ...] = ()
    """Nodes that are cut off: what is waited for may be there."""
    tied: tuple[int, ...] = ()
    """The ranks that nothing tells apart, where others are known to be none of them."""

    def __str__(self) -> str:
        if self.named:
            return f"rank {self.stream.rank}"
        who = "a rank that nothing tells apart"
        if 0 < len(self.tied) <= MOST_TIED:
            who = f"one of ranks {', '.join(map(str, self.tied))}"
        nodes = ", ".join(map(str, self.unheard))
        return f"{who} (nothing is heard of node {nodes})" if nodes else who


def name_culprit(view: View, among: Sequence[RankStream], mono: float) -> Culprit | None:
    """Return the rank that the others wait for, or None when there is none.

    Args:
        view: what is known.
        among: ranks of which one is behind.
        mono: the watcher's clock, for who has fallen silent.
    """
    gone = [stream.rank for stream in view.active() if view.cut_off(stream, mono)]
    cut = tuple(sorted({view.run.order.node_of(rank) for rank in gone}))
    if len(among) < 2:
        return Culprit(among[0], named=not cut, unheard=cut) if among else None
    held = _held(view, among, mono)
    strayed = None if held else stray(view, among)
    if strayed is not None:
        return Culprit(strayed, named=True)
    tied = _behind(held or among)
    acting = None if held else acts_for_all(among, tied)
    if acting is not None:
        rest = [stream for stream in tied if stream is not acting]
        return _acting(view, acting, among, rest, mono)
    tied = _told_apart(view, tied, mono)
    named = bool(held) or (len(tied) == 1 and not cut)
    if named:
        return Culprit(min(tied, key=lambda stream: stream.rank), named=True)
    last = max(tied, key=_time_left)
    fewer = sorted(row.rank for row in tied) if len(tied) < len(among) else []
    return Culprit(last, named=False, unheard=cut, tied=tuple(fewer))


def _time_left(stream: RankStream) -> tuple[bool, bool, float, int]:
    """Return what sorts ranks that nothing tells apart: the one with the most time left comes last.

    One that saves, evaluates or fetches may be what the others wait for; else who moved last.
    """
    section = stream.section
    pauses, fetches = section in NON_TRAINING_SECTIONS, section == Section.DATA
    return pauses, fetches, stream.section_mono, -stream.rank


def _held(view: View, among: Sequence[RankStream], mono: float) -> list[RankStream]:
    """Return the ranks that are held and may be why the others stand.

    Who waits in a collective may be stopped there, by a debugger that is to tell why the run
    stands: the culprit remains the rank behind it, which had stood for long by then.
    """
    held = [stream for stream in among if view.held(stream.rank, mono)]
    m = view.median_step_s() if held else None
    if m is None:
        return held
    behind = _behind(among)
    if any(stream in held for stream in behind):
        return held
    since_mono = max(max(stream.section_mono, stream.advanced_mono) for stream in behind)
    least_s = min(STOPPED_AFTER_S, view.run.watch.stall.suspect_s)
    stood_mono = since_mono + max(least_s, STOOD_X * m)
    return [s for s in held if (view.processes.of(s.rank).held_mono or 0.0) <= stood_mono]


def _behind(among: Sequence[RankStream]) -> list[RankStream]:
    """Return the ranks that are furthest behind: by step, then collectives, then sections.

    A count tells ranks apart by no less than what it differs by when all is well: the ranks of a
    pipeline enter other collectives, and one rank may name a section (a log) that others do not.
    Who was started anew counts collectives anew: it has entered fewer than its peers for ever.
    """
    lowest = min(stream.step for stream in among)
    tied = [stream for stream in among if stream.step == lowest]
    if all(_counts_collectives(stream, tied) for stream in tied):
        ended = {stream.ended_at[0] for stream in tied}
        since_end = len(ended) == 1 and 0 not in ended
        if since_end or len({stream.from_step for stream in tied}) == 1:
            of = RankStream.collectives if since_end else _all_collectives
            tied = _lowest(among, tied, [of(stream) for stream in tied], 2)
    sections = [stream.section_seq - stream.step_section_seq for stream in tied]
    behind = _lowest(among, tied, sections, 1)
    known = {stream.rank for stream in behind}
    apart = [
        stream
        for stream in tied
        if stream.rank not in known and not all(_comes_to(row, stream) for row in behind)
    ]
    behind += apart
    return _not_back(among, behind) or behind


def _not_back(among: Sequence[RankStream], behind: Sequence[RankStream]) -> list[RankStream]:
    """Return the ranks that save or evaluate while all who seem to be behind are back from that.

    A step that starts anew after a pause counts none of the pause's sections; who is in it has
    counted one, but is not ahead. Of several, who is back from the pause of another is left out.
    """
    there: dict[_Pause, list[RankStream]] = {}
    for stream in among:
        if stream.section in NON_TRAINING_SECTIONS:
            there.setdefault(_pause_of(stream), []).append(stream)
    away = {}
    for pause, streams in there.items():
        rest = [row for row in behind if row.section != pause.section or _is_back(row, pause)]
        if rest and all(_is_back(row, pause) for row in rest):
            away[pause] = streams
    known = [stream for streams in away.values() for stream in streams]
    return [row for row in known if not any(_is_back(row, pause) for pause in away)] or known


class _Pause(NamedTuple):
    """Where ranks are that save or evaluate."""

    step: int
    section: str | None
    left: int
    """How often they have left such a section at that step."""


def _pause_of(stream: RankStream) -> _Pause:
    left = stream.left.count(stream.section) if stream.left_step == stream.step else 0
    return _Pause(stream.step, stream.section, left)


def _is_back(stream: RankStream, pause: _Pause) -> bool:
    """Whether a rank has come back from where others save or evaluate, at their step.

    It has left such a section there more often. When that was tells nothing: who comes late to an
    evaluation, or evaluates for longer before it saves, is in there when its peers have long left.
    """
    return stream.left_step == pause.step and stream.left.count(pause.section) > pause.left


def _comes_to(stream: RankStream, ahead: RankStream) -> bool:
    """Whether a rank is known to come to where one is that has been in more sections of the step.

    It stands in a section itself, has been where the other is, or usually has as many in a step.
    Else the other may be there alone: one rank logs, or reads for all, and either may stand. In a
    first step only where the other stands in such a section, and the rank has named none yet. Who
    saves or evaluates may act for all (`acts_for_all`).
    """
    section = ahead.section
    if stream.section is not None or section in NON_TRAINING_SECTIONS or section in stream.places:
        return True
    if not stream.completed_steps:
        named = any(name != Section.BOOT for name in stream.places)
        return named or section is None or section in COMPUTE_SECTIONS
    count = ahead.section_seq - ahead.step_section_seq
    usual = [row[1] for row in stream.step_counts]
    return bool(usual) and statistics.median(usual) >= count


def _counts_collectives(stream: RankStream, among: Sequence[RankStream]) -> bool:
    """Whether a rank tells its collectives: it told one, or the others did not in each step.

    Before its first step has ended it may be on its way to the first one, if it says that it has
    entered none; and if it says nothing, before its first step.
    """
    if stream.tells_collectives and not stream.completed_steps:
        return True
    most = max(row.collective_seq for row in among)
    return stream.collective_seq > 0 or most <= (stream.completed_steps if stream.step else 1)


def _all_collectives(stream: RankStream) -> int:
    return stream.collective_seq


def _lowest(
    among: Sequence[RankStream], tied: list[RankStream], counts: list[int], column: int
) -> list[RankStream]:
    """Return those whose count is the lowest, or no more than a usual difference above it."""
    least = min(counts)
    if least == max(counts):
        return tied
    upto = least + _spread(among, column)
    return [row for row, count in zip(tied, counts, strict=True) if count <= upto]


def _spread(among: Sequence[RankStream], column: int) -> int:
    """Return the most that a count of ranks differed by in a step that all of them ended."""
    told: dict[int, list[int]] = {}
    for stream in among:
        for row in stream.step_counts:
            told.setdefault(row[0], []).append(row[column])
    whole = [row for row in told.values() if len(row) == len(among) and min(row) >= 0]
    return max((max(row) - min(row) for row in whole), default=0)


def _acting(
    view: View,
    acting: RankStream,
    among: Sequence[RankStream],
    behind: Sequence[RankStream],
    mono: float,
) -> Culprit:
    """Return the rank that acts for all; named unless those behind usually do the same, or should.

    Where that collective is not counted nobody knows whether they wait for it, or it for them. Who
    is silent, or is seen to stand elsewhere than in a collective, does not wait.
    """
    if _wait(acting, behind):
        return Culprit(acting, named=True)
    if not _expected(acting, behind) and _is_alone(view, acting, among, behind):
        return Culprit(acting, named=True)
    apart = _told_apart(view, [acting, *behind], mono)
    if len(apart) == 1 and apart[0] is not acting:
        return Culprit(apart[0], named=True)
    return Culprit(acting, named=_not_come(view, [acting, *behind]) == [acting])


def _is_alone(
    view: View, acting: RankStream, among: Sequence[RankStream], behind: Sequence[RankStream]
) -> bool:
    """Whether nothing says that all were to come where the one that acts is.

    It is seen to wait there, most ranks are there, or one behind has such work of its own.
    """
    waits = view.processes.waits(acting.rank, acting.section_mono)
    there = sum(row.section == acting.section for row in among)
    works = any(row.section in _OWN_WORK for row in behind)
    return not (waits or 2 * there > len(among) or works)


def _told_apart(view: View, tied: list[RankStream], mono: float) -> list[RankStream]:
    """Return those of equal ranks that are silent, or that alone do not wait; else all of them."""
    fresh = view.fresh(tied, mono)
    if view.speak_on(tied, fresh):
        return [stream for stream in tied if stream not in fresh]
    late = _not_come(view, tied)
    if late:
        wait = any(view.processes.waits(row.rank, row.section_mono) for row in late)
        return tied if wait else late  # stack and recorder contradict each other
    return [s for s in tied if view.processes.waits(s.rank, s.section_mono) is False] or tied


def acts_for_all(among: Sequence[RankStream], behind: Sequence[RankStream]) -> RankStream | None:
    """Return the rank that saves or evaluates for all, while those behind it wait, if one does.

    Its section puts it ahead of ranks that never enter one of this name: `if rank == 0: save()`,
    then a barrier; or beside them, where it goes there straight from a section that they leave,
    too. Who has entered such a section before is expected to again, and is behind, unless it has
    entered a collective since, in which it waits for the one that acts, or may have (not every
    trainer counts them all): it stands in no section. Then the one that acts has its time.
    """
    pauses = {_pause_of(row) for row in behind}
    for stream in among:
        rest = [row for row in behind if row is not stream]
        if not rest or stream.section not in NON_TRAINING_SECTIONS:
            continue
        if not all(_has_ended(row, stream) for row in rest):
            continue
        if any(_is_back(stream, pause) for pause in pauses):
            continue  # who is in there does not wait: it still does what this one has done
        if len(rest) < len(behind):  # in as many sections: it came there straight from another
            if not _expected(stream, rest) and _may_wait(stream, rest):
                return stream
        elif not _expected(stream, rest) or _wait(stream, rest) or _may_wait(stream, rest):
            return stream
    return None


def _has_ended(stream: RankStream, acting: RankStream) -> bool:
    """Whether a rank has ended what the one that acts has, or stands in no section of that step.

    Lines come in another order now and then, and who waits says nothing that would show it: the end
    of the step may be on its way, of the one that waits or of the one that acts.
    """
    if stream.completed in (acting.completed, acting.step):
        return True
    if acting.completed < acting.step <= stream.step:
        return True  # both have opened the next step
    return stream.step == acting.completed and stream.section is None


def _expected(acting: RankStream, behind: Sequence[RankStream]) -> bool:
    """Whether one of those behind has been in such a section itself, or is in it now."""
    here = any(row.section == acting.section for row in behind)
    return here or any(name == acting.section for row in behind for name, _ in row.section_times)


def _wait(acting: RankStream, behind: Sequence[RankStream]) -> bool:
    """Whether those behind have entered a collective that the one that acts has not."""
    return all(row.collective_seq > acting.collective_seq for row in behind)


def _may_wait(acting: RankStream, behind: Sequence[RankStream]) -> bool:
    """Whether they may, in a collective that is not counted: they stand in no section's work."""
    return all(
        row.section is None and row.collective_seq >= acting.collective_seq for row in behind
    )


def freed_mono(view: View, culprit: RankStream, among: Sequence[RankStream], mono: float) -> float:
    """Return when the last of its peers left what it may have waited for.

    That is a checkpoint or an evaluation, a loader that took longer than a step, or what took long
    in no section: many save and name nothing. Who waits for one rank that saves or evaluates for
    all, or is fed late, goes on a moment later than that one, which may be done by then. Peers
    that are further ahead than by one step do not run in lockstep with it, or its lines come late:
    then what they did at its own step counts, be it not the last that they did. Ranks that tell
    every tenth step or so are abreast within as many. Of a silent rank that may have waited when
    it was heard last, the time since then is all that counts.
    """
    waited = [culprit.heard_mono] if _waited(view, culprit, among, mono) else []
    peers = [*among, *(row for row in view.streams.values() if row.done)]
    left = [_left_mono(row) for row in peers if row is not culprit and _abreast(row, culprit)]
    others = [row for row in peers if row is not culprit]
    fed = [row.fed_mono for row in others if _waits_at(row.fed_step, culprit)]
    long = [at for row in others for step, at in row.long_waits if _waits_at(step, culprit)]
    return max([*waited, *left, *fed, *long], default=0.0)


def went_on_mono(culprit: RankStream, among: Sequence[RankStream]) -> float:
    """Return when the last of its peers ended a step that a rank may have waited for.

    In lockstep they wait for it a moment later, and their steps stand still. One that has been so
    slow is heard first, perhaps: those who waited for it have stood since then. It may have taken
    more steps since, where nobody waits at each of them.
    """
    near = (row for row in among if row is not culprit and culprit.step <= row.step)
    return max((passed_mono(row, culprit) for row in near), default=0.0)


def passed_mono(stream: RankStream, culprit: RankStream) -> float:
    """Return when a rank that is not behind came beside another, by what its last steps took.

    0.0 where it is further ahead than its last steps tell.
    """
    pace, upto = stream.pace, culprit.step + culprit.pace.stride
    count = -(-max(0, stream.step - upto) // pace.stride)
    if count > len(pace.times_s):
        return 0.0
    return stream.advanced_mono - added(islice(reversed(pace.times_s), count)) * pace.stride


def _left_mono(stream: RankStream) -> float:
    """Return when a rank last left a checkpoint or an evaluation, or was done in one."""
    ended = stream.done and stream.section in NON_TRAINING_SECTIONS
    return stream.done_mono if ended else stream.left_mono


def _waited(view: View, culprit: RankStream, among: Sequence[RankStream], mono: float) -> bool:
    """Whether only the silence of a rank tells it from one that waits: its lines may come late.

    A peer acts for all, or has ended steps that lockstep would not let it end without the rank.
    """
    if view.fresh([culprit], mono) or view.held(culprit.rank, mono):
        return False
    if max(row.step for row in among) > culprit.step + culprit.pace.stride:
        return True
    return acts_for_all(among, [culprit]) is not None


def _abreast(stream: RankStream, culprit: RankStream) -> bool:
    upto = culprit.step + culprit.pace.stride
    return culprit.step <= stream.step <= upto or _waits_at(stream.left_step, culprit)


def _waits_at(step: int, culprit: RankStream) -> bool:
    """Whether what a peer did at this step is what a rank may have waited for.

    Also where the peer was behind: on the micro-steps of gradient accumulation nobody waits, so who
    comes to the next collective may be many of them ahead.
    """
    return step <= culprit.step + culprit.pace.stride


def stray(view: View, among: Sequence[RankStream]) -> RankStream | None:
    """Return the rank that alone entered a collective in which it still stands, if there is one.

    What the ranks told before one of them advanced again is no longer true.
    """
    only = _told(view, among).get("only")
    return next((stream for stream in among if stream.rank == only), None)


def _told(view: View, among: Iterable[RankStream]) -> Mapping[str, Any]:
    """Return what the flight recorders told since the last of `among` advanced."""
    observed = view.observed.get(COLLECTIVES)
    payload = None if observed is None else observed.payload
    asked_mono = payload.get("asked_mono") if isinstance(payload, Mapping) else None
    if not isinstance(payload, Mapping) or not isinstance(asked_mono, int | float):
        return {}
    return {} if any(row.advanced_mono > asked_mono for row in among) else payload


def _not_come(view: View, among: Sequence[RankStream]) -> list[RankStream]:
    """Return the ranks for which all others wait in collectives, as the dumps of all ranks tell.

    None where they name one that is not in question: it has finished, or its lines are ahead.
    """
    ranks = _told(view, view.streams.values()).get("behind")
    if not isinstance(ranks, list):
        return []
    late = [stream for stream in among if stream.rank in ranks]
    return late if len(late) == len(ranks) else []


def late_text(view: View, stream: RankStream) -> str:
    """Return what a finding adds of a rank that has not come to the others' collective, or ""."""
    late = _not_come(view, list(view.streams.values()))
    return f": {stray_text(view)}" if any(row is stream for row in late) else ""


def stray_text(view: View) -> str:
    """Return the sentence about the collectives that came with the last observation."""
    observed = view.observed.get(COLLECTIVES)
    payload = observed.payload if observed is not None else None
    return str(payload.get("text", "")) if isinstance(payload, Mapping) else ""


def blame_who_left(view: View, finding: Finding) -> Finding:
    """Return the finding of ranks that wait for one that said `done` before them, blaming that one.

    It had fewer batches than they, or left its loop too early, and its process lives. One that
    exits is D1's.
    """
    last = view.run.order.steps
    left = [
        stream
        for rank, stream in view.streams.items()
        if stream.done and not stream.halt_seen and not view.processes.of(rank).dead
        if stream.completed + 1 == finding.step and (last is None or stream.completed < last)
    ]
    if not left or not view.active():
        return finding
    gone = min(left, key=lambda stream: stream.rank)
    waits = "" if finding.rank is None else f", and rank {finding.rank} waits for it"
    text = f"{finding.text}: rank {gone.rank} was done after step {gone.completed}{waits}"
    return finding.model_copy(update={"rank": gone.rank, "section": gone.section, "text": text})


class RankDivergence(Detector[None]):
    """D6: names the culprit for the others and finds nothing of its own."""

    name = Name.RANK_DIVERGENCE
    sentence = (
        "Names the culprit of the deadlines: the rank that is furthest behind (by step, then "
        "collectives, then sections, and by more than these differ by in steps that all have "
        "ended), held (where the one behind had not stood for 1.5 median steps by then), alone in "
        "a collective, or, as the flight recorders of all ranks tell, the one that has not come to "
        "where the others stand; where nothing tells the ranks apart, none is named. One that "
        "saves or evaluates while the others are in no section may act for all, and has its time, "
        "as one has that still does what those behind have come back from; "
        "those who may have waited for it have stood since it came back. One that said `done` a "
        "step before those who stand is the culprit."
    )

    def armed(self, own: None, view: View) -> bool:
        """Whether every rank has told where it is."""
        return len(view.streams) == view.run.order.world_size
