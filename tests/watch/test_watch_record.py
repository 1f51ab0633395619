"""What the record of a watch keeps of each rank."""

from gonogo.contract.tick import LinesSeen
from gonogo.watch.watch_record import Heard


def test_when_a_rank_was_heard_is_the_same_whatever_its_last_lines_were() -> None:
    heard = Heard(1.0, 2.0, 3.0)
    assert heard == Heard(1.0, 2.0, 3.0, boots=("a",))
    assert heard == Heard(1.0, 2.0, 3.0, seen=LinesSeen(boot="a", seq=1, digest="00"))
    assert heard == Heard(1.0, 2.0, 3.0, _surely_mono=9.0)
    assert heard != Heard(1.0, 2.5, 3.0)
