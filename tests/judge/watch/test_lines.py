"""Which lines of a rank have come: de-duplication, holes, digests, conflicts."""

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.heartbeat import Heartbeat
from gonogo.judge.watch.line_record import LineRecord, boots_in_front, by_seq
from gonogo.judge.watch.lines import Arrival, BootLines


def line(seq: int, boot: str = "b", msg: str = "alive", **fields: object) -> Heartbeat:
    return Heartbeat.model_validate(
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


def told(*lines: Heartbeat) -> tuple[LineRecord, list[Arrival]]:
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
    assert record.duplicates == len(seqs) - len(set(seqs))
    begins = 0 if 0 in seqs else 1
    assert lines.gaps() == max(seqs) - begins + 1 - len(set(seqs))


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
    again = LineRecord.load(json.loads(json.dumps(half.dump())))
    for seq in seqs[cut:]:
        again.admit(line(seq))
    assert again.dump() == whole.dump()


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60, unique=True))
def test_a_read_is_put_in_order(seqs: list[int]) -> None:
    assert [beat.seq for beat in by_seq([line(seq) for seq in seqs])] == sorted(seqs)


def test_a_read_of_two_boots_keeps_them_apart() -> None:
    read = [line(7, "old"), line(1, "new", "boot"), line(6, "old"), line(2, "new")]
    assert [(b.boot, b.seq) for b in by_seq(read)] == [
        ("old", 6), ("old", 7), ("new", 1), ("new", 2),
    ]  # fmt: skip


def test_only_a_boot_line_opens_another_boot() -> None:
    _, arrivals = told(
        line(1, "a", "boot"), line(9, "b"), line(1, "b", "boot"), line(2, "a"), line(3, "a", "boot")
    )
    assert arrivals == ["new", "stale", "new", "stale", "stale"]


def test_seq_may_begin_at_nought_after_a_restart_in_place() -> None:
    _, arrivals = told(line(0, "a", "boot"), line(1, "a"), line(0, "b", "boot"), line(1, "b"))
    assert arrivals == ["new"] * 4


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
    assert boots_in_front(read) == {"old"}
    assert boots_in_front(read[:2]) == set()
    assert boots_in_front([read[0], read[3]]) == set(), "its boot line comes out of order"
    assert boots_in_front([line(1, "a"), line(1, "b")]) == set()


def test_gaps_below_a_seq_leave_out_later_holes() -> None:
    lines = BootLines()
    for seq in (1, 3, 10):
        lines.take(seq, bytes(16))
    assert [lines.gaps(), lines.gaps(below=4), lines.gaps(below=6)] == [7, 1, 3]
