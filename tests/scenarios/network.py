"""Ranks that are cut off, fall silent together, or run at speeds of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gonogo.watch.registry import detector_names
from tests.scenarios.scenario import Scenario, each, streams
from tests.scenarios.shapes import cut, losses
from tests.watch.streams import Said, World, order_of


def two_nodes(step_s: float) -> World:
    """Two ranks, each on its own node, that have trained for a while."""
    order = order_of({}, steps=2000, detectors=detector_names(), nodes=2)
    return World(order, alive_every_s=5.0).boot().steps(40, step_s=step_s)


@each("step_s, cut_s", [(1.0, 100.0), (8.0, 40.0), (25.0, 100.0)])
def node_1_is_cut_off(step_s: float, cut_s: float) -> Iterator[World]:
    world = two_nodes(step_s)
    since = world.mono + 0.5 * step_s
    world.steps(int(1.5 * cut_s / step_s) + 3, step_s=step_s)
    cut(world, since, since + cut_s)
    yield world


@each("step_s", [1.0, 8.0])
def hang_while_node_1_is_cut_off(step_s: float) -> Iterator[World]:
    world = two_nodes(step_s)
    since = world.mono
    world.open_step()
    world.hang(1, "backward", 120.0)
    cut(world, since + 3.0, since + 1000.0)
    yield world


def silent_in_backward(seconds: float, times: int = 1) -> World:
    """In one step no rank can speak for so long, and again: its host, or its disk, stands still."""
    world = World(order_of({}, steps=2000, detectors=detector_names()), alive_every_s=5.0)
    world.boot().steps(40, step_s=1.0).open_step()
    for rank in world.ranks:
        rank.enter("backward")
        rank.spend(2.0)
    for _ in range(times):
        for rank in world.ranks:
            rank.mono += seconds
            rank.spend(1.0)
    return world


def silence_of_all_ranks() -> Iterator[World]:
    world = silent_in_backward(100.0)
    world.close_step()
    yield world.steps(5)


def hang_after_a_silence_of_all_ranks() -> Iterator[World]:
    world = silent_in_backward(100.0)
    for rank in world.ranks:
        rank.spend(100.0)
    yield world


@each("late_s", [3.0, 8.0])
def last_lines_after_the_exit(late_s: float) -> Iterator[World]:
    order = order_of({}, steps=40, detectors=detector_names(), nodes=2)
    world = World(order, alive_every_s=5.0).boot().steps(39, step_s=1.0)
    since = world.mono
    world.steps(1, step_s=1.0).finish()
    rank = world.ranks[1]
    rank.lines = [Said(s.mono + (late_s if s.mono > since else 0.0), s.raw) for s in rank.lines]
    rank.mono += 10.0
    yield world


def launcher_of_node_1_is_killed() -> Iterator[World]:
    world = two_nodes(1.0)
    node = {"node": 1, "state": "heard", "host": "node2"}
    world.probes.append((world.mono, {"nodes": [node]}))
    agent = {"pid": 99, "state": "dead", "signal": 9, "node": 1}
    world.probes.append((world.mono + 1.0, {"agent": agent}))
    world.steps(3)
    yield world


Numbers = Callable[[int, int], dict[str, Any]]


def apart(times_s: tuple[float, float], numbers: Numbers, seconds: float = 900.0) -> World:
    """Two ranks, each at its own speed."""
    order = order_of({}, steps=10_000, detectors=detector_names())
    world = World(order, alive_every_s=5.0).boot()
    for rank, step_s in zip(world.ranks, times_s, strict=True):
        for step in range(1, int(seconds / step_s)):
            rank.step, rank.in_step = step, True
            rank.enter("data")
            rank.say("step_start")
            rank.spend(0.01)
            rank.enter("forward")
            rank.spend(step_s - 0.01)
            rank.say("progress", **numbers(rank.rank, step))
            rank.enter(None)
            rank.say("step_end", tokens=2048)
            rank.in_step = False
    return world


def ranks_of_different_speed() -> Iterator[World]:
    for times_s in ((1.0, 2.5), (2.5, 1.0)):
        yield apart(times_s, losses)


def scenarios() -> Iterator[Scenario]:
    """Yield the streams of this family."""
    yield from streams(
        "network",
        node_1_is_cut_off,
        hang_while_node_1_is_cut_off,
        silence_of_all_ranks,
        hang_after_a_silence_of_all_ranks,
        last_lines_after_the_exit,
        launcher_of_node_1_is_killed,
        ranks_of_different_speed,
    )
