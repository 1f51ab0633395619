"""Ranks that do not wait for each other: what the first of them says is watched all the same."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gonogo.watch import dump_state, load_state
from gonogo.watch.registry import versions
from tests.watch.streams import Said, World, order_of, watch

Numbers = Callable[[int, int], dict[str, Any]]


def apart(times_s: tuple[float, float], numbers: Numbers, seconds: float = 900.0) -> World:
    """Two ranks, each at its own speed."""
    order = order_of({}, steps=10_000, detectors=versions())
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


def losses(rank: int, step: int) -> dict[str, Any]:
    """Each rank has a loss of its own, on data of its own."""
    loss = (5.0, 6.4)[rank] - 0.001234 * step + 0.01 * (step % 7)
    return {"loss": loss, "grad_norm": 1.0 + 0.1 * (step % 5)}


def test_either_may_be_ahead_by_hundreds_of_steps() -> None:
    for times_s in ((1.0, 2.5), (2.5, 1.0)):
        seen = watch(apart(times_s, losses), interval_s=1.0)
        assert seen.findings == []
        assert len(seen.state.steps.waiting) <= 256
        assert seen.state.steps.last > 260


@pytest.mark.parametrize("times_s", [(1.0, 2.5), (2.5, 1.0)])
def test_what_the_first_rank_tells_is_watched(times_s: tuple[float, float]) -> None:
    def vanishing(rank: int, step: int) -> dict[str, Any]:
        return losses(rank, step) | ({"grad_norm": 0.0} if step > 300 else {})

    seen = watch(apart(times_s, vanishing), interval_s=1.0)
    assert [(halt.detector, halt.step) for halt in seen.halts] == [("gradients", 303)]
    again = load_state(seen.state.run.order, dump_state(seen.state))
    assert again.steps == seen.state.steps


def test_one_of_them_says_nothing_of_the_speed_of_all() -> None:
    def told(rank: int, step: int) -> dict[str, Any]:
        return losses(rank, step) | {"toks_per_s": 1024.0 * (1 / 6.0 + 1 / 0.1)}

    seen = watch(apart((6.0, 0.1), told, seconds=600.0), interval_s=1.0)
    assert seen.findings == []
    assert seen.state.steps.last > 90


def test_what_was_forgotten_at_a_restart_keeps_no_later_step_from_being_whole() -> None:
    """Rank 1's lines of hundreds of steps are lost; then both go back to an earlier step."""
    world = World(order_of({}, steps=10_000, detectors=versions()), alive_every_s=5.0).boot()
    world.steps(400, step_s=0.1)
    lost = world.ranks[1].lines
    world.ranks[1].lines = [said for said in lost if json.loads(said.raw)["step"] < 100]
    for rank in world.ranks:
        rank.spend(3.0)
        rank.boot, rank.seq, rank.step = f"again{rank.rank}", 0, 100
        rank.say("boot")
    seen = watch(world.steps(20, step_s=0.1))
    assert seen.halts == []
    assert seen.state.steps.last == 120
    assert seen.state.steps.given_up == 100
    assert seen.state.steps.waiting == {}


@pytest.mark.parametrize("burst_s", [0.0, 60.0])
def test_lines_that_come_in_bursts_hide_no_starving_loader(burst_s: float) -> None:
    """Another node's file system shows what a rank wrote once a minute."""
    world = World(order_of({}, steps=100_000, detectors=versions()), alive_every_s=5.0).boot()
    for rank in world.ranks:
        for step in range(1, 9000):
            rank.step, rank.in_step = step, True
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
    halts = watch(world, interval_s=1.0).halts
    assert [(halt.detector, halt.rank) for halt in halts] == [("loader", None)]
