"""Ranks that wait for each other, stay long in one place, pause apart, or are cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gonogo.watch.registry import detector_names
from tests.scenarios.faults import world_of
from tests.scenarios.scenario import Scenario, each, streams
from tests.watch.streams import Said, World, order_of

# Worlds that several families of scenarios share, and edits of their lines.


def cut(world: World, since: float, until: float) -> None:
    """Nothing of node 1 arrives meanwhile: its follower is not heard, its lines come later."""
    row = {"rank": 1, "pid": 101}
    world.probes.append((since + 10.0, {"ranks": [{**row, "state": "unknown"}]}))
    world.probes.append((until, {"ranks": [{**row, "state": "alive"}]}))
    rank = world.ranks[1]
    rank.lines = [
        Said(until, said.raw) if since < said.mono < until else said for said in rank.lines
    ]


def losses(rank: int, step: int) -> dict[str, Any]:
    """Each rank has a loss of its own, on data of its own."""
    loss = (5.0, 6.4)[rank] - 0.001234 * step + 0.01 * (step % 7)
    return {"loss": loss, "grad_norm": 1.0 + 0.1 * (step % 5)}


# Runs that stay in one place for nearly as long as its limit, or for longer.


USERS = "train.py"


@each("ranks", [1, 2])
@each("step_s", [1.0, 61.0])
def no_sections(ranks: int, step_s: float) -> Iterator[World]:
    world = World(order_of({}, world_size=ranks, steps=10000, detectors=detector_names())).boot()
    for step in range(1, 31 + int(200 / step_s)):
        for rank in world.ranks:
            rank.step, rank.in_step = (step, True)
            rank.say("step_start")
            rank.spend(step_s)
            rank.say("progress", loss=3.0 + 0.01 * (step % 7))
            rank.say("step_end", tokens=512)
    yield world
    for rank in world.ranks:
        rank.spend(1200.0)
    yield world


def first_batch() -> Iterator[World]:
    for seconds, _halts in ((850.0, 0), (1000.0, 1)):
        world = world_of()
        world.open_step(data_s=seconds)
        world.compute(step_s=1.0)
        world.close_step()
        yield world.steps(5, step_s=1.0)


def after_the_last_step() -> Iterator[World]:
    for seconds, _halts in ((590.0, 0), (650.0, 1)):
        world = world_of(40).steps(40, step_s=1.0)
        for rank in world.ranks:
            rank.spend(seconds)
        yield world.finish()


@each("away_s, seen", [(1700.0, True), (2500.0, True), (1700.0, False)])
def restart_in_place(away_s: float, seen: bool) -> Iterator[World]:
    world = world_of(entry=USERS).steps(60, step_s=1.0)
    left, rows = (world.mono, [])
    for rank in world.ranks:
        rank.mono += away_s
        rank.boot, rank.seq, rank.section_seq = (f"again{rank.rank}", 0, 0)
        rank.collective_seq, rank.section = (0, "boot")
        rows.append({"rank": rank.rank, "pid": 300 + rank.rank, "state": "alive"})
    if seen:
        world.probes.append((left + 3.0, {"ranks": rows}))
    yield world.boot().steps(40, step_s=1.0)


def with_episodes(section: str | None, seconds: float, count: int) -> World:
    """Each step plays episodes first, in no section or in one of its own, and then computes."""
    world = world_of().pause("checkpoint", 0.1).pause("eval", 0.1)
    for _ in range(count):
        for rank in world.ranks:
            rank.step, rank.in_step = rank.step + 1, True
            rank.say("step_start")
            if section is not None:
                rank.enter(section)
            rank.spend(seconds)
        world.compute(step_s=10.0)
        world.close_step()
    return world


@each("section", [None, "rollout"])
def episodes_before_each_step(section: str | None) -> Iterator[World]:
    yield with_episodes(section, 90.0, 4)


def hang_in_an_episode() -> Iterator[World]:
    world = with_episodes("rollout", 25.0, 6)
    for rank in world.ranks:
        rank.step, rank.in_step = (rank.step + 1, True)
        rank.say("step_start")
        rank.enter("rollout")
        rank.spend(25.0)
    world.ranks[1].enter("backward")
    world.meet()
    for rank in world.ranks:
        rank.spend(200.0)
    yield world


@each("seconds", [100.0, 305.0])
def stalled_loader_that_is_not_named(seconds: float) -> Iterator[World]:
    world = world_of(entry=USERS)
    for rank in world.ranks:
        rank.lines = [said for said in rank.lines if b'"data"' not in said.raw]
        for pause in ("eval", "checkpoint"):
            rank.enter(pause)
            rank.enter(None)
        for step_s in (*[0.5] * 100, seconds):
            rank.step += 1
            rank.say("step_start")
            rank.spend(step_s)
            rank.say("step_end")
    yield world


def plays_in_rounds(section: str | None, last_s: float) -> World:
    """An agent plays or generates for 100 s, then trains for 40 steps on it, and so on."""
    world = world_of(entry=USERS).pause("eval", 0.1).pause("checkpoint", 0.1).pause("data", 1.5)
    for _ in range(3):
        world.pause(section, 100.0).steps(40)
    return world.pause(section, last_s).steps(2)


@each("section", ["rollout", None])
def rollout_every_40_steps(section: str | None) -> Iterator[World]:
    yield plays_in_rounds(section, 200.0)


def _limits() -> Iterator[Scenario]:
    yield from streams(
        "limits",
        no_sections,
        first_batch,
        after_the_last_step,
        restart_in_place,
        episodes_before_each_step,
        hang_in_an_episode,
        stalled_loader_that_is_not_named,
        rollout_every_40_steps,
    )


# Pauses within a step: evaluations and checkpoints of ranks that do not wait for each other.


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


def _pauses() -> Iterator[Scenario]:
    yield from streams(
        "pauses", one_rank_pauses_longer, last_rank_never_leaves, hang_in_data_after_the_pause
    )


# Ranks that wait while another rank saves, evaluates or comes late.


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


def _waiting() -> Iterator[Scenario]:
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


# Ranks that are cut off, fall silent together, or run at speeds of their own.


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


def _network() -> Iterator[Scenario]:
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


def scenarios() -> Iterator[Scenario]:
    """Yield the streams of each family."""
    for family in (_limits, _network, _pauses, _waiting):
        yield from family()
