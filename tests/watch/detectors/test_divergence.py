"""D11: a loss that rises and stays is found; noise, spikes and plateaus are not."""

import random
from collections.abc import Callable

import pytest

from gonogo.contract.finding import Severity
from gonogo.watch.detectors.loss import Divergence
from tests.watch.steps import Fed, Ran, feed
from tests.watch.streams import order_of

WARN, HALT = Severity.WARN, Severity.HALT
Loss = Callable[[int], float | None]


def ran(loss: Loss, count: int, **watch: object) -> Ran:
    """Return a run whose loss is a function of the step."""
    made = Ran(order=order_of({"divergence": watch}), ranks=1)
    for number in range(1, count + 1):
        made.step(loss=loss(number))
    return made


def run(loss: Loss, count: int, **watch: object) -> Fed:
    """Return what the detector made of such a run."""
    return feed(Divergence, ran(loss, count, **watch))


def noisy(mean: Callable[[int], float], sigma: float = 0.05, seed: int = 3) -> Loss:
    dice = random.Random(seed)
    return lambda number: mean(number) + dice.gauss(0.0, sigma)


def jump(height: float, first: int = 300, last: int = 10_000) -> Callable[[int], float]:
    """Return a loss of 3.0 that is higher from one step to another."""
    return lambda number: 3.0 + (height if first < number <= last else 0.0)


@pytest.mark.parametrize(
    "loss",
    [
        noisy(lambda n: 3.0 + max(0, n - 300) * 0.02),
        noisy(jump(2.5)),
        noisy(jump(0.6)),
        noisy(jump(5.0), sigma=0.4),
    ],
    ids=["steady rise", "jump", "small jump", "noisy jump"],
)
def test_a_loss_that_rises_and_stays_is_found_once(loss: Loss) -> None:
    (halt,) = run(loss, 900).halts
    assert 350 <= (halt.step or 0) <= 450
    assert (halt.value or 0.0) > (halt.threshold or 0.0)
    assert halt.rank is None
    assert halt.key == "run_1/1/divergence/halt/rise"


@pytest.mark.parametrize(
    "loss",
    [
        noisy(lambda n: 5.5 - 0.002 * n),
        noisy(lambda n: 3.0),
        noisy(jump(0.25)),
        noisy(jump(0.4), sigma=0.6),
        noisy(jump(4.0, 300, 340)),
        noisy(lambda n: 3.0 + (4.0 * 0.98 ** (n - 300) if n > 300 else 0.0)),
        lambda n: 0.5 if n == 1 else 3.0,
        lambda n: 3.0 if n <= 100 else 6.0 if n <= 200 else 3.0,
        lambda n: None if n % 2 else 3.0,
    ],
    ids=[
        "falls",
        "plateau",
        "below the limit",
        "noise",
        "spike",
        "decay",
        "lucky",
        "early",
        "gaps",
    ],
)
def test_a_loss_that_does_not_stay_up_never_halts(loss: Loss) -> None:
    assert run(loss, 900).halts == []


def test_fifty_steps_halt_and_not_forty_nine() -> None:
    assert run(jump(10.0), 349).halts == []
    assert [halt.step for halt in run(jump(10.0), 600).halts] == [350]
