"""Which detectors are there? One row each; a new detector is one module and one row here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gonogo.contract.finding import Finding
from gonogo.contract.outcome import Detector
from gonogo.judge.watch import (
    alive_lost,
    first_loss,
    hygiene,
    identity,
    no_first_heartbeat,
    non_finite,
    process_death,
    rank_divergence,
    section_deadline,
    slow,
    stall,
)
from gonogo.judge.watch.view import Event, View

Observe = Callable[[Any, Event, View], tuple[Any, list[Finding]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One detector: `observe(state, line or tick, view) -> (state, findings)`, pure."""

    detector: Detector
    armed: Callable[[View, Any], bool]
    observe: Observe | None = None
    state: Any = None
    """What it begins with."""
    beats: bool = False
    """Whether it looks at lines."""
    ticks: bool = False
    """Whether it looks at ticks."""
    deadline: bool = False
    """Whether a late tick is UNKNOWN to it."""
    probes: bool = False
    """Whether it sees nothing without a watcher's probes and clock."""


REGISTRY: tuple[Row, ...] = (
    Row(
        detector=Detector.PROCESS_DEATH,
        observe=process_death.observe,
        armed=process_death.armed,
        ticks=True,
        probes=True,
    ),
    Row(
        detector=Detector.NO_FIRST_HEARTBEAT,
        observe=no_first_heartbeat.observe,
        armed=no_first_heartbeat.armed,
        ticks=True,
        deadline=True,
        probes=True,
    ),
    Row(
        detector=Detector.ALIVE_LOST,
        observe=alive_lost.observe,
        armed=alive_lost.armed,
        ticks=True,
        deadline=True,
        probes=True,
    ),
    Row(
        detector=Detector.STALL,
        observe=stall.observe,
        armed=stall.armed,
        ticks=True,
        deadline=True,
    ),
    Row(
        detector=Detector.SECTION_DEADLINE,
        observe=section_deadline.observe,
        armed=section_deadline.armed,
        ticks=True,
        deadline=True,
    ),
    Row(detector=Detector.RANK_DIVERGENCE, armed=rank_divergence.armed),
    Row(
        detector=Detector.SLOW,
        observe=slow.observe,
        armed=slow.armed,
        state=slow.Speed(),
        beats=True,
    ),
    Row(
        detector=Detector.NON_FINITE,
        observe=non_finite.observe,
        armed=non_finite.armed,
        state=non_finite.Overflows(),
        beats=True,
    ),
    Row(
        detector=Detector.HYGIENE,
        observe=hygiene.observe,
        armed=hygiene.armed,
        beats=True,
        ticks=True,
    ),
    Row(
        detector=Detector.IDENTITY,
        observe=identity.observe,
        armed=identity.armed,
        state=identity.Told(),
        beats=True,
        ticks=True,
    ),
    Row(
        detector=Detector.FIRST_LOSS,
        observe=first_loss.observe,
        armed=first_loss.armed,
        state=first_loss.Told(),
        beats=True,
    ),
)

OF_BEATS = tuple(row for row in REGISTRY if row.beats)
OF_TICKS = tuple(row for row in REGISTRY if row.ticks)
