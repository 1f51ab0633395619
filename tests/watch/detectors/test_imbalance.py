"""D14: devices used unequally, or too little, over two minutes of training; a warning only."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.finding import Severity, Source
from gonogo.contract.tick import Tick
from gonogo.timeline.rank import RankStream
from gonogo.watch import armed, near
from gonogo.watch.detectors.hardware import Imbalance
from gonogo.watch.view import Run, View
from tests.watch.detectors.devices import Fold, device_order, sample
from tests.watch.standing import standing
from tests.watch.streams import EPOCH, T0


def used(
    utils: list[list[float | None]], *, every_s: float = 5.0, fold: Fold | None = None
) -> Fold:
    """Feed one sample a rank and round to a run that trains."""
    fold = fold or Fold()
    fold.step(1)
    for row in utils:
        samples = [sample(fold.now, rank, util=util) for rank, util in enumerate(row)]
        fold.devices(samples)
        fold.now += every_s
    return fold


@pytest.mark.parametrize(
    ("row", "warns"),
    [
        ([95.0, 94.0], False),
        ([100.0, 81.0], False),
        ([100.0, 80.0], False),
        ([80.0, 80.0], False),
        ([100.0, 79.0], True),
        ([79.0, 79.0], True),
        ([96.0, 30.0], True),
        ([0.0, 0.0], True),
    ],
)
def test_low_or_unequal_utilisation_warns_once_and_never_halts(
    row: list[float | None], warns: bool
) -> None:
    fold = used([row] * 60)
    assert [found.severity for found in fold.findings] == [Severity.WARN] * warns


def test_the_rank_that_is_used_least_is_named_with_its_device() -> None:
    (warning,) = used([[96.0, 30.0]] * 30).findings
    assert (warning.detector, warning.rank, warning.step) == ("imbalance", 1, 1)
    assert warning.value == pytest.approx(30 / 96)
    assert (warning.threshold, warning.source) == (0.8, Source.DEFAULT)
    assert "GPU-1" in warning.text


def test_where_nothing_tells_the_devices_apart_no_rank_is_named() -> None:
    (warning,) = used([[60.0, 61.0]] * 30).findings
    assert (warning.rank, warning.threshold) == (None, 80.0)


def test_a_device_below_the_least_beside_busy_ones_is_named() -> None:
    for busiest in (96.0, 80.0):  # the other is between the ratio's limit and the least
        (warning,) = used([[busiest, 78.0]] * 30).findings
        assert (warning.rank, warning.threshold) == (1, 80.0)


def test_the_plan_may_shorten_the_time() -> None:
    order = device_order({"imbalance": {"over_s": 2.0}})
    assert len(used([[96.0, 30.0]] * 4, every_s=1.0, fold=Fold(order)).findings) == 1


def test_a_second_imbalance_is_not_warned_of() -> None:
    sick, well = [[96.0, 30.0]] * 25, [[96.0, 95.0]] * 50
    assert len(used(sick + sick + sick).findings) == 1
    told = used(sick + well + sick + sick).findings
    assert [row.key for row in told] == ["run_1/1/imbalance/warn/ratio"]


@pytest.mark.parametrize("section", ["checkpoint", "eval"])
def test_time_that_is_no_training_does_not_count(section: str) -> None:
    fold = Fold()
    fold.step(1, section=section)
    for _ in range(60):
        fold.devices([sample(fold.now, 0, util=0.0), sample(fold.now, 1, util=0.0)], after_s=5.0)
    assert fold.findings == []


def test_nothing_is_judged_before_every_rank_has_ended_a_step() -> None:
    fold = Fold()
    for _ in range(60):
        fold.devices([sample(fold.now, 0, util=0.0), sample(fold.now, 1, util=0.0)], after_s=5.0)
    assert fold.findings == []


@settings(max_examples=8)
@given(rows=st.lists(st.tuples(st.none(), st.one_of(st.none(), st.floats(80, 100))), max_size=60))
def test_a_device_that_does_not_say_is_neither_idle_nor_well(
    rows: list[tuple[None, float | None]],
) -> None:
    assert used([list(row) for row in rows]).findings == []


def test_of_two_devices_one_that_says_is_judged_alone() -> None:
    (warning,) = used([[None, 40.0]] * 40).findings
    assert (warning.rank, warning.value) == (1, 40.0)


def test_it_is_armed_once_a_device_says_how_busy_it_is() -> None:
    fold = Fold()
    assert armed(fold.state)["imbalance"] is False
    fold.devices([sample(T0, 0, util=0.0)])
    assert armed(fold.state)["imbalance"] is True


def short(world_size: int = 1) -> Fold:
    """A run whose devices are averaged over ten seconds."""
    return Fold(device_order({"imbalance": {"over_s": 10.0}}, world_size=world_size))


def test_a_device_of_no_rank_is_left_out() -> None:
    fold = short()
    fold.step(1)
    for _ in range(5):
        rows = [sample(fold.now, 0, util=96.0), sample(fold.now, None, util=0.0)]
        fold.devices(rows, after_s=5.0)
    assert fold.findings == []


@pytest.mark.parametrize(("every_s", "found"), [(15.0, 1), (15.25, 0)])
def test_a_sample_holds_for_fifteen_seconds(every_s: float, found: int) -> None:
    assert len(used([[40.0]] * 3, every_s=every_s, fold=short()).findings) == found


@pytest.mark.parametrize(
    ("second", "trains"),
    [
        (standing("forward", for_s=1.0, rank=1, completed_steps=1), True),
        (standing("forward", for_s=1.0, rank=1, completed_steps=0), False),
        (standing("forward", for_s=1.0, rank=1, done=True), False),
        (standing("checkpoint", for_s=1.0, rank=1), False),
        (None, False),
    ],
    ids=["trains", "no step yet", "done", "saves", "not heard"],
)
def test_the_run_trains_when_every_rank_does(second: RankStream | None, trains: bool) -> None:
    run = Run(order=device_order({"imbalance": {"over_s": 10.0}}))
    streams = {0: standing("forward", for_s=1.0)} | ({} if second is None else {1: second})
    detector, view = Imbalance(run), View(run=run, streams=streams)
    own, found = detector.begin(), []
    for mono in (T0, T0 + 10.0):
        devices = [sample(mono, rank, util=30.0) for rank in (0, 1)]
        tick = Tick(n=1, mono=mono, ts=EPOCH, observations={"devices": devices})
        own, found = detector.observe_tick(own, tick, view)
    assert len(found) == trains


def test_each_average_is_of_its_own_samples() -> None:
    fold = used([[90.0, 90.0]] * 4, fold=Fold(device_order({"imbalance": {"over_s": 10.25}})))
    used([[80.0, 60.0]], fold=fold)
    found = near(fold.state, fold.now)["imbalance"]
    assert (found.value, found.limit, found.below) == (60.0, 80.0, True)
    assert used([[60.0, 60.0]], fold=fold).findings == []
    (warning,) = used([[60.0, 30.0]], fold=fold).findings
    assert warning.value == pytest.approx(0.75)


def test_the_time_between_samples_that_are_far_apart_is_not_averaged() -> None:
    fold = Fold(device_order({"imbalance": {"over_s": 10.25}}))
    used([[60.0, 60.0]], every_s=16.0, fold=fold)
    assert used([[60.0, 60.0]] * 3, fold=fold).findings == []
    assert len(used([[60.0, 60.0]], fold=fold).findings) == 1
