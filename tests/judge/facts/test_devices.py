"""Which utilisation has a step? Its own samples', a recent one's, or none."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.canonical import mean_of
from gonogo.contract.observation import DeviceSample
from gonogo.judge.facts.record import STALE_S, Sample, Windows, by_step, ratio_by_step


def said(
    mono: float,
    util: float | None,
    rank: int | None = 0,
    uuid: str = "GPU-a",
    mem_used_mb: float | None = None,
) -> DeviceSample:
    return DeviceSample(
        ts=1e9 + mono, mono=mono, uuid=uuid, rank=rank, util=util, mem_used_mb=mem_used_mb
    )


def utilisation(samples: Iterable[Sample], windows: Windows) -> dict[int, dict[int, float]]:
    return by_step(samples, windows, (), lambda row: row.util, mean_of)


def memory(samples: Iterable[Sample], windows: Windows) -> dict[int, dict[int, float]]:
    return by_step(samples, windows, (), lambda row: row.mem_used_mb, max)


def of_one(samples: list[DeviceSample], *steps: tuple[float, float]) -> dict[int, float]:
    windows = {0: dict(enumerate(steps, start=1))}
    return utilisation(samples, windows)[0]


def test_a_step_has_the_mean_of_the_samples_that_fall_in_it() -> None:
    samples = [said(1.0, 10.0), said(2.0, 90.0), said(3.0, 100.0), said(9.0, 0.0)]
    assert of_one(samples, (2.0, 3.0), (0.0, 8.0)) == {1: 95.0, 2: pytest.approx(200 / 3)}


def test_a_step_without_a_sample_takes_the_latest_one_that_is_not_stale() -> None:
    samples = [said(1.0, 10.0), said(5.0, 90.0)]
    found = of_one(samples, (5.1, 5.9), (6.0, 20.0), (6.0, 20.1), (0.1, 0.9), (1.1, 1.9))
    assert found == {1: 90.0, 2: 90.0, 5: 10.0}


def test_what_is_unknown_or_nobodys_is_no_sample() -> None:
    assert of_one([said(1.0, None), said(1.0, 50.0, rank=None)], (0.0, 2.0)) == {}


def test_each_rank_has_its_own_samples() -> None:
    samples = [said(1.0, 96.0, 0), said(1.1, 30.0, 1, "GPU-b")]
    windows = {0: {7: (0.0, 2.0)}, 1: {7: (0.0, 2.0)}, 2: {7: (0.0, 2.0)}}
    assert utilisation(samples, windows) == {0: {7: 96.0}, 1: {7: 30.0}, 2: {}}


def test_the_memory_of_a_step_is_the_most_that_was_in_use_and_of_two_readings_the_higher() -> None:
    samples = [
        said(1.0, None, mem_used_mb=50.0),
        said(2.0, 90.0, mem_used_mb=70.0),
        said(2.0, 90.0, mem_used_mb=60.0),
        said(3.0, 90.0),
    ]
    windows = {0: {1: (0.0, 2.5), 2: (2.6, 4.0), 3: (2.6, 3 + STALE_S)}, 1: {1: (0.0, 2.5)}}
    assert memory(samples, windows) == {0: {1: 70.0, 2: 70.0}, 1: {}}
    assert memory(reversed(samples), windows) == memory(samples, windows)


def test_the_ratio_is_lowest_to_highest_of_the_steps_that_every_rank_has() -> None:
    util = {0: {1: 100.0, 2: 50.0, 3: 0.0}, 1: {1: 80.0, 2: 100.0, 3: 0.0, 4: 9.0}}
    assert ratio_by_step(util) == {1: 0.8, 2: 0.5}
    assert ratio_by_step({0: {1: 0.5}, 1: {1: 1.0}}) == {1: 0.5}
    assert ratio_by_step({0: {1: 100.0}, 1: {}}) == ratio_by_step({}) == {}


MOMENTS = st.integers(0, 400).map(lambda tenths: tenths / 10)
SAMPLES = st.lists(
    st.builds(
        said,
        MOMENTS,
        st.one_of(st.none(), st.integers(0, 100).map(float)),
        st.sampled_from([0, 1, None]),
        st.sampled_from(["GPU-a", "GPU-b"]),
    ),
    max_size=30,
)
WINDOWS = {rank: {step: (step * 1.0, step + 0.9) for step in range(40)} for rank in (0, 1)}


@given(SAMPLES, st.randoms(use_true_random=False))
def test_order_and_repetition_change_nothing(
    samples: list[DeviceSample], dice: random.Random
) -> None:
    shuffled = [*samples, *(dice.choices(samples, k=5) if samples else ())]
    dice.shuffle(shuffled)
    assert utilisation(samples, WINDOWS) == utilisation(shuffled, WINDOWS)
