"""Culprit (D6): which rank do the others wait for?

The evidence, in this order:

1. A process is stopped, dead or in uninterruptible sleep.
2. One rank alone entered a collective, by the flight recorders.
3. Positions differ: step, then collectives, then sections of the step.
4. One rank is silent while the others send lines.
5. The flight recorders name a rank that has not come to the collective of the others.
6. One rank's native stack is in no collective.

If nothing distinguishes the ranks, no rank is named. An innocent rank is never named.

Not covered: a debugger that stops a rank which waits for another one; ranks that count collectives
differently from step to step, or of which one has entered none; more than one rank that saves or
evaluates for all.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gonogo.contract.finding import Finding
from gonogo.contract.heartbeat import NON_TRAINING_SECTIONS, Section
from gonogo.contract.outcome import Detector as Name
from gonogo.timeline.rank import RankStream
from gonogo.watch.detector import Detector
from gonogo.watch.view import View

COLLECTIVES = "collectives"
"""Kind of the observation: `gonogo.contract.collectives.Standing`."""
MOST_TIED = 8
"""Ranks that a finding lists if one of them is the culprit."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """The rank that the others wait for, or one of several that nothing distinguishes."""

    stream: RankStream
    named: bool
    """Whether a finding may name the rank."""
    unheard: tuple[int, ...] = ()
    """Nodes without a connection: the culprit may be there."""
    tied: tuple[int, ...] = ()
    """The ranks that nothing distinguishes, if others are known to be innocent."""

    def __str__(self) -> str:
        if self.named:
            return f"rank {self.stream.rank}"
        who = "a rank that nothing tells apart"
        if 0 < len(self.tied) <= MOST_TIED:
            who = f"one of ranks {', '.join(map(str, self.tied))}"
        nodes = ", ".join(map(str, self.unheard))
        return f"{who} (nothing is heard of node {nodes})" if nodes else who


def name_culprit(view: View, among: Sequence[RankStream], mono: float) -> Culprit | None:
    """Return the rank that the others wait for, or None if `among` is empty.

    Args:
        view: what is known.
        among: the ranks that stand.
        mono: the watcher's clock.
    """
    gone = [stream.rank for stream in view.active() if view.cut_off(stream, mono)]
    cut = tuple(sorted({view.run.order.node_of(rank) for rank in gone}))
    if len(among) < 2:
        return Culprit(among[0], named=not cut, unheard=cut) if among else None
    held = [stream for stream in among if view.held(stream.rank, mono)]
    strayed = None if held else stray(view, among)
    if strayed is not None:
        return Culprit(strayed, named=True)
    suspects = _behind(held or among)
    if not held:
        suspects = _with_pausing(view, among, suspects)
        suspects = _distinguished(view, suspects, mono)
    if held or (len(suspects) == 1 and not cut):
        return Culprit(min(suspects, key=lambda stream: stream.rank), named=True)
    last = max(suspects, key=_time_left)
    fewer = sorted(row.rank for row in suspects) if len(suspects) < len(among) else []
    return Culprit(last, named=False, unheard=cut, tied=tuple(fewer))


def _time_left(stream: RankStream) -> tuple[bool, bool, float, int]:
    """Return a sort key: the rank whose place may last longest comes last."""
    section = stream.section
    pauses, fetches = section in NON_TRAINING_SECTIONS, section == Section.DATA
    return pauses, fetches, stream.section_mono, -stream.rank


def _behind(among: Sequence[RankStream]) -> list[RankStream]:
    """Return the ranks that are furthest behind: by step, then collectives, then sections.

    A count distinguishes ranks only by more than it differed in steps that all ranks ended. Ranks
    of a pipeline enter different collectives, and one rank may log for all.
    """
    lowest = min(stream.step for stream in among)
    tied = [stream for stream in among if stream.step == lowest]
    ended = {stream.ended_at[0] for stream in tied}
    since_end = len(ended) == 1 and 0 not in ended
    comparable = since_end or len({stream.from_step for stream in tied}) == 1
    if comparable and all(stream.collective_seq for stream in tied):
        counts = [row.collectives() if since_end else row.collective_seq for row in tied]
        tied = _lowest(among, tied, counts, 2)
    sections = [stream.section_seq - stream.step_section_seq for stream in tied]
    behind = _lowest(among, tied, sections, 1)
    ahead = [stream for stream in tied if not _is_among(stream, behind)]
    return behind + [row for row in ahead if not all(_comes_to(other, row) for other in behind)]


def _is_among(stream: RankStream, streams: Iterable[RankStream]) -> bool:
    return any(row is stream for row in streams)


def _comes_to(stream: RankStream, ahead: RankStream) -> bool:
    """Whether a rank that counts fewer sections would enter the section of another rank.

    A rank in no section may wait for one that logs or reads alone. So it must have been in such a
    section before, or usually enter as many sections in a step.
    """
    section = ahead.section
    if stream.section is not None or section in NON_TRAINING_SECTIONS or section in stream.places:
        return True
    usual = [row[1] for row in stream.step_counts]
    count = ahead.section_seq - ahead.step_section_seq
    return bool(usual) and statistics.median(usual) >= count


def _lowest(
    among: Sequence[RankStream], tied: list[RankStream], counts: list[int], column: int
) -> list[RankStream]:
    """Return the ranks whose count is the lowest, or no more than a usual difference above it."""
    least = min(counts)
    if least == max(counts):
        return tied
    upto = least + _spread(among, column)
    return [row for row, count in zip(tied, counts, strict=True) if count <= upto]


def _spread(among: Sequence[RankStream], column: int) -> int:
    """Return the largest difference of a count between ranks in a step that all of them ended."""
    by_step: dict[int, list[int]] = {}
    for stream in among:
        for row in stream.step_counts:
            by_step.setdefault(row[0], []).append(row[column])
    whole = [row for row in by_step.values() if len(row) == len(among) and min(row) >= 0]
    return max((max(row) - min(row) for row in whole), default=0)


def _with_pausing(
    view: View, among: Sequence[RankStream], behind: list[RankStream]
) -> list[RankStream]:
    """Return the suspects if a rank saves or evaluates while those behind it do not.

    One rank may save for all, and the others wait. They are behind by their sections, and innocent.
    """
    pausing = [row for row in among if row.section in NON_TRAINING_SECTIONS]
    if not pausing or any(row.section in NON_TRAINING_SECTIONS for row in behind):
        return behind
    if any(_has_been(row, ahead.section) for row in behind for ahead in pausing):
        return behind  # all ranks save or evaluate, and those behind have not come
    return pausing if len(pausing) == 1 else [*pausing, *behind]


def _has_been(stream: RankStream, section: str | None) -> bool:
    """Whether a rank has been in such a section."""
    return any(name == section for name, _ in stream.section_times)


def _distinguished(view: View, tied: list[RankStream], mono: float) -> list[RankStream]:
    """Return the ranks that are silent, or that alone do not wait; else all of them."""
    fresh = view.fresh(tied, mono)
    if view.speak_on(tied, fresh):
        return [stream for stream in tied if not _is_among(stream, fresh)]
    late = _not_come(view, tied)
    if late:
        wait = any(view.processes.waits(row.rank, row.section_mono) for row in late)
        return tied if wait else late  # stack and recorder contradict each other
    return [s for s in tied if view.processes.waits(s.rank, s.section_mono) is False] or tied


def stray(view: View, among: Sequence[RankStream]) -> RankStream | None:
    """Return the rank that alone entered a collective and still stands in it, if there is one."""
    only = _recorded(view, among).get("only")
    return next((stream for stream in among if stream.rank == only), None)


def _recorded(view: View, among: Iterable[RankStream]) -> Mapping[str, Any]:
    """Return what the flight recorders showed since the last of `among` advanced."""
    observed = view.observed.get(COLLECTIVES)
    payload = None if observed is None else observed.payload
    asked_mono = payload.get("asked_mono") if isinstance(payload, Mapping) else None
    if not isinstance(payload, Mapping) or not isinstance(asked_mono, int | float):
        return {}
    return {} if any(row.advanced_mono > asked_mono for row in among) else payload


def _not_come(view: View, among: Sequence[RankStream]) -> list[RankStream]:
    """Return the ranks for which all others wait in collectives, by the dumps of all ranks.

    Empty if the dumps name a rank that is not among the suspects.
    """
    ranks = _recorded(view, view.streams.values()).get("behind")
    if not isinstance(ranks, list):
        return []
    late = [stream for stream in among if stream.rank in ranks]
    return late if len(late) == len(ranks) else []


def collectives_text(view: View, among: Sequence[RankStream], stream: RankStream) -> str:
    """Return the sentence of the flight recorders about a rank; "" if they do not name it."""
    late = _not_come(view, list(view.streams.values()))
    if stray(view, among) is not stream and not any(row is stream for row in late):
        return ""
    payload = view.observed[COLLECTIVES].payload
    return f": {payload.get('text', '')}"


def blame_who_left(view: View, finding: Finding) -> Finding:
    """Return the finding, with the rank to blame that was done a step before the others.

    That rank had fewer batches, or left its loop too early, and its process still runs.
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
        "Names the culprit of the deadlines: a rank whose process is held; else a rank alone in a"
        " collective; else the rank that is furthest behind by step, collectives and sections; else"
        " the one that is silent, or that the flight recorders or native stacks show outside the"
        " collective. If nothing distinguishes the ranks, no rank is named. A rank that said"
        " `done` a step before the others is the culprit."
    )

    def armed(self, own: None, view: View) -> bool:
        """Whether every rank has sent a line."""
        return len(view.streams) == view.run.order.world_size
