"""Simulated runs with fixed seeds: healthy ones of several cells, and every fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lab.noise import FAULTS, Fault
from lab.run import Part, watched
from tests.scenarios import scenario
from tests.scenarios.scenario import Outcome, Scenario

HEALTHY = (
    (1.0, 1, 0.25, 4),
    (1.0, 4, 0.15, 4),
    (2.4, 2, 0.5, 4),
    (2.4, 8, 0.2, 3),
    (25.0, 2, 2.0, 4),
    (25.0, 8, 1.0, 2),
    (60.0, 1, 4.0, 3),
    (60.0, 4, 3.0, 3),
)
"""Step time in seconds, ranks, hours, and number of runs."""
FAULT_RANKS = (2, 4, 8)


def scenarios() -> Iterator[Scenario]:
    """Yield healthy runs of every cell, then every fault."""
    for step_s, ranks, hours, count in HEALTHY:
        for number in range(count):
            name = f"healthy/{step_s:g}s/{ranks} ranks/{number}"
            part = Part(seed=f"outcomes/{name}", step_s=step_s, ranks=ranks, hours=hours)
            yield Scenario(f"simulated/{name}", _finding(part), long=number > 0 or ranks > 2)
    for sick in FAULTS:
        for number in range(3):
            yield Scenario(
                f"simulated/{sick.name}/{number}", _finding(_sick(sick, number)), long=number > 0
            )


def _sick(sick: Fault, number: int) -> Part:
    step_s = sick.step_s[number % len(sick.step_s)]
    return Part(
        seed=f"outcomes/{sick.name}/{number}",
        step_s=step_s,
        ranks=FAULT_RANKS[number],
        hours=(sick.onset_step * 3.0 * step_s + sick.within_s) / 3600.0,
        sick=sick.name,
    )


def _finding(part: Part) -> Callable[[], Outcome]:
    return lambda: scenario.outcome_of_watch(*watched(part))
