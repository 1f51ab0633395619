"""Pauses within a step: evaluations and checkpoints of ranks that do not wait for each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gonogo.watch.registry import detector_names
from tests.scenarios.scenario import Scenario, each, streams
from tests.watch.streams import World, order_of


def paused(
    section: str,
    seconds: list[float],
    *,
    then: Sequence[tuple[str, list[float]]] = (),
    between: str | None = None,
    ranks: int = 2,
    waits_in: str = "data",
    ends: bool = True,
) -> World:
    """After 40 steps every rank enters a section for its time, and continues.

    Ranks that are back wait for the others in a section of the next step. `then` are the pauses
    that follow in the same step, directly or with a section `between` them, in which it restarts.
    """
    order = order_of({}, steps=400, world_size=ranks, detectors=detector_names())
    world = World(order, alive_every_s=5.0).boot().steps(40, step_s=1.0)
    pauses = [(section, seconds), *then]
    longest_s = max(max(each_s) for _, each_s in pauses)
    for rank in world.ranks:
        rank.step += 1
        rank.in_step = True
        rank.say("step_start")
        rank.enter("log")
        for number, (name, each_s) in enumerate(pauses):
            spent_s = each_s[rank.rank]
            if number and between is not None:
                rank.enter(between)
                rank.say("step_start")
                rank.spend(0.1)
            rank.enter(name)
            rank.say("section")
            rank.spend(spent_s)
            if spent_s == longest_s and not ends:
                break
            rank.say(name, dt=spent_s)
        else:
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
    yield paused(section, seconds, ranks=ranks)


@each("section, limit_s", [("checkpoint", 600.0), ("eval", 1800.0)])
@each("ranks", [2, 4])
def last_rank_never_leaves(section: str, limit_s: float, ranks: int) -> Iterator[World]:
    seconds = [*(4.0 for _ in range(ranks - 1)), limit_s + 30.0]
    yield paused(section, seconds, ranks=ranks, waits_in="backward", ends=False)


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


@each("first, second", [("eval", "checkpoint"), ("checkpoint", "eval")])
@each("between", [None, "data"])
@each(
    "first_s, second_s",
    [
        ([450.0, 4.0], [4.0, 4.5]),
        ([4.0, 4.5], [450.0, 4.0]),
        ([450.0, 4.0], [400.0, 4.0]),
        ([450.0, 4.0], [4.0, 500.0]),
        ([450.0, 0.01], [0.01, 0.01]),
        ([450.0, 4.0, 20.0, 0.01], [4.0, 500.0, 4.0, 0.01]),
        ([4.0, 450.0, 4.0, 4.0], [450.0, 4.0, 4.0, 4.0]),
    ],
)
def two_pauses_in_one_step(
    first: str, second: str, between: str | None, first_s: list[float], second_s: list[float]
) -> Iterator[World]:
    yield paused(first, first_s, then=[(second, second_s)], between=between, ranks=len(first_s))


@each("first, second", [("eval", "checkpoint"), ("checkpoint", "eval")])
@each("between", [None, "data"])
@each("section", ["data", "forward", "backward"])
def hang_after_two_pauses(
    first: str, second: str, between: str | None, section: str
) -> Iterator[World]:
    for culprit in (0, 1):
        each_s = [200.0, 4.0]
        world = paused(first, each_s, then=[(second, each_s)], between=between, ends=False)
        slow = world.ranks[0]
        if slow.section == first:
            slow.say(first, dt=200.0)
            slow.enter(second)
            slow.say("section")
            slow.spend(200.0)
        slow.say(second, dt=200.0)
        slow.enter("data")
        slow.say("step_start")
        world.meet()
        world.hang(culprit, section, 2000.0)
        yield world


def scenarios() -> Iterator[Scenario]:
    """Yield the streams of this family."""
    yield from streams(
        "pauses",
        one_rank_pauses_longer,
        last_rank_never_leaves,
        hang_in_data_after_the_pause,
        two_pauses_in_one_step,
        hang_after_two_pauses,
    )
