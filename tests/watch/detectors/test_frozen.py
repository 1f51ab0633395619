"""D9: equal values are found; numbers that move, are zero or refreshed at times are not."""

from collections.abc import Callable

import pytest

from gonogo.contract.finding import Severity
from gonogo.watch.detectors.loss import Frozen
from tests.watch.steps import Fed, Ran, feed
from tests.watch.streams import order_of

HALT = Severity.HALT
Number = Callable[[int], float | None]


def moving(number: int) -> float:
    return 5.5 - 0.0123456 * number


def run(loss: Number, norm: Number, count: int, **fields: object) -> Fed:
    made = Ran(order=order_of({}, **fields), ranks=2)
    for number in range(1, count + 1):
        made.step(loss=loss(number), grad_norm=norm(number))
    return feed(Frozen, made)


@pytest.mark.parametrize(
    ("loss", "norm", "found"),
    [
        (lambda n: moving(min(n, 10)), moving, [(HALT, 49)]),
        (lambda n: 4.2, moving, [(HALT, 40)]),
        (moving, lambda n: moving(min(n, 10)), [(HALT, 109)]),
        (lambda n: moving(n // 5), moving, []),
        (lambda n: moving(n // 30), moving, []),
        (lambda n: 0.0, moving, []),
        (moving, lambda n: 0.7, []),
        (moving, lambda n: moving(n) if n < 10 else 0.0, []),
        (lambda n: None, lambda n: None, []),
        (lambda n: float("inf"), moving, []),
    ],
    ids=[
        *("loss", "constant loss", "norm", "refreshed", "refreshed rarely", "zero loss"),
        *("constant norm", "zero norm", "missing", "infinite"),
    ],
)
def test_what_is_found(loss: Number, norm: Number, found: list[tuple[Severity, int]]) -> None:
    fed = run(
        loss,
        norm,
        240,
    )
    assert fed.severities[: len(found)] == found
    assert bool(fed.halts) is (HALT in dict(found))


def test_skipped_steps_neither_count_nor_end_a_run() -> None:
    made = Ran(order=order_of({}), ranks=1)
    for number in range(1, 90):
        skipped = number % 2 == 0
        made.step(loss=moving(number) if skipped else 4.2, skipped=skipped)
    assert feed(Frozen, made).severities == [(HALT, 79)]
