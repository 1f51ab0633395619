"""D23: a watcher that was away warns a person, and ends nothing."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gonogo.contract.finding import Act, DoubtKind, Severity
from gonogo.watch.fold import start
from gonogo.watch.offline_fold import not_observed
from tests.watch.detectors.host import host_order
from tests.watch.streams import T0, Ticking, World, watch


def away_once(late_s: float) -> Ticking:
    def ticks(end: float) -> Iterable[tuple[float, float]]:
        mono, told = T0, False
        while mono < end:
            if mono > T0 + 10 and not told:
                mono, told = mono + late_s, True
                yield mono, late_s
            else:
                yield mono, 0.0
            mono += 0.25

    return ticks


@pytest.mark.parametrize(("late_s", "told"), [(15.0, False), (15.5, True), (400.0, True)])
def test_an_absence_is_told_once_and_halts_nothing(late_s: float, told: bool) -> None:
    world = World(host_order()).boot().steps(int(late_s * 2) + 60)
    seen = watch(world, ticking=away_once(late_s))
    assert seen.halts == []
    found = [f for f in seen.of(Severity.WARN) if f.detector == "watcher"]
    assert [(f.act, f.value, f.threshold) for f in found] == [(Act.PAGE, late_s, 15.0)] * told


def test_the_plan_says_how_long_it_may_be_away() -> None:
    world = World(host_order({"watcher": {"away_s": 60}})).boot().steps(200)
    assert watch(world, ticking=away_once(50.0)).findings == []


def test_without_a_watcher_it_is_said_to_see_nothing() -> None:
    doubts = not_observed(start(host_order(), watched=False))
    assert "watcher" in {row.name for row in doubts if row.kind is DoubtKind.DETECTOR_BLIND}


def node_says(world: World, state: str, node: int = 1) -> None:
    told = {"node": node, "state": state, "host": "node2"}
    world.probes.append((world.mono, {"nodes": [told]}))


@pytest.mark.parametrize(("steps", "told"), [(200, False), (300, True), (1000, True)])
def test_a_node_that_gives_no_sign_is_told_once_and_halts_nothing(steps: int, told: bool) -> None:
    """A run whose ranks were all done waited for its word until the time limit, without a
    report."""
    world = World(host_order(nodes=2)).boot().steps(20)
    node_says(world, "heard")
    world.steps(5)
    node_says(world, "silent")
    world.steps(steps)
    node_says(world, "heard")
    world.steps(300)
    seen = watch(world)
    assert seen.halts == []
    found = [f for f in seen.of(Severity.WARN) if f.detector == "watcher"]
    assert [(f.act, f.threshold) for f in found] == [(Act.PAGE, 120.0)] * told
    assert all("no sign of node 1, host node2 for 120 s" in (f.text or "") for f in found)


def test_each_silence_of_each_node_is_told() -> None:
    world = World(host_order(nodes=3, world_size=3)).boot().steps(20)
    for node, again in ((1, False), (2, False), (1, True)):
        if again:
            node_says(world, "heard", node)
            world.steps(5)
        node_says(world, "silent", node)
        world.steps(300)
    found = [f for f in watch(world).of(Severity.WARN) if f.detector == "watcher"]
    assert [(f.text or "")[11:17] for f in found] == ["node 1", "node 2", "node 1"]
    assert len({f.key for f in found}) == 3
