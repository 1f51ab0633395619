"""Runs that stay in one place for nearly as long as its limit, or for longer."""

from __future__ import annotations

from collections.abc import Iterator

from gonogo.watch.registry import detector_names
from tests.scenarios.faults import world_of
from tests.scenarios.scenario import Scenario, each, streams
from tests.watch.streams import World, order_of

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


def scenarios() -> Iterator[Scenario]:
    """Yield the streams of this family."""
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
