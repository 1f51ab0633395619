"""Where a loss has been: what a restart, a warm restart and a return leave of it."""

import math

import pytest

from gonogo.watch.loss_kind import Heat, LossKind
from gonogo.watch.loss_trend import SIGMA_OF_MAD, Trend, come_back, jitter_of, sigma_of
from gonogo.watch.state import replace

UP = Trend(
    last_step=300,
    steps=300,
    waited=100,
    smooth=4.0,
    best=2.0,
    first=(5.0, 5.0, 5.0),
    began=4.5,
    bests=((10, 3.0), (20, 2.5), (30, 2.0)),
    was_armed=True,
    window=(4.0, 4.1),
    noise=0.1,
    jitter=0.2,
    over=7,
    since_step=290,
    since_ts=29.0,
    up=9,
    up_step=288,
    up_ts=28.0,
    height=3.0,
    heights=(2.0,),
    eased=3.5,
    eases=2,
    told=True,
    risen_by=1.5,
    spikes=(True, False),
    spike_steps=2,
    bursts=(10, 20, 30),
    spikes_warned=True,
    ends=True,
    kind=LossKind(risen=40, far=True, usual_gradient=1.0, gradients=(1.0,)),
    heat=Heat(told=True, rates=(1.0,), top=1.0, low=0.5),
)
"""A loss that is up since step 288, and was told of."""
SWUNG = LossKind(swings=1, longest=40, far_swings=1, gradients=(1.0,))


def test_a_run_begins_with_nothing_told() -> None:
    own = Trend()
    assert (own.last_step, own.steps, own.over, own.up, own.spike_steps) == (0, 0, 0, 0, 0)
    assert (own.smooth, own.jitter, own.height, own.risen_by) == (0.0, 0.0, 0.0, 0.0)
    assert (own.since_step, own.since_ts, own.up_step, own.up_ts) == (0, 0.0, 0, 0.0)
    assert {own.was_armed, own.told, own.ends, own.warm, own.spikes_warned} == {False}


def test_a_loss_that_has_come_back_is_up_no_more_and_keeps_where_it_was() -> None:
    left = replace(
        UP,
        waited=0,
        noise=None,
        over=0,
        up=0,
        height=0.0,
        heights=(),
        eased=None,
        eases=0,
        told=False,
        ends=False,
        kind=SWUNG,
    )
    assert come_back(UP) == left


def test_a_rise_that_comes_down_is_held_against_its_lowest_in_blocks_of_its_own() -> None:
    left = replace(UP, eased=4.0, eases=3, over=0, up=0, height=0.0, heights=())
    assert UP.easing() == left


def test_a_warm_restart_counts_anew_and_keeps_the_first_losses() -> None:
    left = replace(come_back(UP), steps=0, best=None, bests=(), warm=True, window=(), spikes=())
    assert UP.reheated() == left


def test_a_restart_knows_the_best_that_the_run_had_had_by_that_step() -> None:
    assert UP.back_at(20) == Trend(
        first=(5.0, 5.0, 5.0),
        began=4.5,
        best=2.5,
        bests=((10, 3.0), (20, 2.5)),
        was_armed=True,
        risen_by=1.5,
        bursts=(10, 20),
        spikes_warned=True,
        kind=LossKind(gradients=(1.0,)),
        heat=UP.heat.restarted(),
    )
    assert UP.back_at(29).best == 2.5
    assert UP.back_at(9).best is None


def test_a_rise_goes_on_over_a_restart_that_finds_the_loss_up() -> None:
    """Its blocks do not: what is repeated would be in two of them."""
    back = UP.back_at(20)
    assert back.still_up(UP) == replace(
        back,
        waited=400,
        noise=0.1,
        jitter=0.2,
        over=7,
        since_step=290,
        since_ts=29.0,
        eased=3.5,
        eases=2,
        told=True,
    )


@pytest.mark.parametrize(
    ("bests", "step", "kept"),
    [
        ((), 0, False),
        ((), 1, True),
        (((1, 3.0),), 1, False),
        (((1, 3.0),), 2, True),
        (((16, 3.0),), 17, False),
        (((16, 3.0),), 18, True),
    ],
)
def test_a_best_is_kept_for_every_eighth_more_steps(
    bests: tuple[tuple[int, float], ...], step: int, kept: bool
) -> None:
    own = Trend(last_step=step, best=2.0, bests=bests)
    assert own.kept().bests == (*bests, *[(step, 2.0)] * kept)


def test_no_best_is_kept_before_there_is_one() -> None:
    assert Trend(last_step=9).kept().bests == ()


def test_sigma_is_told_by_the_median_deviation() -> None:
    assert sigma_of(()) == 0.0
    assert sigma_of((1.0, 2.0, 3.0, 4.0, 100.0)) == SIGMA_OF_MAD == 1.4826


def test_jitter_leaves_a_trend_out() -> None:
    assert jitter_of((0.0, 1.0, 2.0, 3.0)) == 0.0
    assert jitter_of((0.0, 0.0, 1.0, 3.0, 6.0)) == pytest.approx(1.4826 / math.sqrt(2.0))
