"""Culprit (D6): which rank do the others wait for? `RankDivergence` lists the evidence.

An innocent rank is never named.

Not covered: a debugger that stops a waiting rank. Ranks that count collectives differently from
step to step, or of which one has entered none. More than one rank that saves or evaluates for all.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gonogo.contract.finding import Finding
from gonogo.contract.heartbeat import NON_TRAINING_SECTIONS
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.records import STATE_WORDS, ProcessState
from gonogo.timeline.rank import RankStream
from gonogo.watch.detector import Detector
from gonogo.watch.view import View

COLLECTIVES = "collectives"
"""Kind of the observation: `gonogo.contract.observation.Standing`."""
_LISTS = ("behind", "unfinished")
MOST_TIED = 8
"""Ranks that a finding lists if one of them is the culprit."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """The rank that the others wait for, or one of several that nothing distinguishes."""

    stream: RankStream
    named: bool
    """Whether a finding may name the rank."""
    who: str
    why: str = ""
    """What the flight recorders say of it."""
    place: str = ""
    """What its process and its stack say of it."""
    held: ProcessState | None = None


def name_culprit(view: View, among: Sequence[RankStream], mono: float) -> Culprit | None:
    """Return the rank that the others wait for, or None if `among` is empty."""
    if not among:
        return None
    held = [stream for stream in among if view.held(stream.rank, mono)]
    calls = recorded(view, among)
    direct = {calls.get("only"), *calls.get("unfinished", ())}
    alone = [] if held else [stream for stream in among if stream.rank in direct]
    suspects, behind = alone or _behind(held or among), calls.get("behind", [])
    if not held and not alone:
        suspects = _distinguished(view, suspects, behind, mono)
    gone = [stream.rank for stream in view.active() if view.cut_off(stream, mono)]
    by_recorder = alone or (len(suspects) == 1 and [suspects[0].rank] == behind)
    why = f": {calls.get('text', '')}" if by_recorder else ""
    if held or alone or (len(suspects) == 1 and not gone):
        stream = min(suspects, key=lambda stream: stream.rank)
        read = view.processes.stacks.get(stream.rank, ())
        fresh = bool(read) and read[-1].mono >= stream.section_mono and read[-1].probe.place
        state = view.processes.of(stream.rank).state if held else None
        place = f"; its process is {STATE_WORDS[state]}" if state else ""
        place += f"; its stack is in {fresh}" if fresh else ""
        return Culprit(stream, True, f"rank {stream.rank}", why, place, state)
    who = "a rank that nothing distinguishes"
    if len(suspects) < len(among) and len(suspects) <= MOST_TIED:
        who = f"one of ranks {', '.join(str(rank) for rank in sorted(_ranks(suspects)))}"
    if gone:
        nodes = sorted({view.run.order.node_of(rank) for rank in gone})
        who += f" (nothing is heard of node {', '.join(map(str, nodes))})"
    return Culprit(suspects[0], False, who)


def _ranks(streams: Iterable[RankStream]) -> set[int]:
    return {stream.rank for stream in streams}


def _behind(among: Sequence[RankStream]) -> list[RankStream]:
    """Return the ranks that are furthest behind: by step, then collectives, then sections.

    A count distinguishes ranks only by more than it differed in steps that all ranks ended. Ranks
    of a pipeline enter different collectives, and one rank may log for all. Ranks in no section may
    wait for a rank ahead that saves or evaluates for all, or is in a section in which they have
    never been. A rank still saves or evaluates if others have restarted the step after it.
    """
    lowest = min(stream.step for stream in among)
    behind = tied = [stream for stream in among if stream.step == lowest]
    begun = max(stream.begun for stream in tied)
    pausing = [row for row in tied if row.section in NON_TRAINING_SECTIONS and row.begun < begun]
    if pausing:
        return pausing
    ended = {stream.ended_at[0] for stream in tied}
    since_end = len(ended) == 1 and 0 not in ended
    comparable = since_end or len({stream.from_step for stream in tied}) == 1
    if comparable and all(stream.collective_seq for stream in tied):
        counts = [row.collectives() if since_end else row.collective_seq for row in tied]
        behind = _lowest(among, tied, counts, 2)
    sections = [stream.section_seq - stream.step_section_seq for stream in behind]
    behind = _lowest(among, behind, sections, 1)
    if all(row.section is None for row in behind):
        been, known = {name for row in behind for name in row.places}, _ranks(behind)
        maybe = NON_TRAINING_SECTIONS | {row.section for row in tied} - been
        alone = [row for row in tied if row.rank not in known and row.section in maybe]
        saves = [row for row in alone if row.section in NON_TRAINING_SECTIONS - been]
        behind = saves if len(saves) == 1 else [*alone, *behind]
    return behind


def _lowest(
    among: Sequence[RankStream], tied: list[RankStream], counts: list[int], column: int
) -> list[RankStream]:
    """Return the ranks whose count is the lowest, or no more than a usual difference above it."""
    by_step: dict[int, list[int]] = {}
    for stream in among:
        for row in stream.step_counts:
            by_step.setdefault(row[0], []).append(row[column])
    whole = [row for row in by_step.values() if len(row) == len(among) and min(row) >= 0]
    upto = min(counts) + max((max(row) - min(row) for row in whole), default=0)
    return [row for row, count in zip(tied, counts, strict=True) if count <= upto]


def _distinguished(
    view: View, tied: list[RankStream], late: list[int], mono: float
) -> list[RankStream]:
    """Return the ranks that are silent, or that alone do not wait; else all of them.

    Args:
        late: ranks for which all others wait in collectives, by the flight recorders.
    """
    fresh = view.fresh(tied, mono)
    if view.speak_on(tied, fresh):
        return [stream for stream in tied if stream.rank not in _ranks(fresh)]
    waits = {row.rank: view.processes.waits(row.rank, row.section_mono) for row in tied}
    if late and waits.keys() >= set(late):
        contradicted = any(waits[rank] for rank in late)
        return tied if contradicted else [row for row in tied if row.rank in late]
    return [row for row in tied if waits[row.rank] is False] or tied


def recorded(view: View, among: Iterable[RankStream]) -> Mapping[str, Any]:
    """Return what the flight recorders showed since the last of `among` advanced."""
    observed = view.observed.get(COLLECTIVES)
    payload = None if observed is None else observed.payload
    asked_mono = payload.get("asked_mono") if isinstance(payload, Mapping) else None
    if not isinstance(payload, Mapping) or not isinstance(asked_mono, int | float):
        return {}
    if any(row.advanced_mono > asked_mono for row in among):
        return {}
    broken = [name for name in _LISTS if not isinstance(payload.get(name, []), list)]
    return {name: item for name, item in payload.items() if name not in broken}


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
        "Names the culprit of the deadlines, by the first sign that distinguishes a rank. Its "
        "process is held; it is alone in a collective; it is furthest behind; it is silent; flight "
        "recorders or native stacks show it outside. Without such a sign no rank is named."
    )

    def armed(self, own: None, view: View) -> bool:
        return len(view.streams) == view.run.order.world_size
