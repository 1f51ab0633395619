"""D10: numbers that are not finite, and steps that a loss scaler skips."""

from typing import Any

import pytest

from gonogo.contract.finding import Severity
from gonogo.contract.heartbeat import Identity
from gonogo.watch.detectors.loss import NonFinite
from tests.watch.steps import Ran, feed
from tests.watch.streams import World, order_of, watch

INF = float("inf")


def world_of(dtype: str | None) -> World:
    return World(order_of(identity=Identity(dtype=dtype, tokens_per_step=2048), steps=400)).boot()


@pytest.mark.parametrize("dtype", ["fp32", "bf16", None])
@pytest.mark.parametrize(
    "told",
    [
        {"loss": "NaN"},
        {"loss": "-Infinity", "grad_norm": None},
        {"loss": "NaN", "loss_scale": 1024.0},
    ],
)
def test_the_first_bad_loss_halts_on_its_line(dtype: str | None, told: dict[str, Any]) -> None:
    (halt,) = watch(world_of(dtype).steps(14).steps(1, **told)).halts
    assert (halt.detector, halt.rank, halt.step) == ("non_finite", None, 15)
    assert "loss" in halt.text


@pytest.mark.parametrize(
    ("dtype", "told", "halts"),
    [
        ("fp32", {}, True),
        ("bf16", {"skipped": True}, True),
        ("fp32", {"skipped": False, "loss_scale": 1024.0}, True),
        ("fp32", {"skipped": True}, False),
        ("fp32", {"loss_scale": 1024.0}, False),
        (None, {}, False),
        ("fp16", {}, False),
    ],
)
def test_a_bad_norm_halts_unless_a_scaler_may_have_skipped_the_step(
    dtype: str | None, told: dict[str, Any], halts: bool
) -> None:
    world = world_of(dtype).steps(14).steps(1, grad_norm="Infinity", **told).steps(5)
    assert bool(watch(world).halts) is halts


def skipping(
    pattern: str, dtype: str | None = "fp16", *, scale: float | None = None, hysteresis: int = 1
) -> list[int | None]:
    """Return the steps of the halts of a run that skips where the pattern has an `x`.

    Args:
        pattern: one letter a step.
        dtype: of the order.
        scale: loss scale of the first step, halved by each overflow; None: not reported.
        hysteresis: overflows that halve it.
    """
    made = Ran(order=order_of({}, identity=Identity(dtype=dtype)), ranks=2)
    overflows = 0
    for letter in pattern:
        skipped = letter == "x"
        norm = INF if skipped and dtype != "bf16" else 1.0
        now = None if scale is None else scale / 2.0 ** (overflows // hysteresis)
        made.step(loss=3.0, skipped=skipped, grad_norm=norm, loss_scale=now)
        overflows += skipped
    return [halt.step for halt in feed(NonFinite, made).halts]


@pytest.mark.parametrize(
    ("pattern", "scale", "halts"),
    [
        (".xx.xx.", None, []),
        (".xxx", None, [4]),
        ("." + "x........." * 9, None, []),
        ("." + "x........." * 10, None, [92]),
        ("x" * 39 + "." * 20, None, []),
        ("x" * 40, None, [40]),
        ("x" * 20 + "." * 9, 2.0**32, []),
        (".." + "x" * 14 + "." * 9 + "xx.", 2.0**16, []),
        ("x" * 60, 2.0**60, [40]),
    ],
)
def test_steps_that_a_scaler_skips(pattern: str, scale: float | None, halts: list[int]) -> None:
    assert skipping(pattern, scale=scale)[:1] == halts[:1]


@pytest.mark.parametrize("dtype", [None, "fp32"])
def test_mixed_precision_is_judged_as_fp16(dtype: str | None) -> None:
    assert skipping(".xx.xx.", dtype) == []
    assert skipping(".xxx", dtype) == [4]


def test_bf16_updates_may_be_skipped_but_not_all_of_the_last_hundred() -> None:
    assert skipping(("." + "x" * 99) * 2, "bf16") == []
    assert skipping("." + "x" * 101, "bf16") == [101]


def test_a_bad_validation_loss_warns() -> None:
    world = world_of("fp32").steps(3)
    for rank in world.ranks:
        rank.say("eval", val_loss="NaN", dt=1.0)
    seen = watch(world.steps(3))
    assert ("non_finite" in seen.named(Severity.WARN), seen.halts) == (True, [])
