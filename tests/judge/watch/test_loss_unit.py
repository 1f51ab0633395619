"""A loss that jumps as the tokens of a step do is a sum over them."""

import pytest

from gonogo.judge.watch.loss_unit import LOOK_STEPS, LossUnit


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
        [(LOOK_STEPS, 3.0, None), (LOOK_STEPS, 6.0, None)],
    ],
    ids=[
        "not yet", "too few before", "a mean", "more than it", "less than it", "as many tokens",
        "it climbs", "again before it is known", "below zero", "no tokens",
    ],
)  # fmt: skip
def test_nothing_else_is(parts: list[tuple[int, float, int | None]]) -> None:
    unit = told(*parts)
    assert unit.sums_of is None
    assert unit.of(5.0, 2000) == 5.0
