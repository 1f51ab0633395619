"""Of what kind a loss is: the rules of a rise, of swings, of gradients and of the learning rate."""

import math

import pytest

from gonogo.watch.loss_kind import GRADIENTS_KEPT, RATES_KEPT, Heat, LossKind, Rise

FELL_AND_ROSE = Rise(
    first=4.0,
    began=4.0,
    best=2.0,
    smooth=3.5,
    noise=0.02,
    jitter=0.02,
    worse=False,
    mild=False,
    long=False,
)
"""A quiet loss that fell from 4 to 2, and has won back three quarters of that."""
NOISY = {"best": 1.0, "smooth": 5.0, "noise": 0.3, "jitter": 0.3}
Told = dict[str, float | bool]


def rise(**told: float | bool) -> Rise:
    return Rise(**{**vars(FELL_AND_ROSE), **told})  # type: ignore[arg-type]  # names of numbers


def falls(own: LossKind, told: Told, *, speaks: bool = False, resumed: bool = False) -> bool:
    return own.falls(rise(**told), speaks=speaks, resumed=resumed)


def test_nothing_is_known_of_a_loss_before_it_was_told() -> None:
    own = LossKind()
    assert (own.negative, own.risen, own.swings, own.far_swings) == (False, 0, 0, 0)
    assert (own.far, own.largest, own.lately, own.usual_gradient) == (False, 0.0, (), None)


@pytest.mark.parametrize(("loss", "negative"), [(-0.1, True), (0.0, False), (0.3, False)])
def test_a_loss_below_zero_is_negative_from_then_on(loss: float, negative: bool) -> None:
    own = LossKind().after(loss, 1.0, 0.0)
    assert own.negative is negative
    assert own.after(2.0, 1.0, 1.0).negative is negative


def test_the_largest_loss_is_kept_by_size_and_not_while_it_is_up() -> None:
    """Nor is what the first step of a rise has made of it."""
    own = LossKind().after(1.0, 9.0, -3.0)
    assert own.largest == 3.0
    assert own.after(1.0, 9.0, 2.0).largest == 3.0
    assert own.after(1.0, 9.0, 4.0).largest == 4.0
    assert own.up(mild=True).after(1.0, 4.0, 9.0).largest == 3.0


def rising(*sizes: float) -> LossKind:
    """A loss of size 1 that is up for so many steps of each size."""
    own = LossKind().after(1.0, 1.0, 1.0).up(mild=True)
    for size in sizes:
        own = own.after(1.0, size, 0.0).up(mild=True)
    return own


@pytest.mark.parametrize(("steps", "largest"), [(449, 1.0), (450, 49.0), (499, 49.0), (500, 99.0)])
def test_what_a_loss_came_to_400_steps_ago_is_of_before(steps: int, largest: float) -> None:
    """It rises by one a step, below zero; blocks of fifty."""
    own = rising(*(-float(number) for number in range(1, steps + 1)))
    assert own.largest == largest
    assert len(own.lately) <= 9


def test_the_largest_of_a_block_counts_and_none_where_the_loss_has_come_back() -> None:
    own = rising(*[2.0] * 60, 7.0, *[2.0] * 500)
    assert own.largest == 7.0
    own = rising(*[2.0] * 60, 7.0, *[2.0] * 300)
    assert (own.largest, max(own.lately)) == (1.0, 7.0)
    assert (own.down().largest, own.down().lately) == (1.0, ())
    assert own.restarted().lately == ()


@pytest.mark.parametrize("norm", [None, math.nan, math.inf])
def test_a_gradient_norm_that_is_no_number_is_left_out(norm: float | None) -> None:
    assert LossKind().with_gradient(norm).gradients == ()
    assert LossKind().with_gradient(1.0).gradients == (1.0,)


def test_the_last_128_gradient_norms_are_kept() -> None:
    own = LossKind()
    for norm in range(GRADIENTS_KEPT + 3):
        own = own.with_gradient(float(norm))
    assert len(own.gradients) == 128
    assert own.gradients[-1] == 130.0


def test_the_usual_gradient_is_the_median_when_the_loss_begins_to_rise() -> None:
    own = LossKind(gradients=(1.0, 2.0, 9.0)).up(mild=True)
    assert (own.risen, own.usual_gradient) == (1, 2.0)
    later = own.with_gradient(50.0).with_gradient(60.0).up(mild=True)
    assert (later.risen, later.usual_gradient) == (2, 2.0)
    assert LossKind().up(mild=True).risen == 1
    assert LossKind().up(mild=True).usual_gradient is None


def test_a_rise_that_was_more_than_mild_once_stays_so_until_it_has_come_back() -> None:
    own = LossKind().up(mild=True)
    assert not own.far
    own = own.up(mild=False)
    assert own.far
    assert own.up(mild=True).far
    assert not own.down().far


@pytest.mark.parametrize(("steps", "swings"), [(24, 0), (25, 1)])
def test_a_rise_of_25_steps_that_came_back_has_swung(steps: int, swings: int) -> None:
    own = LossKind(gradients=(1.0,))
    for _ in range(steps):
        own = own.up(mild=False)
    own = own.down()
    assert (own.swings, own.far_swings) == (swings, swings)
    assert (own.risen, own.usual_gradient) == (0, None)
    for _ in range(steps):
        own = own.up(mild=True)
    assert (own.down().swings, own.down().far_swings) == (2 * swings, swings)


def test_what_was_never_up_has_not_swung_when_it_comes_down() -> None:
    assert LossKind(risen=0, far=True).down() == LossKind()


def test_a_quiet_loss_that_wins_back_its_fall_diverges_and_a_negative_one_does_not() -> None:
    assert falls(LossKind(), {})
    assert not falls(LossKind(negative=True), {})


@pytest.mark.parametrize(("best", "found"), [(0.0, False), (0.4, True)])
def test_a_best_of_zero_is_of_no_loss_that_only_falls(best: float, found: bool) -> None:
    assert falls(LossKind(), {"best": best, "noise": 0.0}) is found


@pytest.mark.parametrize(
    ("told", "speaks", "found"),
    [
        ({}, False, False),
        ({"long": True}, False, True),
        ({"worse": True}, False, False),
        ({"worse": True}, True, True),
        ({}, True, False),
    ],
)
def test_a_mild_rise_has_to_last_or_to_be_worse_than_a_language_models_start(
    told: Told, speaks: bool, found: bool
) -> None:
    assert falls(LossKind(), {"mild": True, **told}, speaks=speaks) is found
    assert falls(LossKind(), told, speaks=speaks)


@pytest.mark.parametrize(
    ("swings", "worse", "found"), [(1, False, True), (2, False, False), (2, True, True)]
)
def test_a_language_models_loss_may_swing_far_once(swings: int, worse: bool, found: bool) -> None:
    own = LossKind(swings=swings, far_swings=swings)
    assert falls(own, {"worse": worse}, speaks=True) is found
    assert not falls(own, {"worse": worse})


@pytest.mark.parametrize(
    ("noise", "jitter", "found"),
    [(0.1, 1.0, True), (0.101, 1.0, False), (1.0, 0.04, True), (1.0, 0.041, False)],
)
def test_quiet_is_a_noise_of_a_twentieth_or_a_jitter_of_a_fiftieth_of_the_best(
    noise: float, jitter: float, found: bool
) -> None:
    assert falls(LossKind(), {"noise": noise, "jitter": jitter}) is found


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({"smooth": 3.0}, True),
        ({"smooth": 2.99}, False),
        ({"first": 20.0, "began": 20.0, "smooth": 6.0}, True),
        ({"first": 20.0, "began": 20.0, "smooth": 5.99}, False),
    ],
)
def test_a_fall_is_won_back_by_half_of_it_or_by_three_times_the_best(
    told: Told, found: bool
) -> None:
    assert falls(LossKind(), told) is found


@pytest.mark.parametrize(
    ("start", "smooth", "found"),
    [(4.0, 5.0, True), (4.0, 4.99, False), (1.0, 1.25, True), (0.99, 3.0, False)],
)
def test_a_quiet_loss_that_never_fell_comes_to_a_quarter_above_its_start(
    start: float, smooth: float, found: bool
) -> None:
    told: Told = {"first": start, "began": start, "best": start, "smooth": smooth}
    assert falls(LossKind(), told) is found
    assert falls(LossKind(), told, resumed=True)


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({}, True),
        ({"smooth": 4.99}, False),
        ({"first": 2.0, "began": 2.0, "smooth": 3.0}, True),
        ({"first": 2.0, "began": 2.0, "smooth": 2.99}, False),
        ({"noise": 0.35}, True),
        ({"noise": 0.351}, False),
    ],
)
def test_a_noisy_loss_that_fell_comes_to_three_times_its_best_and_above_its_start(
    told: Told, found: bool
) -> None:
    assert falls(LossKind(), {**NOISY, **told}) is found


def test_a_noisy_loss_that_never_fell_diverges_only_where_it_may_have_fallen_before() -> None:
    told: Told = {**NOISY, "first": 1.0, "began": 1.0}
    assert not falls(LossKind(), told)
    assert falls(LossKind(), told, resumed=True)


def gradients(now: float, usual: float | None = 1.0) -> LossKind:
    return LossKind(gradients=(now,) * 25, usual_gradient=usual)


def test_the_gradients_of_a_noisy_rise_grow_threefold_where_they_are_told() -> None:
    assert falls(gradients(3.0), NOISY)
    assert not falls(gradients(2.99), NOISY)
    assert falls(gradients(2.99, usual=None), NOISY)
    assert falls(gradients(2.99, usual=0.0), NOISY)


def test_a_very_noisy_rise_is_no_divergence_whatever_the_gradients_do() -> None:
    for own in (gradients(3.0), gradients(30.0), LossKind()):
        assert not falls(own, {**NOISY, "noise": 0.36})
        assert not falls(own, {**NOISY, "noise": 0.36}, resumed=True)


def test_the_gradients_of_now_are_the_median_of_the_last_25() -> None:
    own = LossKind(gradients=(1.0,) * 13 + (3.0,) * 13, usual_gradient=1.0)
    assert falls(own, NOISY)
    less = LossKind(gradients=(1.0,) * 13 + (3.0,) * 12, usual_gradient=1.0)
    assert not falls(less, NOISY)


@pytest.mark.parametrize(
    ("largest", "smooth", "found"),
    [(0.0, 10.0, False), (0.0, 10.1, True), (2.0, 20.0, False), (2.0, 20.1, True)],
)
def test_a_blow_up_is_more_than_ten_times_the_largest_and_more_than_ten(
    largest: float, smooth: float, found: bool
) -> None:
    assert LossKind(largest=largest).blows_up(smooth) is found
    assert not LossKind(largest=largest, gradients=(1.0,), usual_gradient=1.0).blows_up(smooth)


@pytest.mark.parametrize(
    ("told", "fell"),
    [
        ({"first": 10.0, "began": 10.0, "best": 9.0}, True),
        ({"first": 10.0, "began": 10.0, "best": 9.01}, False),
        ({"first": 2.5, "began": 2.0, "best": 2.0, "noise": 0.125}, True),
        ({"first": 2.375, "began": 2.0, "best": 2.0, "noise": 0.125}, False),
        ({"first": 2.5, "began": 9.0, "best": 2.0, "noise": 0.125}, True),
    ],
)
def test_a_loss_has_fallen_by_a_tenth_and_from_its_first_values_only_beyond_its_noise(
    told: Told, fell: bool
) -> None:
    assert rise(**told).fell is fell


@pytest.mark.parametrize(("first", "start"), [(1.0, 1.0), (0.99, 1.5)])
def test_a_loss_starts_where_its_first_values_were_unless_they_were_small(
    first: float, start: float
) -> None:
    assert rise(first=first, began=1.5).start == start


@pytest.mark.parametrize("rate", [None, math.nan, math.inf, -0.1])
def test_what_is_no_learning_rate_changes_nothing(rate: float | None) -> None:
    own = Heat(told=True, rates=(1.0,), top=1.0, low=0.1)
    assert own.after(rate) == (own, False)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_a_first_learning_rate_is_the_top_and_the_lowest(rate: float) -> None:
    assert Heat() == Heat(told=False, rates=(), top=0.0, low=0.0)
    assert Heat().after(rate) == (Heat(told=True, rates=(rate,), top=rate, low=rate), False)


def test_the_mean_of_the_last_twelve_rates_counts() -> None:
    own = Heat()
    for number in range(RATES_KEPT + 2):
        own, _ = own.after(float(number))
    assert own.rates == tuple(float(number) for number in range(2, 14))
    assert own.top == 7.5


def test_a_learning_rate_that_warms_up_does_not_jump_back() -> None:
    own = Heat(told=True, top=1.0, low=1.0)
    assert own.after(2.0) == (Heat(told=True, rates=(2.0,), top=2.0, low=2.0), False)


@pytest.mark.parametrize(
    ("top", "low", "rate", "jumps"),
    [
        (1.0, 0.25, 0.3125, True),
        (1.0, 0.25, 0.31, False),
        (10.0, 0.1, 1.0, True),
        (10.0, 0.1, 0.99, False),
        (1.0, 0.5, 2.0, True),
    ],
)
def test_a_rate_jumps_back_by_a_quarter_and_to_a_tenth_of_its_top(
    top: float, low: float, rate: float, jumps: bool
) -> None:
    own = Heat(told=True, top=top, low=low)
    after = Heat(told=True, rates=(rate,), top=max(top, rate), low=rate if jumps else low)
    assert own.after(rate) == (after, jumps)


def test_a_rate_that_falls_is_the_lowest_and_one_back_at_its_top_begins_anew() -> None:
    own = Heat(told=True, top=1.0, low=0.9)
    assert own.after(0.5)[0].low == 0.5
    assert own.after(0.95)[0].low == 0.9
    assert own.after(1.0) == (Heat(told=True, rates=(1.0,), top=1.0, low=1.0), False)


def test_a_rate_that_warms_up_after_a_restart_reheats_beyond_what_it_was() -> None:
    own = Heat(told=True, rates=(0.5,), top=1.0, low=0.5).restarted()
    for rate in (0.1, 0.2, 0.3, 0.9):
        own, reheats = own.after(rate)
        assert (own.low, own.warms, reheats) == (0.5, True, False)
    own, reheats = own.after(1.5)
    assert (own.low, own.warms, reheats) == (0.5, False, False)
    assert own.after(1.6)[1]


def test_a_rate_that_falls_after_a_restart_warms_up_no_more() -> None:
    own, _ = Heat(told=True, rates=(0.5,), top=1.0, low=0.5).restarted().after(0.4)
    own, _ = own.after(0.3)
    assert (own.low, own.warms) == (0.35, False)
    assert Heat(told=True, top=1.0, low=0.0).restarted().warms is False
