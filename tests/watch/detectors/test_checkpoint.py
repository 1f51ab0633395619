"""D20: a checkpoint that is due, and that the watcher has not verified."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.plan import CheckpointCadence
from gonogo.watch.fold import armed
from gonogo.watch.offline_fold import not_observed
from tests.watch.detectors.host import checkpoint, host_order, tell
from tests.watch.streams import Watched, World, watch

BY_STEPS = {"every_steps": 20}
BY_TIME = {"every_s": 200.0}


def world_with(cadence: dict[str, Any], **fields: Any) -> World:
    """Return a run whose watcher looks at checkpoints."""
    order = host_order({}, checkpoint=CheckpointCadence(**cadence), steps=9_000, **fields)
    world = World(order, alive_every_s=5).boot()
    tell(world, checkpoints=[])
    return world


def train(world: World, seconds: float) -> World:
    """Let the run train in steps of ten seconds."""
    return world.steps(round(seconds / 10.0), step_s=10.0)


def overdue(seen: Watched) -> list[tuple[Severity, float | None]]:
    """Return severity and limit of each finding."""
    rows: list[Finding] = [f for f in seen.findings if f.detector == "checkpoint_overdue"]
    return [(row.severity, row.threshold) for row in rows]


@pytest.mark.parametrize("cadence", [BY_STEPS, BY_TIME, {"every_steps": 8_000, "every_s": 200.0}])
def test_none_at_all_warns_and_then_halts(cadence: dict[str, Any]) -> None:
    world = world_with(cadence)
    assert overdue(watch(train(world, 750.0), interval_s=2.0)) == []
    assert overdue(watch(train(world, 100.0), interval_s=2.0)) == [(Severity.WARN, 600.0)]
    seen = watch(train(world, 700.0), interval_s=2.0)
    assert overdue(seen) == [(Severity.WARN, 600.0), (Severity.HALT, 1200.0)]
    assert [halt.rank for halt in seen.halts] == [None]


def test_a_long_cadence_lengthens_the_limits() -> None:
    seen = watch(train(world_with({"every_s": 1000.0}), 3200.0), interval_s=5.0)
    assert overdue(seen) == [(Severity.WARN, 1000.0), (Severity.HALT, 2000.0)]


def test_a_verified_checkpoint_starts_the_cadence_again() -> None:
    world = world_with(BY_STEPS)
    for step in (60, 120, 180):
        train(world, 600.0)
        tell(world, checkpoints=[checkpoint(step)])
    assert overdue(watch(world, interval_s=2.0)) == []
    assert overdue(watch(train(world, 900.0), interval_s=2.0)) == [(Severity.WARN, 600.0)]


def test_an_old_checkpoint_does_not_count() -> None:
    world = world_with(BY_STEPS)
    tell(world, checkpoints=[checkpoint(20)])
    train(world, 900.0)
    tell(world, checkpoints=[checkpoint(20)])
    assert overdue(watch(train(world, 200.0), interval_s=2.0)) == [(Severity.WARN, 600.0)]


def test_evaluations_do_not_count() -> None:
    world = train(world_with(BY_STEPS), 300.0).pause("eval", 1500.0, "eval")
    assert overdue(watch(train(world, 300.0), interval_s=2.0)) == []


def test_a_checkpoint_that_does_not_hold_is_reported_at_once() -> None:
    world = train(world_with(BY_STEPS), 300.0)
    tell(world, checkpoints=[checkpoint(20, text="digest differs")])
    world.steps(1)
    seen = watch(world, interval_s=2.0)
    (finding,) = [f for f in seen.findings if f.detector == "checkpoint_overdue"]
    assert (finding.severity, finding.step) == (Severity.WARN, 20)
    assert "digest differs" in finding.text


def test_without_a_cadence_or_a_watcher_that_looks_nothing_is_found() -> None:
    world = train(world_with({}), 3000.0)
    assert overdue(watch(world, interval_s=5.0)) == []
    order = host_order({}, checkpoint=CheckpointCadence(every_steps=5), steps=100)
    seen = watch(World(order).boot().steps(20))
    assert not armed(seen.state)["checkpoint_overdue"]
    assert not_observed(seen.state)


def test_after_the_last_step_nothing_is_left_to_save() -> None:
    order = host_order({}, checkpoint=CheckpointCadence(every_s=200.0), steps=30)
    world = World(order, alive_every_s=5).boot()
    tell(world, checkpoints=[])
    train(world, 300.0).pause("log", 2_000.0)
    assert overdue(watch(world, interval_s=5.0, stop_at_halt=False)) == []


def test_while_one_is_read_nothing_is_found_whatever_holds_meanwhile() -> None:
    world = train(world_with(BY_TIME), 100.0)
    reads = {**checkpoint(10), "reads_bytes": 1, "verified": False}
    tell(world, checkpoints=[reads])
    train(world, 100.0)
    tell(world, checkpoints=[checkpoint(5)])
    assert overdue(watch(train(world, 1_000.0), interval_s=2.0)) == []
    tell(world, checkpoints=[checkpoint(10)])
    assert overdue(watch(train(world, 1_000.0), interval_s=2.0)) == [(Severity.WARN, 600.0)]


def test_one_that_was_deleted_before_it_was_read_starts_the_cadence_again() -> None:
    world = train(world_with(BY_TIME), 700.0)
    tell(world, checkpoints=[{**checkpoint(60), "verified": False, "gone": True}])
    assert overdue(watch(train(world, 700.0), interval_s=2.0)) == []
    assert overdue(watch(train(world, 300.0), interval_s=2.0)) == [(Severity.WARN, 600.0)]


def test_a_restart_below_the_last_checkpoint_starts_the_cadence_again() -> None:
    world = world_with(BY_STEPS)
    train(world, 600.0)
    tell(world, checkpoints=[checkpoint(60)])
    train(world, 700.0)
    for rank in world.ranks:
        rank.boot, rank.seq, rank.step = f"again{rank.rank}", 0, 0
        rank.say("boot")
    assert overdue(watch(train(world, 600.0), interval_s=2.0)) == []
