"""Which lines of a rank have come: de-duplication, holes, digests, conflicts."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gonogo.contract.heartbeat import Heartbeat
from gonogo.timeline.lines import (
    Arrival,
    BootLines,
    Line,
    LineRecord,
    read_line,
)


def line(seq: int, boot: str = "b", msg: str = "alive", **fields: object) -> Line:
    beat = Heartbeat.model_validate(
        {
            "ts": 1.0,
            "mono": 1.0,
            "pid": 1,
            "rank": 0,
            "boot": boot,
            "seq": seq,
            "step": 0,
            "msg": msg,
        }
        | fields
    )
    return line_of(beat)


def line_of(beat: Heartbeat) -> Line:
    line = read_line(beat.model_dump_json().encode(), beat.rank)
    assert line is not None
    return line


def told(*lines: Line) -> tuple[LineRecord, list[Arrival]]:
    record = LineRecord()
    return record, [record.admit(beat) for beat in lines]


SEQS = st.lists(st.integers(0, 30), min_size=1, max_size=80)


@given(SEQS)
def test_any_order_admits_each_line_once_and_counts_the_holes(seqs: list[int]) -> None:
    record, arrivals = told(*(line(seq) for seq in seqs))
    kept = [seq for seq, arrival in zip(seqs, arrivals, strict=True) if arrival in ("new", "late")]
    assert sorted(kept) == sorted(set(seqs))
    lines = record.now
    assert (lines.count, lines.top) == (len(set(seqs)), max(seqs))
    assert arrivals.count(Arrival.DUPLICATE) == len(seqs) - len(set(seqs))
    assert lines.gaps() == max(seqs) + 1 - min(1, *seqs) - len(set(seqs))


@given(SEQS, st.randoms())
def test_the_digest_depends_on_which_lines_came_and_on_nothing_else(
    seqs: list[int], random: Random
) -> None:
    first, _ = told(*(line(seq) for seq in seqs))
    again = [*seqs, *seqs[: len(seqs) // 3]]
    random.shuffle(again)
    second, _ = told(*(line(seq) for seq in again))
    assert first.now.digest() == second.now.digest()
    assert first.now.chain == second.now.chain
    assert first.seen() == second.seen()


@given(SEQS, st.integers(0, 30))
def test_another_line_in_its_place_is_a_conflict_and_changes_no_digest(
    seqs: list[int], place: int
) -> None:
    record, _ = told(*(line(seq) for seq in seqs))
    before = record.now.digest()
    seq = seqs[place % len(seqs)]
    assert record.admit(line(seq, step=7)) is Arrival.CONFLICT
    assert (record.conflicts, record.now.digest()) == (1, before)


@pytest.mark.parametrize("seq", [1, 2, 3])
def test_a_line_that_differs_gives_another_digest(seq: int) -> None:
    plain, _ = told(line(1), line(2), line(3))
    other, _ = told(*(line(n, step=int(n == seq)) for n in (1, 2, 3)))
    assert plain.now.digest() != other.now.digest()


@given(SEQS, st.integers(0, 80))
def test_a_record_that_was_saved_goes_on_as_it_was(seqs: list[int], cut: int) -> None:
    whole, _ = told(*(line(seq) for seq in seqs))
    half, _ = told(*(line(seq) for seq in seqs[:cut]))
    adapter = TypeAdapter(LineRecord)
    again = adapter.validate_json(adapter.dump_json(half))
    for seq in seqs[cut:]:
        again.admit(line(seq))
    assert again == whole


def test_gaps_below_a_seq_leave_out_later_holes() -> None:
    lines = BootLines()
    for seq in (1, 3, 10):
        lines.take(seq, bytes(16))
    assert [lines.gaps(), lines.gaps(below=4), lines.gaps(below=6)] == [7, 1, 3]
