"""Which lines does a differing digest cover? Said in words, so that a person can look.

Release 0.1 holds up to 64 digests of each rank, each over as many lines. Since then there is one
for each boot, by its name; the ticks, which say how far each had read and what it came to, narrow
that down to what one tick brought.
"""

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import ValidationError

from gonogo.contract.errors import Corrupt
from gonogo.contract.heartbeat import parse_heartbeat
from gonogo.contract.tick import LinesSeen, Tick
from gonogo.ledger.v1.beats import read_stream
from gonogo.rundir import TICK_BYTES, RunDir, iter_lines, load_all_lines
from gonogo.watch.line_record import LineRecord
from gonogo.watch.lines import Arrival, BootLines

_BLOCK = re.compile(r"facts\.ranks\.(?P<rank>\d+)\.blocks\.(?P<block>\d+)")
_MAX_BLOCKS = 64
_AGAIN = frozenset({Arrival.DUPLICATE, Arrival.CONFLICT})

Said = tuple[int, int]
"""Seq and step of a line."""


def place_of(path: str, run_dir: Path, *, v1: bool) -> str:
    """Return which lines the digest at `path` covers, or nothing where that cannot be said."""
    found = _BLOCK.fullmatch(path)
    if found is None:
        return ""
    rank, block = int(found["rank"]), int(found["block"])
    home = RunDir(run_dir)
    boot, lines = _of_block(home, rank, block) if v1 else _of_boot(home, rank, block)
    if not lines:
        return ""
    steps = [step for _, step in lines]
    return (
        f" (heartbeat_rank{rank}.jsonl{boot}, seq {lines[0][0]} to {lines[-1][0]},"
        f" steps {min(steps)} to {max(steps)})"
    )


def _of_block(run_dir: RunDir, rank: int, block: int) -> tuple[str, list[Said]]:
    """Return the lines of one of release 0.1's blocks."""
    beats = read_stream(rank, load_all_lines(run_dir.heartbeat(rank))).beats
    size = max(1, math.ceil(len(beats) / _MAX_BLOCKS))
    return "", [(beat.seq, beat.step) for beat in beats[block * size :][:size]]


def _of_boot(run_dir: RunDir, rank: int, number: int) -> tuple[str, list[Said]]:
    """Return the lines of a boot that no tick saw as they are, or all where none can say."""
    record, said = _read(run_dir, rank)
    boots = list(record.every_boot())
    if number >= len(boots):
        return "", []
    boot, lines = boots[number]
    after, upto = _narrowed(lines, _seen(run_dir, rank, boot))
    rows = sorted(said[boot])
    inside = [row for row in rows if after < row[0] <= upto]
    return f", boot {boot}", inside or rows


def _read(run_dir: RunDir, rank: int) -> tuple[LineRecord, dict[str, list[Said]]]:
    """Return what came of each boot of a rank, and the seq and step of its lines."""
    record = LineRecord()
    said: dict[str, list[Said]] = {}
    for raw in iter_lines(run_dir.heartbeat(rank)):
        try:
            beat = parse_heartbeat(raw)
        except Corrupt:
            continue
        if beat.rank == rank and record.admit(beat) not in _AGAIN:
            said.setdefault(beat.boot, []).append((beat.seq, beat.step))
    return record, said


def _seen(run_dir: RunDir, rank: int, boot: str) -> Iterator[LinesSeen]:
    """Yield what the ticks say of a boot's lines, in their order."""
    for raw in iter_lines(run_dir.watch, TICK_BYTES):
        try:
            seen = Tick.model_validate_json(raw).lines.get(str(rank))
        except ValidationError:
            continue
        if seen is not None and seen.boot == boot:
            yield seen


def _narrowed(lines: BootLines, ticks: Iterable[LinesSeen]) -> tuple[float, float]:
    """Return after which seq, and up to which, the first line lies that is not as it was seen."""
    known = dict(lines.chains())
    after = -math.inf
    for seen in ticks:
        if known.get(seen.seq) != seen.digest:
            return after, seen.seq
        after = seen.seq
    return after, math.inf
