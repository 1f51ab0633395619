"""Which line of a rank is new? De-duplication by (boot, seq), and what never came.

Guarantees: a line is new at most once, in whatever order lines come; lines of a boot that another
one replaced are refused for ever (fencing). Not kept: more than `MAX_RANGES` separate holes.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from gonogo.contract.heartbeat import Heartbeat, Msg

MAX_RANGES = 1024


class Arrival(StrEnum):
    """What a line is to its stream."""

    NEW = "new"
    """The next line, or one beyond a hole."""
    LATE = "late"
    """It fills a hole: its numbers count, the position it tells is old."""
    DUPLICATE = "duplicate"
    STALE = "stale"
    """Of a boot that is over, or that never said `boot` while another runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What came of one rank."""

    boot: str | None = None
    top: int = 0
    """Highest seq of the present boot."""
    missing: tuple[tuple[int, int], ...] = ()
    """Holes below `top`: first and last seq of each, ascending."""
    retired: frozenset[str] = frozenset()
    accepted: int = 0
    duplicates: int = 0
    stale: int = 0

    def gaps(self, below: int | None = None) -> int:
        """Return how many lines never came (of those with a seq under `below`)."""
        limit = self.top if below is None else below
        return sum(max(0, min(last, limit - 1) - first + 1) for first, last in self.missing)


def admit(seen: Seen, beat: Heartbeat) -> tuple[Seen, Arrival]:
    """Return the record with `beat` in it, and what `beat` is to the stream."""
    if beat.boot != seen.boot:
        if beat.boot in seen.retired or (seen.boot is not None and beat.msg != Msg.BOOT):
            return replace(seen, stale=seen.stale + 1), Arrival.STALE
        retired = seen.retired if seen.boot is None else seen.retired | {seen.boot}
        seen = replace(seen, boot=beat.boot, top=0, missing=(), retired=retired)
    if beat.seq > seen.top or seen.accepted == 0:
        hole = ((seen.top + 1, beat.seq - 1),) if beat.seq > seen.top + 1 else ()
        missing = (seen.missing + hole)[-MAX_RANGES:]
        return (
            replace(seen, top=beat.seq, missing=missing, accepted=seen.accepted + 1),
            Arrival.NEW,
        )
    for index, (first, last) in enumerate(seen.missing):
        if first <= beat.seq <= last:
            rest = tuple(
                part for part in ((first, beat.seq - 1), (beat.seq + 1, last)) if part[0] <= part[1]
            )
            missing = seen.missing[:index] + rest + seen.missing[index + 1 :]
            return replace(seen, missing=missing, accepted=seen.accepted + 1), Arrival.LATE
    return replace(seen, duplicates=seen.duplicates + 1), Arrival.DUPLICATE


def in_order(beats: list[Heartbeat]) -> list[Heartbeat]:
    """Return the lines of one read, sorted by seq within each boot (boots as they first appear)."""
    if all(a.boot == b.boot and a.seq < b.seq for a, b in pairwise(beats)):
        return beats
    boots = {boot: place for place, boot in enumerate(dict.fromkeys(b.boot for b in beats))}
    return sorted(beats, key=lambda beat: (boots[beat.boot], beat.seq))
