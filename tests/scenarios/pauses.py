"""Pauses within a step: evaluations and checkpoints of ranks that do not wait for each other."""

from __future__ import annotations

from collections.abc import Iterator

from gonogo.watch.registry import detector_names
from tests.scenarios.scenario import Scenario, each, streams
from tests.watch.streams import World, order_of


def paused(
    section: str, seconds: list[float], *, waits_in: str = "data", ends: bool = True
) -> World:
    """After 40 steps every rank enters a section for its time, and continues.

    Ranks that are back wait for the others in a section of the next step.
    """
    order = order_of({}, steps=400, world_size=len(seconds), detectors=detector_names())
    world = World(order, alive_every_s=5.0).boot().steps(40, step_s=1.0)
    for rank, spent_s in zip(world.ranks, seconds, strict=True):
        rank.step += 1
        rank.in_step = True
        rank.say("step_start")
        rank.enter("log")
        rank.enter(section)
        rank.say("section")
        rank.spend(spent_s)
        if spent_s == max(seconds) and not ends:
            continue
        rank.say(section, dt=spent_s)
        rank.enter("data")
        rank.say("step_start")
        if waits_in != "data":
            rank.enter(waits_in)
    world.meet()
    if ends:
        world.compute(step_s=1.0)
        world.close_step()
        world.steps(10, step_s=1.0)
    return world


@each("section", ["checkpoint", "eval"])
@each("ranks, back_s", [(2, 0.01), (4, 20.0)])
def one_rank_pauses_longer(section: str, ranks: int, back_s: float) -> Iterator[World]:
    seconds = [450.0, *(back_s for _ in range(ranks - 1))]
    yield paused(section, seconds)


@each("section, limit_s", [("checkpoint", 600.0), ("eval", 1800.0)])
@each("ranks", [2, 4])
def last_rank_never_leaves(section: str, limit_s: float, ranks: int) -> Iterator[World]:
    seconds = [*(4.0 for _ in range(ranks - 1)), limit_s + 30.0]
    yield paused(section, seconds, waits_in="backward", ends=False)


def hang_in_data_after_the_pause() -> Iterator[World]:
    world = paused("checkpoint", [4.0, 4.5], ends=False)
    last = world.ranks[1]
    last.say("checkpoint", dt=4.5)
    last.enter("data")
    last.say("step_start")
    last.enter("forward")
    last.enter("backward")
    last.collective_seq += 1
    end = world.mono + 330.0
    for rank in world.ranks:
        rank.spend(end - rank.mono)
    yield world


def scenarios() -> Iterator[Scenario]:
    """Yield the streams of this family."""
    yield from streams(
        "pauses",
        one_rank_pauses_longer,
        last_rank_never_leaves,
        hang_in_data_after_the_pause,
    )
