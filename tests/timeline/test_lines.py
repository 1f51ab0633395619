"""Lines of a rank: repeated, missing and conflicting ones, and which boot is obeyed."""

from __future__ import annotations

import hashlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gonogo.contract.heartbeat import Heartbeat
from gonogo.timeline.lines import Arrival, BootLines, Line, LineRecord, read_line

# Which lines of a rank have come: de-duplication, holes, digests, conflicts.


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


# Which boot of a rank is obeyed: restarts, strangers, what an earlier process left.


def test_only_a_boot_line_opens_another_boot() -> None:
    _, arrivals = told(
        line(1, "a", "boot"), line(9, "b"), line(1, "b", "boot"), line(2, "a"), line(3, "a", "boot")
    )
    assert arrivals == ["new", "stale", "new", "stale", "stale"]


@pytest.mark.parametrize(
    ("fields", "arrival"),
    [
        ({"run": "run_1", "attempt": 2}, Arrival.NEW),
        ({}, Arrival.NEW),
        ({"run": "run_2", "attempt": 2}, Arrival.STALE),
        ({"run": "run_1", "attempt": 1}, Arrival.STALE),
    ],
    ids=["this run", "not said", "another run", "another attempt"],
)
def test_a_boot_of_another_run_is_refused(fields: dict[str, object], arrival: Arrival) -> None:
    record = LineRecord(run="run_1", attempt=2)
    assert record.admit(line(1, "x", "boot", **fields)) is arrival
    assert record.admit(line(2, "x")) is arrival


def test_what_stands_before_the_last_boot_line_of_a_first_read_is_not_this_run() -> None:
    read = [line(1, "old", "boot"), line(2, "old"), line(1, "new", "boot"), line(2, "new")]
    assert in_front(read) == {"old"}
    assert in_front(read[:2]) == set()
    assert in_front([read[0], read[3]]) == set(), "its boot line comes out of order"
    assert in_front([line(1, "a"), line(1, "b")]) == set()
    assert in_front([]) == set()


def in_front(read: list[Line]) -> set[str]:
    record = LineRecord()
    record.refuse_in_front(read)
    return record.refused


@pytest.mark.parametrize(
    ("seq", "mono", "arrival"),
    [
        (1, 9.1, Arrival.NEW), (2, 9.1, Arrival.NEW), (2, 9.0, Arrival.STALE),
        (2, 8.0, Arrival.STALE), (3, 9.1, Arrival.STALE),
    ],
    ids=["first", "second", "of one moment", "an earlier process", "in the midst"],
)  # fmt: skip
def test_where_a_boot_line_is_torn_the_next_one_opens_the_boot(
    seq: int, mono: float, arrival: Arrival
) -> None:
    record, _ = told(line(1, "a", "boot", mono=2.0), line(2, "a", mono=9.0), line(3, "a", mono=5.0))
    assert record.admit(line(seq, "b", mono=mono)) is arrival
    assert record.boot == ("b" if arrival is Arrival.NEW else "a")


def test_of_a_boot_whose_first_line_never_came_nothing_is_read() -> None:
    record, _ = told(line(1, "a", "boot"), line(2, "a"))
    read = record.seen()
    assert read is not None
    assert (read.boot, read.seq, read.digest) == ("a", 2, record.now.chain.hex())
    later, _ = told(line(5, "a", "boot"))
    read = later.seen()
    assert read is not None
    assert (read.seq, read.digest) == (0, bytes(32).hex())
    assert LineRecord().seen() is None


def test_what_came_besides_the_obeyed_boot_is_counted_and_known_by_its_digest() -> None:
    own = [line(1, "b", "boot", mono=9.0), line(2, "b", mono=9.1)]
    alone, _ = told(*own)
    assert (*alone.beside(), alone.stale) == (0, None, 0)
    before = [line(1, "a", "boot"), line(2, "a"), line(3, "a")]
    record, _ = told(*before, *own)
    less, _ = told(*before[:2], *own)
    (count, digest), (fewer, other) = record.beside(), less.beside()
    assert (count, fewer) == (3, 2)
    assert None not in (digest, other)
    assert digest != other
    more, _ = told(*before, *own, line(3, "b", mono=9.2))
    assert more.beside() == record.beside(), "its own digest shows what is obeyed"
    assert record.admit(line(2, "b", step=7)) is Arrival.CONFLICT
    assert record.beside()[0] == 4


def test_white_space_around_a_line_is_ignored() -> None:
    raw = line(1).beat.model_dump_json().encode()
    digests = {read.digest for text in (raw, b" " + raw + b" \r\n") if (read := read_line(text, 0))}
    assert digests == {hashlib.sha256(raw).digest()[:16]}
    assert read_line(raw, 1) is None


def test_a_boot_may_begin_at_zero_and_that_line_may_come_late() -> None:
    _, arrivals = told(line(0), line(1), line(0), line(2))
    assert arrivals == ["new", "new", "duplicate", "new"]
    late, arrivals = told(line(1), line(0))
    assert arrivals == ["new", "late"]
    assert late.boots == told(line(0), line(1))[0].boots


def test_the_digest_of_a_boot_chains_sixteen_bytes_of_each_line() -> None:
    beats = [line(seq) for seq in (1, 2, 3, 5)]
    record, _ = told(*beats)
    chain, upto = bytes(32), []
    for beat in beats:
        chain = hashlib.sha256(chain + beat.digest).digest()
        upto.append(chain.hex())
    assert record.now.digest() == upto[3]
    assert record.now.chain.hex() == upto[2]


def test_a_hole_shrinks_to_the_missing_lines() -> None:
    lines = BootLines()
    left = []
    for seq in (1, 7, 4, 2, 3, 6, 5):
        lines.take(seq, bytes(16))
        left.append(lines.gaps())
    assert left == [0, 5, 4, 3, 2, 1, 0]


def test_each_line_of_a_refused_boot_is_counted_once() -> None:
    late = line(7, "a")
    record, arrivals = told(line(1, "a", "boot"), line(1, "b", "boot"), late, late, line(8, "a"))
    assert arrivals[2:] == ["stale", "duplicate", "stale"]
    assert (record.stale, record.beside()[0]) == (2, 3)


def test_lines_of_another_boot_are_not_those_that_a_tick_had_read() -> None:
    record, _ = told(line(1, "a", "boot"), line(2, "a"))
    seen = record.seen()
    assert seen is not None
    assert record.is_at(seen)
    assert not record.is_at(seen.model_copy(update={"boot": "b"}))
