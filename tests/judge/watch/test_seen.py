"""De-duplication: a line is new at most once, in whatever order lines come."""

from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.heartbeat import Heartbeat
from gonogo.judge.watch.seen import Arrival, Seen, admit, in_order


def line(seq: int, boot: str = "b", msg: str = "alive") -> Heartbeat:
    return Heartbeat(ts=1.0, mono=1.0, pid=1, rank=0, boot=boot, seq=seq, step=0, msg=msg)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=80))
def test_any_order_admits_each_line_once_and_counts_the_holes(seqs: list[int]) -> None:
    seen, kept = Seen(), []
    for seq in seqs:
        seen, arrival = admit(seen, line(seq))
        if arrival in (Arrival.NEW, Arrival.LATE):
            kept.append(seq)
    assert sorted(kept) == sorted(set(seqs))
    assert seen.accepted == len(set(seqs))
    assert seen.duplicates == len(seqs) - len(set(seqs))
    assert seen.gaps() == max(seqs) - len(set(seqs))
    assert seen.top == max(seqs)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60, unique=True))
def test_a_read_is_put_in_order(seqs: list[int]) -> None:
    assert [beat.seq for beat in in_order([line(seq) for seq in seqs])] == sorted(seqs)


def test_a_read_of_two_boots_keeps_them_apart() -> None:
    read = [line(7, "old"), line(1, "new", "boot"), line(6, "old"), line(2, "new")]
    assert [(b.boot, b.seq) for b in in_order(read)] == [
        ("old", 6), ("old", 7), ("new", 1), ("new", 2),
    ]  # fmt: skip


def test_only_a_boot_line_opens_another_boot() -> None:
    seen, _ = admit(Seen(), line(1, "a", "boot"))
    seen, arrival = admit(seen, line(9, "b"))
    assert arrival is Arrival.STALE
    seen, arrival = admit(seen, line(1, "b", "boot"))
    assert arrival is Arrival.NEW
    _, arrival = admit(seen, line(2, "a"))
    assert arrival is Arrival.STALE
    _, arrival = admit(seen, line(1, "a", "boot"))
    assert arrival is Arrival.STALE


def test_gaps_below_a_seq_leave_out_later_holes() -> None:
    seen = Seen()
    for seq in (1, 3, 10):
        seen, _ = admit(seen, line(seq))
    assert seen.gaps() == 7
    assert seen.gaps(below=4) == 1
    assert seen.gaps(below=6) == 3
