"""What does a message bring of a rank's heartbeats? A stretch of its file, and what it says last.

All of it is made before a transaction begins: lines are packed as they will be kept, and of most
of them only the kind is looked at.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gonogo.contract.agent import RankTelemetry
from gonogo.contract.heartbeat import Heartbeat, Msg
from service.agent.pieces import Piece, pack_heartbeats
from service.evidence.heartbeats import beat_on, msg_on


@dataclass(slots=True, kw_only=True)
class Newest:
    """What a stretch says last, for those who look on."""

    heartbeat_at: float | None = None
    step: int | None = None
    """The last one that ended."""
    loss: float | None = None
    """Of rank 0, as speed and identity are."""
    toks_per_s: float | None = None
    identity: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A stretch of one rank's file."""

    rank: int
    start: int
    end: int
    newest: Newest
    piece: Piece


def parse_stretches(ranks: Iterable[RankTelemetry]) -> list[Stretch]:
    """Return the stretches, packed (no database: do it outside a transaction).

    Raises:
        Rejected: raw bytes that are not those of their stretch.
    """
    return [
        Stretch(
            rank=part.rank,
            start=part.start,
            end=part.end,
            newest=newest_of(part.rank, part.lines),
            piece=pack_heartbeats(part),
        )
        for part in ranks
    ]


def newest_of(rank: int, lines: Sequence[str]) -> Newest:
    """Return what lines of a rank say last; of most of them only the kind is looked at."""
    said = Newest()
    for text in reversed(lines):
        msg = msg_on(text)
        ends = said.step is None and msg in (Msg.STEP_END, Msg.PROGRESS)
        tells = rank == 0 and (
            (msg == Msg.PROGRESS and said.loss is None)
            or (msg == Msg.BOOT and said.identity is None)
        )
        beat = beat_on(text, rank) if ends or tells or said.heartbeat_at is None else None
        if beat is not None:
            _note(said, beat, rank)
    return said


def _note(said: Newest, beat: Heartbeat, rank: int) -> None:
    """Keep of a line what no newer one has said."""
    said.heartbeat_at = max(said.heartbeat_at or 0.0, beat.ts)
    unnamed = beat.section is None and beat.section_seq == 0  # then progress ends its step
    if beat.msg == Msg.STEP_END or (beat.msg == Msg.PROGRESS and unnamed):
        said.step = max(said.step or 0, beat.step)
    if rank != 0:
        return
    if beat.msg == Msg.BOOT and said.identity is None:
        said.identity = beat.identity().wire()
    if beat.msg == Msg.PROGRESS and beat.loss is not None and said.loss is None:
        said.loss, said.toks_per_s = beat.loss, beat.toks_per_s
