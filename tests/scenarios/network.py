"""Ranks that are cut off, fall silent together, or run at speeds of their own."""

from __future__ import annotations

import json
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


@each("section", ["checkpoint", "eval"])
def node_1_is_cut_off_in_a_long_pause(section: str) -> Iterator[World]:
    world = two_nodes(1.0)
    since = world.mono
    for rank, seconds in zip(world.ranks, (20.0, 300.0), strict=True):
        rank.enter(section)
        rank.spend(seconds)
        rank.enter(None)
    world.meet()
    world.steps(3)
    cut(world, since + 1.0, since + 305.0)
    yield world


@each("step_s", [1.0, 8.0])
def hang_while_node_1_is_cut_off(step_s: float) -> Iterator[World]:
    world = two_nodes(step_s)
    since = world.mono
    world.open_step()
    world.hang(1, "backward", 120.0)
    cut(world, since + 3.0, since + 1000.0)
    yield world


def lines_of_rank_1_end() -> Iterator[World]:
    world = two_nodes(25.0)
    since = world.mono + 12.0
    world.steps(8, step_s=25.0)
    rank = world.ranks[1]
    rank.lines = [said for said in rank.lines if said.mono < since]
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


def repeated_silence_in_one_step() -> Iterator[World]:
    yield silent_in_backward(40.0, times=30)


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


@each("times_s", [(1.0, 2.5), (2.5, 1.0)])
def zero_gradients_of_ranks_of_different_speed(times_s: tuple[float, float]) -> Iterator[World]:
    def vanishing(rank: int, step: int) -> dict[str, Any]:
        return losses(rank, step) | ({"grad_norm": 0.0} if step > 300 else {})

    yield apart(times_s, vanishing)


def reported_speed_of_ranks_of_different_speed() -> Iterator[World]:
    def told(rank: int, step: int) -> dict[str, Any]:
        return losses(rank, step) | {"toks_per_s": 1024.0 * (1 / 6.0 + 1 / 0.1)}

    yield apart((6.0, 0.1), told, seconds=600.0)


def lost_lines_then_a_restart() -> Iterator[World]:
    world = World(order_of({}, steps=10000, detectors=detector_names()), alive_every_s=5.0).boot()
    world.steps(400, step_s=0.1)
    lost = world.ranks[1].lines
    world.ranks[1].lines = [said for said in lost if json.loads(said.raw)["step"] < 100]
    for rank in world.ranks:
        rank.spend(3.0)
        rank.boot, rank.seq, rank.step = (f"again{rank.rank}", 0, 100)
        rank.say("boot")
    yield world.steps(20, step_s=0.1)


@each("burst_s", [0.0, 60.0])
def starved_loader_with_lines_in_bursts(burst_s: float) -> Iterator[World]:
    world = World(order_of({}, steps=100000, detectors=detector_names()), alive_every_s=5.0).boot()
    for rank in world.ranks:
        for step in range(1, 9000):
            rank.step, rank.in_step = (step, True)
            rank.enter("data")
            rank.say("step_start")
            rank.spend(0.085)
            rank.enter("forward")
            rank.spend(0.015)
            rank.say("progress", **losses(0, step), dt_fetch_s=0.085)
            rank.enter(None)
            rank.say("step_end", tokens=2048)
            rank.in_step = False
    if burst_s:
        late = world.ranks[1]
        late.lines = [Said((said.mono // burst_s + 1) * burst_s, said.raw) for said in late.lines]
    yield world


def scenarios() -> Iterator[Scenario]:
    """Yield the streams of this family."""
    yield from streams(
        "network",
        node_1_is_cut_off,
        node_1_is_cut_off_in_a_long_pause,
        hang_while_node_1_is_cut_off,
        lines_of_rank_1_end,
        silence_of_all_ranks,
        hang_after_a_silence_of_all_ranks,
        repeated_silence_in_one_step,
        last_lines_after_the_exit,
        launcher_of_node_1_is_killed,
        ranks_of_different_speed,
        zero_gradients_of_ranks_of_different_speed,
        reported_speed_of_ranks_of_different_speed,
        lost_lines_then_a_restart,
        starved_loader_with_lines_in_bursts,
    )
