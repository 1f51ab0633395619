"""D6: which rank is the culprit? The one behind; it names the culprit of D2 to D5.

Lowest (step, section_seq, collective_seq). In DDP's backward the innocent rank's Python stack
shows no collective, hence the counter and, on a tie, the native stack: the rank that does not wait
in a collective. A held (stopped, uninterruptible) rank is the culprit by its state.
"""

from collections.abc import Sequence

from gonogo.judge.watch.stream import RankStream
from gonogo.judge.watch.view import View


def name_culprit(view: View, among: Sequence[RankStream]) -> RankStream | None:
    """Return the rank that the others wait for, or None when there is no rank to name."""
    if len(among) < 2:
        return among[0] if among else None
    held = [stream for stream in among if view.held(stream.rank)]
    behind = held or among
    lowest = min(stream.position() for stream in behind)
    tied = [stream for stream in behind if stream.position() == lowest]
    if len(tied) > 1:
        tied = [s for s in tied if view.processes.waits(s.rank) is False] or tied
    return min(tied, key=lambda stream: stream.rank)


def armed(view: View, own: object) -> bool:
    """Whether every rank has told where it is."""
    return len(view.streams) == view.run.order.world_size
