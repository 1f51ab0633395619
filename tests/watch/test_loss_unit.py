"""A loss that jumps as the tokens of a step do is a sum over them."""

import pytest

from gonogo.watch.loss_unit import LOOK_STEPS, LossUnit


def told(*parts: tuple[int, float, int | None], unit: LossUnit | None = None) -> LossUnit:
    """Return the unit after so many steps of this loss and these tokens, part after part."""
    unit = unit or LossUnit()
    for count, loss, tokens in parts:
        for _ in range(count):
            unit = unit.after(loss, tokens)
    return unit


@pytest.mark.parametrize(("tokens", "loss"), [(2000, 6.0), (500, 1.5), (1200, 3.6), (4000, 11.0)])
def test_a_loss_that_jumps_as_the_tokens_do_is_a_sum(tokens: int, loss: float) -> None:
    unit = told((LOOK_STEPS, 3.0, 1000), (LOOK_STEPS, loss, tokens))
    assert unit.sums_of == 1000
    assert unit.of(2 * loss, 2 * tokens) == pytest.approx(loss * 1000 / tokens)
    assert unit.of(2 * loss, None) == 2 * loss
    assert unit.restarted().of(loss, tokens) == unit.of(loss, tokens)


@pytest.mark.parametrize(
    "parts",
    [
        [(LOOK_STEPS, 3.0, 1000), (LOOK_STEPS - 1, 6.0, 2000)],
        [(LOOK_STEPS - 1, 3.0, 1000), (LOOK_STEPS, 6.0, 2000)],
        [(LOOK_STEPS, 3.0, 1000), (LOOK_STEPS, 3.0, 2000)],
        [(LOOK_STEPS, 3.0, 1000), (LOOK_STEPS, 7.0, 2000)],
        [(LOOK_STEPS, 3.0, 1000), (LOOK_STEPS, 5.0, 2000)],
        [(LOOK_STEPS, 3.0, 1000), (LOOK_STEPS, 3.3, 1100)],
        [(LOOK_STEPS, 3.0, 1000), (4, 3.0, 2000), (20, 6.0, 2000)],
        [(LOOK_STEPS, 3.0, 1000), (3, 6.0, 2000), (LOOK_STEPS, 9.0, 3000)],
        [(LOOK_STEPS, -3.0, 1000), (LOOK_STEPS, -6.0, 2000)],
        [(LOOK_STEPS, 0.0, 1000), (LOOK_STEPS, 0.0, 2000)],
        [(LOOK_STEPS, 3.0, None), (LOOK_STEPS, 6.0, None)],
        [(LOOK_STEPS, 3.0, 0), (LOOK_STEPS, 6.0, 0)],
        [(LOOK_STEPS, 3.0, -1000), (LOOK_STEPS, 6.0, -2000)],
    ],
    ids=[
        "not yet", "too few before", "a mean", "more than it", "less than it", "as many tokens",
        "it climbs", "again before it is known", "below zero", "zero",
        "no tokens", "none of them", "less than none",
    ],
)  # fmt: skip
def test_nothing_else_is(parts: list[tuple[int, float, int | None]]) -> None:
    unit = told(*parts)
    assert unit.sums_of is None
    assert unit.of(5.0, 2000) == 5.0


def test_eight_losses_before_and_after_are_compared() -> None:
    unit = told((8, 3.0, 1000), (7, 6.0, 2000))
    assert (unit.sums_of, unit.after(6.0, 2000).sums_of) == (None, 1000)
    assert told((7, 3.0, 1000), (8, 6.0, 2000)).sums_of is None


def test_one_odd_loss_of_those_after_a_change_hides_no_jump() -> None:
    assert told((8, 3.0, 1000), (1, 3.0, 2000), (7, 6.0, 2000)).sums_of == 1000


@pytest.mark.parametrize(("loss", "sums_of"), [(85.0, 1000), (115.0, 1000), (116.0, None)])
def test_a_sum_may_change_by_a_little_otherwise(loss: float, sums_of: int | None) -> None:
    assert told((8, 50.0, 1000), (8, loss, 2000)).sums_of == sums_of


def test_a_sixth_fewer_tokens_are_another_number() -> None:
    assert told((8, 3.6, 1200), (8, 3.0, 1000)).sums_of == 1200


def test_steps_of_one_token_and_losses_near_zero_are_compared_too() -> None:
    unit = told((8, 0.25, 1), (8, 0.5, 2))
    assert unit.sums_of == 1
    assert unit.of(0.5, 1) == 0.5


@pytest.mark.parametrize("tokens", [0, -2000, None])
def test_a_loss_of_no_tokens_stays_what_it_is(tokens: int | None) -> None:
    assert LossUnit(sums_of=1000).of(6.0, tokens) == 6.0
    assert LossUnit(sums_of=1000).of(6.0, 1) == 6000.0
