"""Which boot of a rank is obeyed: restarts, strangers, what an earlier process left."""

import pytest

from gonogo.timeline.lines import Arrival, Line, LineRecord
from tests.timeline.test_lines import line, told


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
        (1, 9.1, Arrival.NEW),
        (2, 9.1, Arrival.NEW),
        (2, 9.0, Arrival.STALE),
        (2, 8.0, Arrival.STALE),
        (3, 9.1, Arrival.STALE),
    ],
    ids=["first", "second", "of one moment", "an earlier process", "in the midst"],
)
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
