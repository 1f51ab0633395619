"""How long what failed waits."""

from __future__ import annotations

import random

import pytest

from worker.client import Backoff


def pauses(backoff: Backoff, count: int) -> list[float]:
    found = []
    for _ in range(count):
        backoff = backoff.later(100.0)
        assert backoff.not_before == 100.0 + backoff.pause_s
        found.append(backoff.pause_s)
    return found


def test_pauses_grow_to_a_bound() -> None:
    assert pauses(Backoff(first_s=1.0, longest_s=5.0, jitter=0.0), 6) == [1, 2, 4, 5, 5, 5]
    assert pauses(Backoff(first_s=1.0, longest_s=5.0, jitter=0.0), 5000)[-1] == 5.0


@pytest.mark.parametrize("draw", [0.0, 0.25, 0.999])
def test_with_full_jitter_a_pause_is_anything_up_to_the_whole(
    draw: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "random", lambda: draw)
    found = pauses(Backoff(first_s=1.0, longest_s=5.0), 4)
    assert found == pytest.approx([whole * (1 - draw) for whole in (1, 2, 4, 5)])
