"""When is a failed delivery tried again?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.alerts.webhooks import GIVE_UP_S, LONGEST_S, next_try_at, retry_delay_s


@pytest.mark.parametrize(
    ("attempts", "shortest", "longest"),
    [(1, 0.5, 1.0), (2, 1.0, 2.0), (4, 4.0, 8.0), (40, LONGEST_S / 2, LONGEST_S)],
)
def test_waits_double_up_to_an_hour(attempts: int, shortest: float, longest: float) -> None:
    assert retry_delay_s(attempts, 0.0) == shortest
    assert retry_delay_s(attempts, 1.0) == longest


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_no_wait_is_shorter_than_half_a_second_or_longer_than_an_hour(
    attempts: int, jitter: float
) -> None:
    assert 0.5 <= retry_delay_s(attempts, jitter) <= LONGEST_S


@pytest.mark.parametrize(("late_s", "again_at"), [(0.0, GIVE_UP_S), (1.0, None)])
def test_a_delivery_is_given_up_after_three_days(late_s: float, again_at: float | None) -> None:
    assert next_try_at(99, 0.0, GIVE_UP_S - LONGEST_S + late_s, 1.0) == again_at
