"""What is said of a run while it is on."""

from __future__ import annotations

from gonogo.cli.following import Remainder


def test_the_rest_is_told_by_the_steps_that_were_seen_and_not_by_the_start() -> None:
    pace = Remainder()
    assert pace.tell(1, 30, 40.0) == "", "forty seconds of start say nothing of a step"
    assert pace.tell(11, 30, 50.0) == ", about 19 s left"


def test_a_run_that_stands_has_no_longer_a_way_to_go_for_that() -> None:
    pace = Remainder()
    pace.tell(1, 24, 0.0)
    assert pace.tell(12, 24, 11.0) == ", about 12 s left"
    assert pace.tell(12, 24, 71.0) == ", about 12 s left, no step for 1 min 00 s"


def test_without_a_last_step_nothing_is_left() -> None:
    pace = Remainder()
    pace.tell(1, None, 0.0)
    assert pace.tell(5, None, 4.0) == ""
