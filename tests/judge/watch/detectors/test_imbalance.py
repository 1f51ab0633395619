"""D14: devices used unequally, or too little, over two minutes of training; a warning only."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.finding import Severity, Source
from gonogo.judge.watch import armed, not_observed
from tests.judge.watch.detectors.devices import Fold, device_order, sample
from tests.judge.watch.streams import T0


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
    (warning,) = used([[96.0, 78.0]] * 30).findings  # between the ratio's limit and the least
    assert (warning.rank, warning.threshold) == (1, 80.0)


def test_nothing_is_said_before_the_time_is_over() -> None:
    assert used([[96.0, 30.0]] * 24).findings == []  # 115 s
    assert len(used([[96.0, 30.0]] * 26).findings) == 1


def test_the_plan_may_shorten_the_time() -> None:
    order = device_order({"imbalance": {"over_s": 2.0}})
    assert len(used([[96.0, 30.0]] * 4, every_s=1.0, fold=Fold(order)).findings) == 1


def test_single_low_readings_are_averaged_away() -> None:
    assert used([[96.0, 96.0], [96.0, 97.0], [96.0, 50.0]] * 30).findings == []


def test_a_recovery_clears_the_warning_and_the_next_time_is_told_again() -> None:
    sick, well = [[96.0, 30.0]] * 25, [[96.0, 95.0]] * 50
    assert len(used(sick + sick + sick).findings) == 1
    assert len(used(sick + well + sick + sick).findings) == 2


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


def test_samples_far_apart_say_nothing_about_the_time_between() -> None:
    assert used([[96.0, 30.0]] * 60, every_s=16.0).findings == []


@settings(max_examples=60)
@given(rows=st.lists(st.tuples(st.none(), st.one_of(st.none(), st.floats(80, 100))), max_size=60))
def test_a_device_that_does_not_say_is_neither_idle_nor_well(
    rows: list[tuple[None, float | None]],
) -> None:
    assert used([list(row) for row in rows]).findings == []


def test_a_device_that_falls_silent_has_not_recovered() -> None:
    fold = used([[96.0, 30.0]] * 30 + [[96.0, None]] * 60 + [[96.0, 30.0]] * 60)
    assert len(fold.findings) == 1


def test_a_device_that_vanishes_does_not_keep_the_others_from_being_judged() -> None:
    fold = used([[96.0, 96.0]] * 2)
    for _ in range(60):
        fold.devices([sample(fold.now, 1, util=30.0)], after_s=5.0)
    assert [(row.rank, row.threshold) for row in fold.findings] == [(1, 80.0)]


def test_samples_of_one_round_that_come_with_two_ticks_make_one_average() -> None:
    fold = Fold()
    fold.step(1)
    for _ in range(200):
        fold.devices([sample(fold.now, 0, util=96.0)], after_s=2.5)
        fold.devices([sample(fold.now, 1, util=30.0)], after_s=2.5)
    assert len(fold.findings) == 1


def test_of_two_devices_one_that_says_is_judged_alone() -> None:
    (warning,) = used([[None, 40.0]] * 40).findings
    assert (warning.rank, warning.value) == (1, 40.0)


def test_the_same_samples_twice_count_once() -> None:
    fold = Fold()
    fold.step(1)
    for number in range(20):
        rows = [sample(T0 + 5 * number, rank, util=30.0) for rank in (0, 1)]
        fold.devices(rows, after_s=5.0)
        fold.devices(rows)
    assert fold.findings == []


def test_a_run_on_devices_that_never_told_says_so_and_one_without_does_not() -> None:
    def texts(profile: str, told: bool) -> list[str]:
        order = device_order(profile=profile).model_copy(
            update={"detectors": {"imbalance": 1, "slow": 1, "non_finite": 1}}
        )
        fold = Fold(order)
        if told:
            fold.devices([sample(T0, 0, util=1.0)])
        return [text for text in not_observed(fold.state) if text.startswith("imbalance")]

    assert texts("h200", told=False) == ["imbalance: no device said how busy it was"]
    assert texts("h200", told=True) == []
    assert texts("cpu", told=False) == []


def test_it_is_armed_once_a_device_says_how_busy_it_is() -> None:
    fold = Fold()
    assert armed(fold.state)["imbalance"] is False
    fold.devices([sample(T0, 0, util=0.0)])
    assert armed(fold.state)["imbalance"] is True
