"""The loss and what is reported with it: non-finite, diverged, frozen, gradients, gates."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.finding import Severity
from gonogo.contract.heartbeat import Identity
from gonogo.watch.detectors.loss import Divergence, Frozen, GateCollapse, Gradients, NonFinite
from gonogo.watch.fold import armed
from tests.watch.steps import Fed, Ran, feed
from tests.watch.streams import IDENTITY, World, order_of, watch

# D10: numbers that are not finite, and steps that a loss scaler skips.


INF = float("inf")


def of_dtype(dtype: str | None) -> World:
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
    (halt,) = watch(of_dtype(dtype).steps(14).steps(1, **told)).halts
    assert (halt.detector, halt.rank, halt.step) == ("non_finite", None, 15)
    assert "loss" in halt.text


@pytest.mark.parametrize(
    ("dtype", "told", "halts"),
    [
        ("fp32", {}, True), ("bf16", {"skipped": True}, True),
        ("fp32", {"skipped": False, "loss_scale": 1024.0}, True),
        ("fp32", {"skipped": True}, False), ("fp32", {"loss_scale": 1024.0}, False),
        (None, {}, False), ("fp16", {}, False),
    ],
)  # fmt: skip
def test_a_bad_norm_halts_unless_a_scaler_may_have_skipped_the_step(
    dtype: str | None, told: dict[str, Any], halts: bool
) -> None:
    world = of_dtype(dtype).steps(14).steps(1, grad_norm="Infinity", **told).steps(5)
    assert bool(watch(world).halts) is halts


def skipping(
    pattern: str, dtype: str | None = "fp16", *, scale: float | None = None, hysteresis: int = 1
) -> list[int | None]:
    """Return the steps of the halts of a run that skips where the pattern has an `x`.

    Args:
        pattern: one letter a step; "-" for one that reports nothing.
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
        told = {"loss": 3.0, "skipped": skipped, "grad_norm": norm, "loss_scale": now}
        made.step(**({} if letter == "-" else told))
        overflows += skipped
    return [halt.step for halt in feed(NonFinite, made).halts]


@pytest.mark.parametrize(
    ("pattern", "scale", "halts"),
    [
        (".xx.xx.", None, []), (".xxx", None, [4]), (".x-x-x", None, [6]),
        ("." + "x........." * 9, None, []), ("." + "x........." * 10, None, [92]),
        ("x" * 39 + "." * 20, None, []), ("x" * 40, None, [40]), ("x" * 20 + "." * 9, 2.0**32, []),
        (".." + "x" * 14 + "." * 9 + "xx.", 2.0**16, []), ("x" * 60, 2.0**60, [40]),
    ],
)  # fmt: skip
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
    world = of_dtype("fp32").steps(3)
    for rank in world.ranks:
        rank.say("eval", val_loss="NaN", dt=1.0)
    seen = watch(world.steps(3))
    assert ("non_finite" in seen.named(Severity.WARN), seen.halts) == (True, [])


# D11: a loss that rises and stays is found; noise, spikes and plateaus are not.


WARN, HALT = Severity.WARN, Severity.HALT
Curve = Callable[[int], float | None]


def ran_with(loss: Curve, count: int, **watch: object) -> Ran:
    """Return a run whose loss is a function of the step."""
    made = Ran(order=order_of({"divergence": watch}), ranks=1)
    for number in range(1, count + 1):
        made.step(loss=loss(number))
    return made


def divergence(loss: Curve, count: int, **watch: object) -> Fed:
    """Return what the detector made of such a run."""
    return feed(Divergence, ran_with(loss, count, **watch))


def with_noise(mean: Callable[[int], float], sigma: float = 0.05, seed: int = 3) -> Curve:
    dice = random.Random(seed)
    return lambda number: mean(number) + dice.gauss(0.0, sigma)


def jump(height: float, first: int = 300, last: int = 10_000) -> Callable[[int], float]:
    """Return a loss of 3.0 that is higher from one step to another."""
    return lambda number: 3.0 + (height if first < number <= last else 0.0)


@pytest.mark.parametrize(
    "loss",
    [
        with_noise(lambda n: 3.0 + max(0, n - 300) * 0.02), with_noise(jump(2.5)),
        with_noise(jump(0.6)), with_noise(jump(5.0), sigma=0.4),
    ],
    ids=["steady rise", "jump", "small jump", "noisy jump"],
)  # fmt: skip
def test_a_loss_that_rises_and_stays_is_found_once(loss: Curve) -> None:
    (halt,) = divergence(loss, 900).halts
    assert 350 <= (halt.step or 0) <= 450
    assert (halt.value or 0.0) > (halt.threshold or 0.0)
    assert halt.rank is None
    assert halt.key == "run_1/1/divergence/halt/rise"


@pytest.mark.parametrize(
    "loss",
    [
        with_noise(lambda n: 5.5 - 0.002 * n),
        with_noise(lambda n: 3.0),
        with_noise(jump(0.25)),
        with_noise(jump(0.4), sigma=0.6),
        with_noise(jump(4.0, 300, 340)),
        with_noise(lambda n: 3.0 + (4.0 * 0.98 ** (n - 300) if n > 300 else 0.0)),
        lambda n: 0.5 if n == 1 else 3.0,
        lambda n: 3.0 if n <= 100 else 6.0 if n <= 200 else 3.0,
        lambda n: None if n % 2 else 3.0,
    ],
    ids=[
        "falls", "plateau", "below the limit", "noise", "spike", "decay", "lucky", "early", "gaps",
    ],
)  # fmt: skip
def test_a_loss_that_does_not_stay_up_never_halts(loss: Curve) -> None:
    assert divergence(loss, 900).halts == []


def test_the_best_loss_counts_from_the_step_that_the_plan_names() -> None:
    """The mean is not smooth yet; 3.0 at step 4 is the best all the same."""
    settings = {"alpha": 0.001, "after_step": 4, "over_steps": 2, "above": 3.0}
    found = divergence(lambda n: 3.0 if n <= 4 else 10.0, 20, **settings, above_ratio=0.01)
    assert [halt.step for halt in found.halts] == [8]


@pytest.mark.parametrize(
    ("first", "height", "noise", "warns"),
    [(6, 9.0, 0.0, []), (7, 9.0, 0.0, [9]), (7, 5.0, 0.1, []), (7, 6.0, 0.1, [9])],
)
def test_spikes_are_held_against_more_than_half_a_window(
    first: int, height: float, noise: float, warns: list[int]
) -> None:
    settings = {"window_steps": 16, "spike_count": 2, "spike_of": 5, "over_steps": 8}
    spikes = {first: height, first + 2: height}
    found = divergence(lambda n: spikes.get(n, 3.0 + noise * (-1) ** n), 12, **settings)
    assert [row.step for row in found.findings] == warns
    assert all(row.text.endswith(f"; the last is {height:g}") for row in found.findings)


def test_fifty_steps_halt_and_not_forty_nine() -> None:
    assert divergence(jump(10.0), 349).halts == []
    assert [halt.step for halt in divergence(jump(10.0), 600).halts] == [350]


# D9: equal values are found; numbers that move, are zero or refreshed at times are not.


HALT = Severity.HALT
Number = Callable[[int], float | None]


def moving(number: int) -> float:
    return 5.5 - 0.0123456 * number


def frozen(loss: Number, norm: Number, count: int, **fields: object) -> Fed:
    made = Ran(order=order_of({}, **fields), ranks=2)
    for number in range(1, count + 1):
        made.step(loss=loss(number), grad_norm=norm(number))
    return feed(Frozen, made)


@pytest.mark.parametrize(
    ("loss", "norm", "found"),
    [
        (lambda n: moving(min(n, 10)), moving, [(HALT, 49)]), (lambda n: 4.2, moving, [(HALT, 40)]),
        (moving, lambda n: moving(min(n, 10)), [(HALT, 109)]),
        (lambda n: moving(n // 5), moving, []), (lambda n: moving(n // 30), moving, []),
        (lambda n: 0.0, moving, []), (moving, lambda n: 0.7, []),
        (moving, lambda n: moving(n) if n < 10 else 0.0, []), (lambda n: None, lambda n: None, []),
        (lambda n: float("inf"), moving, []),
    ],
    ids=[
        *("loss", "constant loss", "norm", "refreshed", "refreshed rarely", "zero loss"),
        *("constant norm", "zero norm", "missing", "infinite"),
    ],
)  # fmt: skip
def test_what_is_found(loss: Number, norm: Number, found: list[tuple[Severity, int]]) -> None:
    fed = frozen(loss, norm, 240)
    assert fed.severities[: len(found)] == found
    assert bool(fed.halts) is (HALT in dict(found))


def test_skipped_steps_neither_count_nor_end_a_run() -> None:
    made = Ran(order=order_of({}), ranks=1)
    for number in range(1, 90):
        skipped = number % 2 == 0
        made.step(loss=moving(number) if skipped else 4.2, skipped=skipped)
    assert feed(Frozen, made).severities == [(HALT, 79)]


# D12: norms of zero, spikes and steps that are always clipped.


def gradients(
    norms: list[float | None], *, loss: float | None = 3.0, clip: float | None = None
) -> Fed:
    train = {} if clip is None else {"optim": {"clip": clip}}
    made = Ran(order=order_of({}, train=train), ranks=2)
    for norm in norms:
        made.step(grad_norm=norm, loss=loss)
    return feed(Gradients, made)


@pytest.mark.parametrize(
    ("norms", "loss", "found"),
    [
        ([1.0, 0.0, 0.0, 0.0, 0.0], 3.0, [(HALT, 4)]), ([1.0, 0.0, 0.0, 1.0, 0.0, 0.0], 3.0, []),
        ([1.0, 0.0, None, 0.0, 0.0], 3.0, [(HALT, 5)]), ([0.0] * 9, 3.0, []),
        ([1.0, 0.0, 0.0, 0.0], 0.0, []), ([1.0, -1.0, float("nan"), None], 3.0, []),
    ],
    ids=["zeros", "two zeros", "null between", "never computed", "equal rewards", "no number"],
)  # fmt: skip
def test_norms_of_zero(
    norms: list[float | None], loss: float, found: list[tuple[Severity, int]]
) -> None:
    assert gradients(norms, loss=loss).severities == found


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), max_size=30))
def test_it_halts_exactly_where_three_zeros_follow_a_norm(norms: list[float | None]) -> None:
    told = [norm for norm in norms if norm is not None]
    first = next((at for at, norm in enumerate(told) if norm), len(told))
    text = "".join("0" if norm == 0.0 else "x" for norm in told[first:])
    assert bool(gradients(norms).halts) is ("000" in text)


# D13: collapsed gates on steps far enough apart; without statistics nothing is known.


COLLAPSED = {"gate_collapse_frac": 1.0}


def looks(
    steps: tuple[int, ...], sound: tuple[int, ...] = (), layers: int | None = 12, **told: Any
) -> Fed:
    """A run whose gates are reported at these steps: collapsed, or sound."""
    order = order_of({}, identity=Identity(layers=layers))
    ran = Ran(order=order, ranks=2)
    for number in range(1, max(steps) + 1):
        numbers = told if number in steps else {"gate_collapse_frac": 0.0}
        ran.step(**(numbers if number in steps or number in sound else {}))
    return feed(GateCollapse, ran)


@pytest.mark.parametrize(
    ("steps", "sound", "found"),
    [
        ((510, 560, 610), (), [(WARN, 610), (HALT, 610)]),
        ((510, 530, 560, 590, 610), (), [(WARN, 610), (HALT, 610)]), ((510, 560, 609), (), []),
        ((400, 510, 560), (), []), ((510, 560, 610), (585,), []),
    ],
    ids=["apart", "between", "too near", "too early", "sound between"],
)  # fmt: skip
def test_three_steps_fifty_apart_are_needed(
    steps: tuple[int, ...], sound: tuple[int, ...], found: list[tuple[Severity, int]]
) -> None:
    fed = looks(steps, sound, **COLLAPSED)
    assert fed.severities == found
    assert all(f"since step {steps[0]}" in row.text for row in fed.findings)


@pytest.mark.parametrize(
    ("told", "share", "severities"),
    [
        ({"gate_collapse_frac": 0.6}, 0.6, [WARN, HALT]),
        ({"gate_collapse_frac": 0.5}, 0.5, [WARN]),
        ({"gate_collapse_frac": 0.0, "gate_entropy": 0.01}, 0.0, []),
        ({"gate_entropy": 0.17}, 1.0, [WARN, HALT]), ({"gate_entropy": 0.19}, 0.0, []),
        ({"gate_max": 0.95}, 1 / 12, [WARN]), ({"gate_max": 0.95, "layers": None}, 0.01, [WARN]),
        ({"gate_entropy": 0.5, "gate_max": 0.95}, 1 / 12, [WARN]),
        ({"gate_entropy": float("nan")}, 0.0, []),
    ],
)  # fmt: skip
def test_the_share_of_layers_decides(
    told: dict[str, Any], share: float, severities: list[Severity]
) -> None:
    found = looks((510, 560, 610), **told).findings
    assert [(row.severity, row.value) for row in found] == [(row, share) for row in severities]


def test_without_statistics_it_is_blind_and_says_so() -> None:
    ran = Ran(order=order_of({}, env={"NSA_DISABLE_AUX_STATS": "1"})).many(3)
    for fed in (feed(GateCollapse, ran), feed(GateCollapse, Ran().many(3))):
        assert fed.missing
        assert not fed.armed
        assert fed.detector.near(fed.own, fed.view, 0.0).blind
    assert not feed(GateCollapse, Ran(order=order_of({}, entry="train.py")).many(3)).missing
    fed = looks((510, 560), **COLLAPSED)
    near = fed.detector.near(fed.own, fed.view, 0.0)
    assert (fed.armed, fed.missing, near.value, near.limit) == (True, None, 2.0, 3.0)


# D26: the first loss is near ln(vocab).


@pytest.mark.parametrize(
    ("loss", "vocab", "resume_step", "warns"),
    [
        (5.545, 256, None, False), (6.5, 256, None, False), (6.6, 256, None, True),
        (4.5, 256, None, True), (1.0, 1, None, False), (1.0 + 1e-9, 1, None, True),
        (9.0, None, None, False), (9.0, 256, 20, False), ("NaN", 256, None, False),
    ],
)  # fmt: skip
def test_the_first_loss_warns_where_it_is_not_that_of_an_untrained_model(
    loss: float | str, vocab: int | None, resume_step: int | None, warns: bool
) -> None:
    identity = IDENTITY.model_copy(update={"vocab": vocab})
    order = order_of(identity=identity, resume_step=resume_step)
    seen = watch(World(order, loss=lambda step: loss).boot().steps(3))
    found = [row for row in seen.findings if row.detector == "first_loss"]
    assert [(row.severity, row.step) for row in found] == ([(Severity.WARN, 1)] if warns else [])
    assert not armed(seen.state)["first_loss"]


def plain(losses: list[float], **watch: object) -> list[int | None]:
    """Return the steps of the halts of a run whose losses are not smoothed."""
    settings = {"alpha": 1.0, "after_step": 4, "above": 0.25, "above_ratio": 0.01, **watch}
    return [
        halt.step for halt in divergence(lambda n: losses[n - 1], len(losses), **settings).halts
    ]


@pytest.mark.parametrize(("later", "halts"), [(20.0, [9]), (19.9, [])])
def test_a_rise_that_keeps_nineteen_twentieths_of_its_height_holds(
    later: float, halts: list[int]
) -> None:
    assert plain([1.0] * 5 + [21.0, 21.0, later, later], over_steps=4) == halts


def test_a_rise_of_exactly_the_limit_does_not_halt() -> None:
    assert plain([3.0] * 5 + [3.25] * 9, over_steps=3) == []
    assert plain([3.0] * 5 + [3.5] * 9, over_steps=3) == [8]
    assert plain([2.5] * 5 + [3.0] * 9, over_steps=3, above_ratio=0.2) == []
    assert plain([2.5] * 5 + [3.25] * 9, over_steps=3, above_ratio=0.2) == [8]


@pytest.mark.parametrize(("count", "warnings"), [(4, 0), (5, 1), (40, 1)])
def test_five_of_eight_spikes_warn_once(count: int, warnings: int) -> None:
    fed = divergence(with_noise(jump(4.0, 300, 300 + count)), 600)
    assert [row.text.endswith(f"the last is {row.value:.4g}") for row in fed.of(WARN)] == (
        [True] * warnings
    )
    assert fed.halts == []
