"""Do the ranks that were asked to leave still move? Those that stand are waited for no longer.

Whoever asks may give much time: a checkpoint that nobody knows takes minutes to write. A rank that
hangs writes none, and so is ended after the time that moving ranks need to leave.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gonogo.contract.heartbeat import Section
from gonogo.judge.watch import RankSnapshot


@dataclass(slots=True)
class Leaving:
    """Where the ranks of one run have stood since they were asked."""

    place: tuple[object, ...] | None = None
    since: float = 0.0
    """Monotonic seconds at which a rank was last seen to move."""

    def stand(self, ranks: Mapping[int, RankSnapshot], now: float, leaving_s: float) -> bool:
        """Say whether no rank has moved for as long as moving ranks take to leave.

        A rank that writes a checkpoint says nothing of it before its end: it is waited for.

        Args:
            ranks: as they were last heard, after they were asked.
            now: monotonic seconds.
            leaving_s: how long moving ranks may take.
        """
        place = tuple((rank, *_place(row)) for rank, row in sorted(ranks.items()))
        if place != self.place or any(row.section == Section.CHECKPOINT for row in ranks.values()):
            self.place, self.since = place, now
        return now - self.since >= leaving_s


def _place(row: RankSnapshot) -> tuple[object, ...]:
    """Return what changes when a rank moves: not what its heartbeat thread says of a rank."""
    return (row.step, row.completed, row.section, row.section_seq, row.halt_seen, row.done)
