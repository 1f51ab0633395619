"""D26: the first loss is near ln(vocab)."""

import math

import pytest

from gonogo.contract.finding import Severity
from gonogo.contract.heartbeat import Identity
from gonogo.contract.outcome import Detector
from gonogo.watch import armed
from tests.watch.streams import World, order_of, watch


@pytest.mark.parametrize(
    ("loss", "warns"),
    [
        (5.545, False),
        (5.6877, False),
        (6.5, False),
        (math.log(256) + 1.0, False),
        (6.6, True),
        (4.5, True),
        (0.1, True),
    ],
)
def test_the_first_loss_warns_outside_the_tolerance(loss: float, warns: bool) -> None:
    found = watch(World(order_of(), loss=lambda step: loss).boot().steps(3))
    assert found.halts == []
    warnings = found.of(Severity.WARN)
    assert [(f.detector, f.step) for f in warnings] == [("first_loss", 1)] * warns
    assert not armed(found.state)[Detector.FIRST_LOSS]


@pytest.mark.parametrize("loss", [0.0, -0.2])
def test_a_loss_that_is_no_cross_entropy_is_told_and_warns_nobody(loss: float) -> None:
    found = watch(World(order_of(), loss=lambda step: loss + 0.01 * step - 0.01).boot().steps(3))
    assert [(f.detector, f.severity) for f in found.findings] == [("first_loss", Severity.INFO)]


def test_later_losses_do_not_matter() -> None:
    world = World(order_of(), loss=lambda step: 5.5 if step == 1 else 1.0).boot().steps(5)
    assert watch(world).findings == []


def test_a_resumed_run_has_no_first_loss() -> None:
    world = World(order_of(resume_step=20), loss=lambda step: 1.0).boot().steps(5)
    assert watch(world).findings == []


@pytest.mark.parametrize(
    ("steps", "resume_step", "identity", "on"),
    [
        (0, None, Identity(vocab=256), True),
        (1, None, Identity(vocab=256), False),
        (0, 20, Identity(vocab=256), False),
        (0, None, Identity(), False),
    ],
    ids=["before step 1", "after it", "resumed", "vocabulary unknown"],
)
def test_it_is_armed_until_the_first_loss_is_told(
    steps: int, resume_step: int | None, identity: Identity, on: bool
) -> None:
    order = order_of(resume_step=resume_step, identity=identity)
    found = watch(World(order).boot().steps(steps))
    assert armed(found.state)[Detector.FIRST_LOSS] is on


def test_a_loss_that_is_no_number_is_not_this_detectors() -> None:
    found = watch(World(order_of(), loss=lambda step: "NaN").boot().steps(2))
    assert found.named(Severity.WARN) == set()
