"""Ranks that wait while another rank saves, evaluates or comes late."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.scenarios.faults import world_of
from tests.scenarios.scenario import Scenario, each, streams
from tests.scenarios.shapes import with_the_section_first
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


def next_step_opened_early_and_again_after_an_evaluation() -> Iterator[World]:
    world = opens_at_once(world_of(), 40)
    for rank in (0, 1):
        evaluates(world, rank, 50.0)
    yield opens_at_once(world, 40)


@each("culprit", [0, 1])
def hang_after_an_evaluation_of_rank_0(culprit: int) -> Iterator[World]:
    world = opens_at_once(world_of(), 40)
    evaluates(world, 0, 5.0)
    for rank in world.ranks:
        rank.enter("data")
        rank.spend(0.01)
    yield world.hang(culprit, "forward", 120.0)


def done_after_opening_another_step() -> Iterator[World]:
    world = opens_at_once(world_of(), 40)
    for rank in world.ranks:
        rank.step -= 1
        rank.say("done")
        rank.spend(400.0)
    yield world


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


def asks_each_step(world: World, count: int) -> World:
    """A plain attached script: it names nothing, and all ranks agree after a step to continue."""
    for _ in range(count):
        for rank in world.ranks:
            rank.in_step, rank.step = True, max(1, rank.step)
            rank.spend(0.5)
            rank.say("progress", loss=world.loss(rank.step))
            rank.say("step_end", tokens=2048)
            rank.step += 1
            rank.say("step_start")
            rank.collective_seq += 1
            rank.enter("log")
            rank.spend(0.01)
            rank.enter(None)
    return world


def rank_0_evaluates_repeatedly() -> Iterator[World]:
    world = world_of()
    for _ in range(3):
        evaluates(asks_each_step(world, 40), 0, 120.0)
    yield asks_each_step(world, 10)


def hang_of_both_after_rank_0_evaluated() -> Iterator[World]:
    world = asks_each_step(world_of(), 40)
    evaluates(world, 0, 5.0)
    for rank in world.ranks:
        rank.spend(400.0)
    yield world


def ends_with(world: World, count: int, rank: int, section: str, seconds: float) -> World:
    """Steps at whose end one rank saves or evaluates, after computing: none opens again."""
    for _ in range(count):
        world.open_step()
        world.compute()
        for row in world.ranks:
            row.enter(None)
        one = world.ranks[rank]
        one.enter(section)
        one.say("section")
        one.spend(seconds)
        one.enter(None)
        one.say("section")
        world.meet()
        world.close_step()
    return world


@each("section, seconds", [("eval", 400.0), ("checkpoint", 200.0)])
def rank_0_pauses_within_a_step(section: str, seconds: float) -> Iterator[World]:
    world = ends_with(world_of().steps(40, step_s=0.5), 1, 1, "checkpoint", 1.0)
    yield ends_with(world, 2, 0, section, seconds).steps(10)


@each("fed_last", [0, 1])
@each("seconds", [110.0, 400.0])
def one_loader_stalls(fed_last: int, seconds: float) -> Iterator[World]:
    world = ends_with(world_of().steps(40, step_s=0.5), 1, 1, "checkpoint", 1.0).steps(5)
    world.open_step(data_s=[seconds if rank == fed_last else 0.01 for rank in (0, 1)])
    world.compute()
    world.close_step()
    for rank in world.steps(10).ranks:
        rank.lines = [
            Said(said.mono, re.sub(b', "collective_seq": \\d+', b"", said.raw))
            for said in rank.lines
        ]
    yield world


def rank_0_never_leaves_its_checkpoint_within_a_step() -> Iterator[World]:
    world = ends_with(world_of().steps(40, step_s=0.5), 1, 1, "checkpoint", 1.0)
    yield ends_with(world, 1, 0, "checkpoint", 1000.0)


def rank_0_never_leaves_its_checkpoint() -> Iterator[World]:
    yield saves_alone(world_of().steps(40, step_s=1.0), "checkpoint", 1000.0)


def late_step_start_during_an_evaluation() -> Iterator[World]:
    world = with_the_section_first(saves_alone(world_of().steps(40, step_s=2.0), "eval", 200.0))
    told = world.ranks[1].lines
    at = max((number for number, said in enumerate(told) if b'"step_start"' in said.raw))
    late = told.pop(at)
    upto = next((n for n, said in enumerate(told) if said.mono > late.mono + 0.5))
    told.insert(upto + 1, Said(told[upto].mono + 0.5, late.raw))
    yield world


@each("seconds", [300.0, 1000.0])
def rank_0_saves_alone_after_both_saved(seconds: float) -> Iterator[World]:
    world = world_of().steps(40, step_s=1.0)
    world.pause("checkpoint", 10.0)
    saves_alone(world.steps(10, step_s=1.0), "checkpoint", seconds)
    yield world


@each("in_log", [False, True])
def rank_1_waits_in_a_collective_of_the_checkpoint(in_log: bool) -> Iterator[World]:
    world = world_of().steps(40, step_s=1.0)
    for saves_s in (10.0, 300.0):
        first, second = world.ranks
        first.enter("log")
        first.enter(None)
        for rank in world.ranks:
            rank.enter("checkpoint")
        second.enter("log" if in_log else None)
        second.collective_seq += 1
        first.spend(saves_s)
        world.meet()
        first.enter(None)
        first.collective_seq += 1
        world.steps(10, step_s=1.0)
    yield world


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


def rank_1_never_done_after_an_evaluation_of_rank_0() -> Iterator[World]:
    yield done_after_evaluating_alone(None, 700.0)


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


def rank_1_stays_behind_and_rank_0_trains() -> Iterator[World]:
    world, _back = waited_for_an_evaluation(90.0)
    runs_on, hanging = world.ranks
    for _ in range(200):
        runs_on.step += 1
        runs_on.say("step_start")
        runs_on.enter("backward")
        runs_on.spend(0.5)
        runs_on.enter(None)
        runs_on.say("step_end")
    hanging.spend(runs_on.mono - hanging.mono)
    yield world


def one_evaluates_for_both() -> tuple[World, float]:
    """Both have evaluated before; now rank 0 does alone, for two minutes, and nothing counts it."""
    world = world_of().steps(40, step_s=0.5).pause("eval", 5.0).steps(20, step_s=0.5)
    world.ranks[0].enter("eval")
    world.ranks[0].spend(120.0)
    world.ranks[0].enter(None)
    return world, world.ranks[1].mono


@each("cut_after_s", [5.0, 20.0, 45.0])
def late_lines_during_an_evaluation(cut_after_s: float) -> Iterator[World]:
    world, since = one_evaluates_for_both()
    world.meet()
    world.steps(60, step_s=0.5)
    cut, late = (since + cut_after_s, world.ranks[1])
    late.lines = [Said(max(s.mono, cut + 58.0), s.raw) if s.mono > cut else s for s in late.lines]
    yield world


@each("section, seconds", [("eval", 20.0), ("checkpoint", 40.0)])
def late_lines_with_frequent_pauses(section: str, seconds: float) -> Iterator[World]:
    world = world_of().steps(60, step_s=0.5)
    cut, late = (world.mono + seconds - 1.0, world.ranks[1])
    for _ in range(6):
        world.ranks[0].enter(section)
        world.ranks[0].spend(seconds)
        world.ranks[0].enter(None)
        world.meet()
        world.steps(5, step_s=0.5)
    late.lines = [Said(max(s.mono, cut + 50.0), s.raw) if s.mono > cut else s for s in late.lines]
    yield world


@each("loads", [False, True])
def late_lines_after_a_long_and_a_short_pause(loads: bool) -> Iterator[World]:
    world = world_of().steps(40, step_s=0.5)
    for seconds in (200.0, 1.0):
        if loads:
            world.open_step(data_s=[seconds, 0.01])
            world.compute()
            world.close_step()
        else:
            saves_alone(world, "checkpoint", seconds)
        world.steps(5, step_s=0.5)
    world.steps(40, step_s=0.5)
    late = world.ranks[1]
    late.lines = [Said(said.mono + 8.0, said.raw) for said in late.lines]
    yield world


def restarted_during_an_evaluation(*, comes_back: bool) -> tuple[World, float]:
    """Rank 0 evaluates, rank 1 waits; all restart at their step. Rank 1 is read 20 s late."""
    world = world_of().pause("checkpoint", 0.1).steps(40, step_s=1.0)
    world.ranks[0].enter("eval")
    world.ranks[0].spend(190.0)
    world.meet()
    cut, late = world.mono, world.ranks[1]
    for rank in world.ranks:
        rank.mono += 20.0
        rank.boot, rank.seq, rank.in_step = f"again{rank.rank}", 0, False
        rank.section, rank.section_seq, rank.collective_seq = "boot", 0, 0
        rank.say("boot")
        rank.enter(None)
    back = world.mono
    if comes_back:
        world.steps(30, step_s=1.0)
        late.lines = [Said(s.mono + 20.0 * (s.mono > cut), s.raw) for s in late.lines]
    else:
        late.lines = [said for said in late.lines if said.mono <= cut]
        late.stopped = True
        world.open_step()
        world.compute(step_s=1.0)
        world.ranks[0].spend(90.0)
    return world, back


def restart_during_an_evaluation() -> Iterator[World]:
    yield restarted_during_an_evaluation(comes_back=True)[0]


def rank_1_never_returns_from_a_restart() -> Iterator[World]:
    world, _back = restarted_during_an_evaluation(comes_back=False)
    yield world


@each("spoke_s", [0.6, 20.0, 90.0])
def rank_1_falls_silent_during_an_evaluation(spoke_s: float) -> Iterator[World]:
    world, _since = one_evaluates_for_both()
    silent = world.ranks[1]
    silent.spend(spoke_s)
    silent.mono = world.mono
    silent.stopped = True
    world.ranks[0].spend(60.0)
    yield world


def evaluation_with_few_reported_steps() -> Iterator[World]:
    world = world_of()
    for _ in range(4):
        for rank in world.ranks:
            rank.step += 9
            rank.spend(9.0)
        world.steps(1, step_s=1.0)
    acting, waiting = world.ranks
    for rank in world.ranks:
        rank.step += 5
        rank.spend(6.0)
    acting.enter("eval")
    acting.spend(300.0)
    acting.enter(None)
    waiting.spend(acting.mono - waiting.mono - 0.5)
    acting.step += 4
    acting.say("alive", section_age_s=0.1)
    acting.spend(4.0)
    waiting.step += 4
    waiting.spend(4.5)
    yield world.steps(1, step_s=1.0)


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
        next_step_opened_early_and_again_after_an_evaluation,
        hang_after_an_evaluation_of_rank_0,
        done_after_opening_another_step,
        rank_0_saves_for_all,
        rank_0_evaluates_repeatedly,
        hang_of_both_after_rank_0_evaluated,
        rank_0_pauses_within_a_step,
        one_loader_stalls,
        rank_0_never_leaves_its_checkpoint_within_a_step,
        rank_0_never_leaves_its_checkpoint,
        late_step_start_during_an_evaluation,
        rank_0_saves_alone_after_both_saved,
        rank_1_waits_in_a_collective_of_the_checkpoint,
        done_after_an_evaluation_of_rank_0,
        rank_1_never_done_after_an_evaluation_of_rank_0,
        both_ranks_fall_silent,
        rank_1_continues_later_than_rank_0,
        rank_1_never_continues,
        late_lines_after_an_evaluation,
        rank_1_stays_behind_and_rank_0_trains,
        late_lines_during_an_evaluation,
        late_lines_with_frequent_pauses,
        late_lines_after_a_long_and_a_short_pause,
        restart_during_an_evaluation,
        rank_1_never_returns_from_a_restart,
        rank_1_falls_silent_during_an_evaluation,
        evaluation_with_few_reported_steps,
        rank_1_done_early,
    )
