"""D14: devices used unequally, or too little, over two minutes of training; a warning only."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.finding import Severity, Source
from gonogo.watch import armed
from tests.watch.detectors.devices import Fold, device_order, sample
from tests.watch.streams import T0


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


def test_the_plan_may_shorten_the_time() -> None:
    order = device_order({"imbalance": {"over_s": 2.0}})
    assert len(used([[96.0, 30.0]] * 4, every_s=1.0, fold=Fold(order)).findings) == 1


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


def test_it_is_armed_once_a_device_says_how_busy_it_is() -> None:
    fold = Fold()
    assert armed(fold.state)["imbalance"] is False
    fold.devices([sample(T0, 0, util=0.0)])
    assert armed(fold.state)["imbalance"] is True
