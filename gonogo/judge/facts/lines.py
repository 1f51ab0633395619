"""How are a rank's lines read where nothing is folded? Parsed, each once, into its steps."""

from collections.abc import Iterable
from dataclasses import dataclass

from gonogo.contract.errors import Corrupt
from gonogo.contract.heartbeat import parse_heartbeat
from gonogo.judge.facts.steps import RankSteps
from gonogo.timeline.boots import LineRecord
from gonogo.timeline.lines import Arrival, Line, digest_of
from gonogo.watch.recorded import BootRecord

_AGAIN = frozenset({Arrival.DUPLICATE, Arrival.CONFLICT})


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLines:
    """One rank's lines."""

    steps: RankSteps
    boots: dict[str, BootRecord]
    conflicts: int
    unreadable: int


def read_lines(rank: int, lines: Iterable[bytes | str]) -> RankLines:
    """Return what one rank's lines tell, in whatever order they come; others' are counted."""
    steps, record, unreadable = RankSteps(), LineRecord(), 0
    for line in lines:
        raw = line.encode(errors="replace") if isinstance(line, str) else line
        if not raw.strip():
            continue
        try:
            beat = parse_heartbeat(raw)
        except Corrupt:
            unreadable += 1
            continue
        if beat.rank != rank:
            unreadable += 1
        elif record.admit(Line(beat, digest_of(raw))) not in _AGAIN:
            steps.take(beat)
    boots = {
        boot: BootRecord(lines=row.count, digest=row.digest(), top=row.top, gaps=row.gaps())
        for boot, row in record.every_boot()
    }
    return RankLines(steps=steps, boots=boots, conflicts=record.conflicts, unreadable=unreadable)
