"""D12: vanished gradients halt, exploding and clipped ones warn, unknown ones say nothing."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.finding import Severity, Source
from gonogo.watch.detectors.gradients import Gradients
from tests.watch.steps import Ran, feed
from tests.watch.streams import EPOCH, order_of

WARN, HALT = Severity.WARN, Severity.HALT
CLIPPING = {"optim": {"clip": 1.0}}


def sound(ran: Ran, count: int, seed: int = 2) -> Ran:
    """Steps with gradient norms as they come."""
    dice = random.Random(seed)
    for _ in range(count):
        ran.step(grad_norm=dice.lognormvariate(0.0, 0.3))
    return ran


def test_three_norms_of_zero_halt_and_two_do_not() -> None:
    assert feed(Gradients, sound(Ran(), 10).many(2, grad_norm=0.0)).findings == []
    fed = feed(Gradients, sound(Ran(), 10).many(50, grad_norm=0.0))
    assert fed.severities == [(HALT, 13)]
    halt = fed.halts[0]
    assert (halt.value, halt.threshold, halt.source) == (3.0, 3.0, Source.DEFAULT)
    assert halt.since == EPOCH + 10.0
    assert halt.key == "run_1/1/gradients/halt/zero/step11"


def test_a_norm_that_is_not_zero_begins_the_count_anew() -> None:
    ran = sound(Ran(), 5)
    for _ in range(20):
        ran.many(2, grad_norm=0.0).step(grad_norm=1e-30)
    assert feed(Gradients, ran).findings == []
    again = feed(Gradients, ran.many(3, grad_norm=0.0).step(grad_norm=1.5).many(3, grad_norm=0.0))
    assert [f.severity for f in again.findings] == [HALT, HALT]


def test_zero_from_the_first_step_on_halts_where_the_trainer_names_its_sections() -> None:
    assert feed(Gradients, Ran().many(3, grad_norm=0.0)).severities == [(HALT, 3)]


def test_an_older_trainer_that_never_computed_a_norm_is_unknown() -> None:
    fed = feed(Gradients, Ran(labelled=False).many(300, grad_norm=0.0))
    assert fed.findings == []
    assert not fed.armed
    assert fed.missing is not None
    assert "gradient norm" in fed.missing
    told = feed(Gradients, Ran(labelled=False).step(grad_norm=2.5).many(60, grad_norm=0.0))
    assert told.severities == [(HALT, 61)]
    assert told.armed
    assert told.missing is None


def test_a_program_without_sections_may_print_zero_until_its_gradients_are_summed() -> None:
    ran = Ran(labelled=False)
    for _ in range(10):
        ran.many(59, grad_norm=0.0).step(grad_norm=1.5)
    assert feed(Gradients, ran).findings == []
    assert feed(Gradients, ran.many(80, grad_norm=0.0)).severities == [(HALT, 660)]


@pytest.mark.parametrize(
    ("last", "severity"),
    [
        (0.01, WARN),
        (0.049, WARN),
        (0.05, HALT),
        (0.0123, HALT),
        (1.0, HALT),
        (1e-6, WARN),
        (9e-7, HALT),
    ],
)
def test_a_zero_that_may_be_rounded_only_warns(last: float, severity: Severity) -> None:
    ran = sound(Ran(), 5).step(grad_norm=last).many(3, grad_norm=0.0)
    assert feed(Gradients, ran).severities == [(severity, 9)]


def test_batches_of_equal_rewards_have_neither_loss_nor_gradient_and_halt_nothing() -> None:
    ran = sound(Ran(), 20).many(59, loss=0.0, grad_norm=0.0)
    assert feed(Gradients, ran).findings == []
    assert feed(Gradients, ran.step(loss=0.0, grad_norm=0.0)).severities == [(WARN, 80)]
    again = sound(ran, 5).many(2, loss=0.0, grad_norm=0.0).many(3, loss=1e-4, grad_norm=0.0)
    assert feed(Gradients, again).severities == [(WARN, 80), (HALT, 90)]


def test_zeros_of_both_neither_count_nor_begin_the_count_anew() -> None:
    ran = sound(Ran(), 5).many(2, loss=0.3, grad_norm=0.0).many(3, loss=0.0, grad_norm=0.0)
    assert feed(Gradients, ran).findings == []
    assert feed(Gradients, ran.step(loss=0.3, grad_norm=0.0)).severities == [(HALT, 11)]


@pytest.mark.parametrize(
    ("norms", "severity"),
    [
        ((0.3, 0.1), WARN),
        ((2.7, 0.5), WARN),
        ((2.7, 0.6), HALT),
        ((0.31, 0.1), HALT),
        ((0.0004, 0.3012), HALT),
        ((0.3012, 0.0005), WARN),
        ((0.123456, 0.1), HALT),
        ((1.0, 1.0), HALT),
    ],
)
def test_norms_of_few_decimals_may_be_rounded_to_zero(
    norms: tuple[float, ...], severity: Severity
) -> None:
    ran = Ran()
    for norm in norms:
        ran.step(loss=2.5, grad_norm=norm)
    assert feed(Gradients, ran.many(3, loss=2.5, grad_norm=0.0)).severities == [(severity, 5)]


def test_skipped_steps_and_null_norms_say_nothing() -> None:
    ran = sound(Ran(), 10)
    for _ in range(30):
        ran.step(grad_norm=0.0, skipped=True).step(grad_norm=None, skipped=True).step()
    fed = feed(Gradients, ran)
    assert fed.findings == []
    both = feed(Gradients, ran.step(grad_norm=0.0).step(skipped=True).many(2, grad_norm=0.0))
    assert both.severities == [(HALT, ran.number)]


@pytest.mark.parametrize("norm", [float("nan"), float("inf"), -1.0])
def test_a_norm_that_is_none_says_nothing(norm: float) -> None:
    fed = feed(Gradients, Ran().many(100, grad_norm=norm))
    assert fed.findings == []
    assert not fed.armed
    assert fed.missing is not None


def test_before_the_first_step_nothing_is_missing() -> None:
    assert feed(Gradients, Ran()).missing is None


def spiky(factor: float, at: set[int]) -> Ran:
    ran = Ran()
    for number in range(1, 300):
        ran.step(grad_norm=factor if number in at else 1.0)
    return ran


def test_five_of_eight_spikes_warn_and_four_do_not() -> None:
    assert feed(Gradients, spiky(21.0, {200, 201, 203, 205})).findings == []
    assert feed(Gradients, spiky(21.0, {200, 201, 203, 205, 208})).findings == []
    fed = feed(Gradients, spiky(21.0, {200, 201, 203, 205, 207}))
    assert fed.severities == [(WARN, 207)]
    warning = fed.findings[0]
    assert (warning.value, warning.threshold) == (21.0, 20.0)
    assert warning.key == "run_1/1/gradients/warn/spikes/step207"
    assert feed(Gradients, spiky(20.0, {200, 201, 203, 205, 207})).findings == []


def test_a_norm_of_twenty_times_the_median_is_no_spike_where_one_was_lower() -> None:
    def dipped(factor: float) -> Ran:
        ran = Ran()
        for number in range(1, 300):
            spike = number in {200, 201, 203, 205, 207}
            ran.step(grad_norm=factor if spike else 0.5 if number == 190 else 1.0)
        return ran

    assert feed(Gradients, dipped(20.0)).findings == []
    assert feed(Gradients, dipped(20.25)).severities == [(WARN, 207)]


def test_spikes_warn_again_only_after_they_have_ceased() -> None:
    at = set(range(150, 160)) | set(range(200, 205))
    assert [f.step for f in feed(Gradients, spiky(50.0, at)).findings] == [154, 204]


def test_spikes_wait_for_half_a_window() -> None:
    assert feed(Gradients, spiky(50.0, set(range(59, 64)))).findings == []
    assert len(feed(Gradients, spiky(50.0, set(range(65, 70)))).findings) == 1


def test_a_median_of_zero_makes_no_spikes() -> None:
    ran = Ran()
    for number in range(300):
        ran.step(grad_norm=1.0 if number % 3 == 2 else 0.0)
    assert feed(Gradients, ran).findings == []


@pytest.mark.parametrize(("free", "found"), [(24, 1), (25, 0)])
def test_steps_that_are_nearly_all_clipped_warn(free: int, found: int) -> None:
    ran = Ran(order=order_of({}, train=CLIPPING))
    for number in range(500):
        ran.step(grad_norm=1.0 if number % 20 == 5 and number // 20 < free else 1.5)
    fed = feed(Gradients, ran)
    assert len(fed.findings) == found
    for warning in fed.findings:
        assert (warning.severity, warning.step, warning.threshold) == (WARN, 500, 0.95)
        assert warning.value == pytest.approx(0.952)
        assert warning.key == "run_1/1/gradients/warn/clipped/step500"


def test_499_clipped_steps_are_too_few() -> None:
    ran = Ran(order=order_of({}, train=CLIPPING)).many(499, grad_norm=9.0)
    assert feed(Gradients, ran).findings == []
    assert len(feed(Gradients, ran.many(400, grad_norm=9.0)).findings) == 1


def test_clipping_warns_again_after_it_has_ceased() -> None:
    ran = Ran(order=order_of({}, train=CLIPPING)).many(600, grad_norm=9.0).many(60, grad_norm=0.5)
    fed = feed(Gradients, ran.many(600, grad_norm=9.0))
    assert [f.step for f in fed.findings] == [500, 660 + 500 - 24]


@pytest.mark.parametrize("train", [{}, {"optim": {}}, {"optim": {"clip": 0}}, {"optim": 3}])
def test_without_a_clipping_limit_nothing_is_clipped(train: dict[str, object]) -> None:
    ran = Ran(order=order_of({}, train=train)).many(600, grad_norm=9.0)
    assert feed(Gradients, ran).findings == []


def test_a_restart_at_an_earlier_step_begins_anew() -> None:
    ran = sound(Ran(), 10).many(2, grad_norm=0.0).back_to(5)
    assert feed(Gradients, ran.many(2, grad_norm=0.0)).findings == []


@pytest.mark.parametrize(
    ("before", "another", "found"),
    [(0.01, False, [WARN]), (0.01, True, [HALT]), (1.2345, False, [HALT])],
    ids=["rounded", "another training", "not rounded"],
)
def test_norms_that_were_rounded_before_a_restart_are_so_after_it(
    before: float, another: bool, found: list[Severity]
) -> None:
    ran = Ran().many(10, grad_norm=before).back_to(5).many(3, grad_norm=0.0)
    assert [f.severity for f in feed(Gradients, ran, another=another).findings] == found


@pytest.mark.parametrize(("another", "found"), [(False, [(HALT, 65)]), (True, [])])
def test_who_told_norms_before_a_restart_computes_them(
    another: bool, found: list[tuple[Severity, int]]
) -> None:
    """Such a trainer names no sections, and its first norms may have been none."""
    ran = sound(Ran(labelled=False), 10).back_to(5).many(100, grad_norm=0.0)
    assert feed(Gradients, ran, another=another).severities == found


def test_plan_settings_count_and_are_named() -> None:
    order = order_of({"gradients": {"zero_steps": 5}})
    fed = feed(Gradients, sound(Ran(order=order), 3).many(9, grad_norm=0.0))
    assert fed.severities == [(HALT, 8)]
    assert fed.findings[0].source is Source.PLAN


def test_a_saved_state_goes_on_as_the_whole() -> None:
    ran = spiky(40.0, {200, 201, 202, 203, 204, 205}).many(3, grad_norm=0.0)
    whole = feed(Gradients, ran).findings
    assert len(whole) == 2
    assert feed(Gradients, ran, saved_every=11).findings == whole


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.floats(1e-6, 100.0), st.floats(0.05, 0.8), st.floats(0.0, 0.3))
def test_no_norm_that_ever_moves_halts(seed: int, scale: float, sigma: float, skip: float) -> None:
    dice, ran = random.Random(seed), Ran(ranks=1)
    for _ in range(400):
        skipped = dice.random() < skip
        norm = None if skipped and dice.random() < 0.5 else scale * dice.lognormvariate(0, sigma)
        ran.step(grad_norm=0.0 if skipped and norm else norm, skipped=skipped)
    assert feed(Gradients, ran).halts == []


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.5, None]), max_size=60))
def test_it_halts_exactly_where_three_zeros_follow_each_other(norms: list[float | None]) -> None:
    ran = Ran(ranks=1).step(grad_norm=1.5)
    for norm in norms:
        ran.step(grad_norm=norm)
    known = [norm for norm in norms if norm is not None]
    runs = "".join("0" if norm == 0.0 else "1" for norm in known).split("1")
    assert len(feed(Gradients, ran).halts) == sum(len(run) >= 3 for run in runs)


def test_a_step_that_is_ended_twice_begins_anew() -> None:
    ran = sound(Ran(), 10).many(2, grad_norm=0.0).back_to(11, boot="boot").step(grad_norm=0.0)
    assert feed(Gradients, ran).findings == []


def test_a_zero_beside_a_loss_ends_the_steps_with_nothing_to_learn() -> None:
    ran = sound(Ran(), 5).many(30, loss=0.0, grad_norm=0.0).step(loss=0.3, grad_norm=0.0)
    assert feed(Gradients, ran.many(59, loss=0.0, grad_norm=0.0)).findings == []
    assert feed(Gradients, ran.step(loss=0.0, grad_norm=0.0)).severities == [(WARN, 96)]


@pytest.mark.parametrize(("free", "found"), [(0, 1), (1, 0)])
def test_more_than_a_share_of_a_step_has_to_be_free(free: int, found: int) -> None:
    """Of ten, a twentieth is half a step: one that is free is enough."""
    settings = {"gradients": {"clip_steps": 10}}
    ran = Ran(order=order_of(settings, train=CLIPPING)).many(free, grad_norm=0.5)
    assert len(feed(Gradients, ran.many(10 - free, grad_norm=9.0)).findings) == found


def test_spikes_of_small_norms_are_spikes() -> None:
    ran = Ran().many(64, grad_norm=0.25).many(5, grad_norm=6.0)
    assert feed(Gradients, ran).severities == [(WARN, 69)]
