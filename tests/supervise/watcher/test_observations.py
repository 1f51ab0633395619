"""Does the watcher's list of probes ask each when due, and live with those that fail?"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import pytest

from gonogo.supervise.watcher.look import Observations


@dataclass
class Scripted:
    """A source that returns the given values, and raises those that are errors."""

    kind: str
    every_s: float
    says: list[Any]
    asked_at: list[float] = field(default_factory=list)
    resumed: Any = None

    def look(self, now: float) -> Any | None:
        self.asked_at.append(now)
        said = self.says.pop(0) if self.says else None
        if isinstance(said, OSError):
            raise said
        return said

    def resume(self, payload: Any) -> None:
        self.resumed = payload


def test_each_source_has_its_own_cadence() -> None:
    quick, slow = Scripted("quick", 1.0, []), Scripted("slow", 5.0, [])
    observations = Observations([quick, slow])
    for tick in range(60):
        observations.take(tick * 0.2)
    assert quick.asked_at == pytest.approx([float(second) for second in range(12)])
    assert slow.asked_at == pytest.approx([0.0, 5.0, 10.0])


def test_a_source_that_fails_is_counted_told_once_and_hides_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sick = Scripted("sick", 1.0, [OSError("no"), OSError("no"), 7, OSError("again")])
    well = Scripted("well", 1.0, [1, 2, 3, 4])
    observations = Observations([sick, well])
    with caplog.at_level(logging.WARNING):
        seen = [observations.take(float(now)) for now in range(4)]
    assert seen == [{"well": 1}, {"well": 2}, {"sick": 7, "well": 3}, {"well": 4}]
    assert [record.getMessage() for record in caplog.records] == [
        "sick: no",
        "sick: possible again",
        "sick: again",
    ]


def test_a_source_goes_on_after_what_was_recorded_of_its_own_kind() -> None:
    one, two = Scripted("one", 1.0, []), Scripted("two", 1.0, [])
    Observations([one, two]).resume({"one": [1], "other": 2})
    assert (one.resumed, two.resumed) == ([1], None)
