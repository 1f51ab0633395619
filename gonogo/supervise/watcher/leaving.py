"""Do the ranks that were asked to leave still move? Those that stand are waited for no longer.

Whoever asks may give much time: a checkpoint that nobody knows takes minutes to write. A rank that
hangs writes none, and so is ended after the time that moving ranks need to leave. One of which
nobody can tell that it hangs has all the time that it was given.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gonogo.contract.heartbeat import NON_TRAINING_SECTIONS
from gonogo.timeline.rank import RankStream


@dataclass(slots=True)
class Leaving:
    """Where the ranks of one run have stood since they were asked."""

    place: tuple[object, ...] | None = None
    since: float = 0.0
    """Monotonic seconds at which a rank was last seen to move."""
    idle_since: float | None = None
    """Monotonic seconds since which no rank has evaluated or saved, at the earliest the asking."""

    def stand(self, ranks: Mapping[int, RankStream], now: float, leaving_s: float) -> bool:
        """Say whether no rank has moved for as long as moving ranks take to leave.

        One that evaluates or writes a checkpoint says nothing before its end, and it need not say
        that it saves, once it has seen that it is to leave: such a rank is waited for, as is one
        that names nothing of what it does.

        Args:
            ranks: as they were last heard, after they were asked.
            now: monotonic seconds.
            leaving_s: how long moving ranks may take.
        """
        place = tuple((rank, *_place(row)) for rank, row in sorted(ranks.items()))
        if place != self.place or any(_may_be_busy(row) for row in ranks.values()):
            self.place, self.since = place, now
        return now - self.since >= leaving_s

    def is_over(self, ranks: Mapping[int, RankStream], now: float, moving_s: float) -> bool:
        """Say whether no rank has evaluated or saved for as long as moving ranks take to leave.

        A run that is halted in the middle of an evaluation leaves after it, with its checkpoint.

        Args:
            ranks: as they were last heard, after they were asked.
            now: monotonic seconds.
            moving_s: how long ranks may take that move.
        """
        if self.idle_since is None or any(_says_it_is_busy(row) for row in ranks.values()):
            self.idle_since = now
        return now - self.idle_since >= moving_s


def _says_it_is_busy(row: RankStream) -> bool:
    """Whether a rank evaluates, saves, or has seen that it is to leave, and may be saving."""
    return not row.done and (row.halt_seen or row.section in NON_TRAINING_SECTIONS)


def _may_be_busy(row: RankStream) -> bool:
    """Whether a rank that says nothing new may be at work for minutes."""
    return _says_it_is_busy(row) or (not row.done and row.section is None)


def _place(row: RankStream) -> tuple[object, ...]:
    """Return what changes when a rank moves: not what its heartbeat thread says of a rank."""
    return (row.step, row.completed, row.section, row.section_seq, row.halt_seen, row.done)
