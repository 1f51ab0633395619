"""D7: a rank that computes longer than its peers is named; waiting, pauses and noise are not."""

from collections.abc import Sequence

import pytest

from gonogo.watch.detectors.speed import Straggler
from tests.watch.steps import Ran, feed


def lockstep(ran: Ran, own_s: Sequence[float], log_s: float = 0.0) -> Ran:
    """One step in which every rank waits for the slowest."""
    step_s = max(own_s) + log_s
    return ran.step(
        dt_s=[step_s if ran.number else None] * len(own_s),
        sections=[{"forward": own, "wait": step_s - own} for own in own_s],
    )


def steps(ran: Ran, count: int, *own_s: float) -> Ran:
    for _ in range(count):
        lockstep(ran, own_s)
    return ran


def test_a_window_in_which_it_keeps_up_begins_anew() -> None:
    ran = steps(Ran(ranks=2), 65, 1.0, 1.0)
    for _ in range(4):
        steps(steps(ran, 2 * 64, 1.0, 1.5), 64, 1.0, 1.0)
    assert feed(Straggler, ran).findings == []


@pytest.mark.parametrize(("slow", "found"), [(1.32, 0), (1.34, 1)])
def test_the_edge_of_the_ratio(slow: float, found: int) -> None:
    ran = steps(steps(Ran(ranks=2), 65, 1.0, 1.0), 192, 1.0, slow)
    assert len(feed(Straggler, ran).findings) == found


def test_without_waiting_times_nothing_is_known_and_that_is_said() -> None:
    ran = Ran(ranks=2)
    for _ in range(400):
        ran.step(dt_s=[1.0, 3.0], sections={"forward": 1.0})
    silent = Ran(ranks=2).many(400)
    for fed in (feed(Straggler, silent), feed(Straggler, Ran(ranks=2).many(9, sections={}))):
        assert fed.findings == []
        assert not fed.armed
        assert fed.missing is not None
        assert "waited" in fed.missing
    assert feed(Straggler, Ran(ranks=2)).missing is None
