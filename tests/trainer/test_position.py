"""The position of a rank, by a given clock."""

from __future__ import annotations

import pytest

from gonogo.trainer.position import Position


def opened(now: float = 0.0) -> Position:
    place = Position()
    place.enter(None, now)
    place.open_step(now)
    return place


def test_seconds_of_named_parts_add_up_over_one_step() -> None:
    place = opened()
    for name, now in (("data", 1.0), ("forward", 3.0), ("data", 6.0), ("forward", 7.0)):
        place.enter(name, now)
    assert place.end_step(10.0) == 10.0
    assert place.sections_s() == {"data": 3.0, "forward": 6.0, "wait": 0.0}


def test_the_next_step_starts_its_account_anew() -> None:
    place = opened()
    place.enter("forward", 0.0)
    place.end_step(1.0)
    place.open_step(1.0)
    assert (place.step, place.sections_s(), place.section) == (2, None, None)


@pytest.mark.parametrize("pause", ["eval", "checkpoint"])
def test_a_pause_between_steps_is_told_at_once_and_opens_the_step_anew(pause: str) -> None:
    place = opened()
    assert place.enter(pause, 1.0) == "section"
    assert place.enter(None, 61.0) == "step_start"
    assert place.end_step(62.0) == 1.0


def test_a_pause_after_the_batch_was_fetched_is_still_between_steps() -> None:
    place = opened()
    place.enter("data", 0.0)
    place.enter("eval", 1.0)
    assert place.enter("forward", 31.0) == "step_start"
    assert place.end_step(33.0) == 2.0


def test_a_pause_within_a_step_does_not_open_it_anew() -> None:
    place = opened()
    place.enter("forward", 0.0)
    assert place.enter("eval", 1.0) == "section"
    assert place.enter("backward", 3.0) == "section"
    assert place.end_step(4.0) == 4.0
    assert place.sections_s() == {"forward": 1.0, "backward": 1.0, "wait": 0.0}


def test_a_part_of_a_step_is_not_told_at_once() -> None:
    place = opened()
    assert place.enter("data", 1.0) is None
    assert not place.announced
