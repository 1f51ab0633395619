"""D6: which rank is the culprit? The one behind; it names the culprit of D2 to D5.

A held (stopped, uninterruptible) rank is the culprit by its state; else a rank that alone entered a
collective while every other stands in another, as the flight recorders tell; else the lowest (step,
section_seq, collective_seq); but one rank may save or evaluate for all, and is waited for. In DDP's
backward the innocent rank's Python stack shows no collective, hence the counter and, on a tie, what
else tells the ranks apart: one that is silent while its peers speak, or the native stack of the one
that does not wait in a collective. Where nothing does, no rank is named: to accuse the lowest
number would send a person to the wrong host.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gonogo.contract.heartbeat import NON_TRAINING_SECTIONS
from gonogo.contract.outcome import Detector as Name
from gonogo.judge.watch.detector import Detector
from gonogo.judge.watch.stream import RankStream
from gonogo.judge.watch.view import View

COLLECTIVES = "collectives"
"""Kind of the observation: `gonogo.contract.collectives.Standing`."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """The rank that the others wait for, or one of several that nothing tells apart."""

    stream: RankStream
    named: bool
    """Whether it may be named."""

    def __str__(self) -> str:
        return f"rank {self.stream.rank}" if self.named else "a rank that nothing tells apart"


def name_culprit(view: View, among: Sequence[RankStream], mono: float) -> Culprit | None:
    """Return the rank that the others wait for, or None when there is none.

    Args:
        view: what is known.
        among: ranks of which one is behind.
        mono: the watcher's clock, for who has fallen silent.
    """
    if len(among) < 2:
        return Culprit(among[0], named=True) if among else None
    held = [stream for stream in among if view.held(stream.rank)]
    strayed = None if held else stray(view, among)
    if strayed is not None:
        return Culprit(strayed, named=True)
    behind = held or among
    lowest = min(stream.position() for stream in behind)
    tied = [stream for stream in behind if stream.position() == lowest]
    alone = None if held else acts_for_all(among, tied)
    if alone is not None:
        return Culprit(alone, named=True)
    tied = _told_apart(view, tied, mono)
    named = len(tied) == 1 or bool(held)
    return Culprit(min(tied, key=lambda stream: stream.rank), named=named)


def _told_apart(view: View, tied: list[RankStream], mono: float) -> list[RankStream]:
    """Return those of equal ranks that are silent, or that alone do not wait; else all of them."""
    fresh = view.fresh(tied, mono)
    if fresh and len(fresh) < len(tied):
        return [stream for stream in tied if stream not in fresh]
    return [s for s in tied if view.processes.waits(s.rank) is False] or tied


def acts_for_all(among: Sequence[RankStream], behind: Sequence[RankStream]) -> RankStream | None:
    """Return the rank that saves or evaluates for all, while those behind it wait, if one does.

    Its section puts it ahead of ranks that never enter one of this name: `if rank == 0: save()`,
    then a barrier. Who has entered such a section before is expected to again, and is behind,
    unless it has entered a collective since, in which it waits for the one that acts.
    """
    ended = {stream.completed for stream in behind}
    for stream in among:
        if stream in behind or stream.section not in NON_TRAINING_SECTIONS:
            continue
        expected = (name == stream.section for row in behind for name, _ in row.section_times)
        wait = all(row.collective_seq > stream.collective_seq for row in behind)
        if ended == {stream.completed} and (wait or not any(expected)):
            return stream
    return None


def stray(view: View, among: Sequence[RankStream]) -> RankStream | None:
    """Return the rank that alone entered a collective in which it still stands, if there is one.

    What the ranks told before one of them advanced again is no longer true.
    """
    observed = view.observed.get(COLLECTIVES)
    if observed is None or not isinstance(observed.payload, Mapping):
        return None
    only, asked_mono = (observed.payload.get(key) for key in ("only", "asked_mono"))
    if not isinstance(asked_mono, int | float):
        return None
    if any(stream.advanced_mono > asked_mono for stream in among):
        return None
    return next((stream for stream in among if stream.rank == only), None)


def stray_text(view: View) -> str:
    """Return the sentence about the collectives that came with the last observation."""
    observed = view.observed.get(COLLECTIVES)
    payload = observed.payload if observed is not None else None
    return str(payload.get("text", "")) if isinstance(payload, Mapping) else ""


class RankDivergence(Detector[None]):
    """D6: names the culprit for the others and finds nothing of its own."""

    name = Name.RANK_DIVERGENCE
    sentence = (
        "Names the culprit of the deadlines: the rank that is furthest behind, held, or alone in "
        "a collective; where nothing tells the ranks apart, none is named."
    )

    def armed(self, own: None, view: View) -> bool:
        """Whether every rank has told where it is."""
        return len(view.streams) == view.run.order.world_size
