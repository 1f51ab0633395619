"""Ranks that wait while another rank saves, evaluates or comes late."""

from __future__ import annotations

from collections.abc import Iterator

from tests.scenarios.faults import world_of
from tests.scenarios.scenario import Scenario, each, streams
from tests.watch.streams import Said, World


def checkpoint_of_rank_0(world: World) -> None:
    """Rank 0 writes a checkpoint alone; nobody waits for it here."""
    first = world.ranks[0]
    first.enter("checkpoint")
    first.spend(5.0)
    first.enter(None)
    world.meet()


@each("alone", [0, 1, 3])
def stalled_loader_after_checkpoints_of_rank_0(alone: int) -> Iterator[World]:
    world = world_of().steps(40, step_s=1.0)
    for _ in range(alone):
        checkpoint_of_rank_0(world)
    world.open_step(data_s=[100.0, 0.01])
    world.compute(step_s=1.0)
    world.close_step()
    yield world.steps(10, step_s=1.0)


@each("culprit", [0, 1])
def hang_after_a_checkpoint_of_rank_0(culprit: int) -> Iterator[World]:
    world = world_of().steps(40, step_s=1.0)
    checkpoint_of_rank_0(world)
    world.open_step()
    world.hang(culprit, "forward", 120.0)
    yield world


def opens_at_once(world: World, count: int, *, step_s: float = 1.0) -> World:
    """Steps of a trainer that opens the next one as soon as one has ended."""
    for rank in world.ranks:
        if not rank.in_step:
            rank.step, rank.in_step = rank.step + 1, True
            rank.say("step_start")
    for _ in range(count):
        for rank in world.ranks:
            rank.enter("data")
            rank.spend(0.01)
        world.compute(step_s=step_s)
        for rank in world.ranks:
            rank.say("progress", loss=world.loss(rank.step), grad_norm=1.0)
            rank.enter(None)
            rank.say("step_end", tokens=2048)
            rank.step += 1
            rank.say("step_start")
    return world


def evaluates(world: World, rank: int, seconds: float) -> None:
    """One rank evaluates in the open step, which then opens again."""
    one = world.ranks[rank]
    one.enter("eval")
    one.say("section")
    one.spend(seconds)
    one.step -= 1
    one.say("eval", val_loss=3.0)
    one.step += 1
    one.enter(None)
    one.say("step_start")
    world.meet()


def saves_alone(world: World, section: str, seconds: float, *, in_log: bool = False) -> World:
    """Rank 0 saves or evaluates for all between two steps; the others wait at a barrier."""
    for rank in world.ranks:
        if rank.rank == 0:
            rank.enter(section)
        elif in_log:
            rank.enter("log")
        rank.spend(seconds)
        rank.enter(None)
    world.meet()
    return world


@each("in_log", [False, True])
@each("section, seconds", [("checkpoint", 590.0), ("eval", 1750.0)])
def rank_0_saves_for_all(section: str, seconds: float, in_log: bool) -> Iterator[World]:
    world = world_of().steps(40, step_s=1.0)
    for _ in range(2):
        saves_alone(world, section, seconds, in_log=in_log).steps(10, step_s=1.0)
    yield world
    opened = opens_at_once(world_of(), 40)
    evaluates(opened, 0, seconds)
    yield opens_at_once(opened, 10)


def rank_0_never_leaves_its_checkpoint() -> Iterator[World]:
    yield saves_alone(world_of().steps(40, step_s=1.0), "checkpoint", 1000.0)


def done_after_evaluating_alone(left_in: str | None, wakes_s: float) -> World:
    """After the last step rank 0 evaluates alone and is done; rank 1 wakes so much later."""
    world = world_of(40).steps(40, step_s=1.0)
    acting, waiting = world.ranks
    acting.enter("eval")
    acting.spend(700.0)
    acting.enter(left_in)
    acting.say("done")
    waiting.spend(acting.mono - waiting.mono + wakes_s)
    waiting.say("done")
    return world


@each("left_in", [None, "eval"])
def done_after_an_evaluation_of_rank_0(left_in: str | None) -> Iterator[World]:
    yield done_after_evaluating_alone(left_in, 5.0)


@each("stays", [False, True])
@each("later_s", [0.3, 4.0, 9.0])
def both_ranks_fall_silent(later_s: float, stays: bool) -> Iterator[World]:
    world = world_of().steps(40, step_s=2.4)
    world.open_step()
    for rank in world.ranks:
        rank.enter("forward")
        rank.spend(1.1)
    second = world.ranks[1]
    second.spend(later_s)
    second.say("alive")
    if stays:
        second.spend(45.0)
    world.ranks[0].mono = second.mono = second.mono + 45.0
    world.compute(step_s=2.4)
    world.close_step()
    yield world.steps(10, step_s=2.4)


@each("waits_in", [None, "log", "data", "backward"])
@each("section, seconds", [("checkpoint", 590.0), ("eval", 1750.0)])
def rank_1_continues_later_than_rank_0(
    section: str, seconds: float, waits_in: str | None
) -> Iterator[World]:
    world = world_of().steps(40, step_s=1.0)
    acting, waiting = world.ranks
    acting.enter(section)
    acting.spend(seconds)
    acting.enter(None)
    if waits_in is not None:
        waiting.enter(waits_in)
    waiting.spend(acting.mono - waiting.mono + 5.0)
    for rank in world.ranks:
        rank.step += 1
        rank.in_step = True
        rank.enter("data")
        rank.say("step_start")
    world.compute(step_s=1.0)
    world.close_step()
    yield world.steps(3, step_s=1.0)


@each("hangs_in", [None, "log", "data", "backward"])
def rank_1_never_continues(hangs_in: str | None) -> Iterator[World]:
    world = world_of().pause("checkpoint", 0.1).steps(40, step_s=1.0)
    acting, hanging = world.ranks
    acting.enter("eval")
    acting.spend(500.0)
    acting.enter(None)
    back = acting.mono
    if hangs_in is not None:
        hanging.enter(hangs_in)
    acting.step += 1
    acting.in_step = True
    acting.enter("data")
    acting.say("step_start")
    acting.enter("forward")
    acting.spend(1.0)
    acting.enter("backward")
    acting.collective_seq += 1
    for rank in world.ranks:
        rank.spend(back + 400.0 - rank.mono)
    yield world


def waited_for_an_evaluation(seconds: float) -> tuple[World, float]:
    """Rank 0 evaluates while rank 1 waits in no section; half a second later their steps
    continue."""
    world = world_of().pause("checkpoint", 0.1).steps(40, step_s=0.5)
    acting = world.ranks[0]
    acting.enter("eval")
    acting.spend(seconds)
    acting.enter(None)
    world.meet()
    return world, world.mono + 0.5


def late_lines_after_an_evaluation() -> Iterator[World]:
    world, since = waited_for_an_evaluation(90.0)
    world.steps(200, step_s=0.5)
    late = world.ranks[1]
    late.lines = [
        Said(max(s.mono, since + 50.0), s.raw) if s.mono > since - 1.0 else s for s in late.lines
    ]
    yield world


def rank_1_done_early() -> Iterator[World]:
    world = world_of().steps(40)
    world.ranks[1].say("done")
    world.ranks[1].stopped = True
    first = world.ranks[0]
    first.step, first.in_step = (first.step + 1, True)
    first.say("step_start")
    first.enter("backward")
    first.spend(100.0)
    yield world


def scenarios() -> Iterator[Scenario]:
    """Yield the streams of this family."""
    yield from streams(
        "waiting",
        stalled_loader_after_checkpoints_of_rank_0,
        hang_after_a_checkpoint_of_rank_0,
        rank_0_saves_for_all,
        rank_0_never_leaves_its_checkpoint,
        done_after_an_evaluation_of_rank_0,
        both_ranks_fall_silent,
        rank_1_continues_later_than_rank_0,
        rank_1_never_continues,
        late_lines_after_an_evaluation,
        rank_1_done_early,
    )
