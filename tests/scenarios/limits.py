"""Runs that stay in one place for nearly as long as its limit, or for longer."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from gonogo.watch.registry import detector_names
from tests.scenarios.faults import world_of
from tests.scenarios.scenario import Scenario, each, streams
from tests.scenarios.shapes import rewritten
from tests.watch.streams import World, order_of

USERS = "train.py"


def naming_only_data(raw: bytes) -> bytes:
    """Let a line name no section but data, as of a trainer that labels its loader alone."""
    line = json.loads(raw)
    if line.get("section") in {"forward", "backward", "optimizer", "log"}:
        line["section"] = None
    line["section_seq"] = 2 * line["step"] + (line.get("section") != "data")
    line.pop("step_sections", None)
    return json.dumps(line).encode()


def only_data_is_named_and_steps_are_long() -> Iterator[World]:
    world = world_of(steps=200).steps(100, step_s=90.0)
    yield rewritten(world, naming_only_data)


def only_data_is_named_then_a_hang() -> Iterator[World]:
    world = world_of(steps=200).steps(100, step_s=25.0)
    world.open_step()
    world.hang(1, "forward", 400.0)
    yield rewritten(world, naming_only_data)


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


def between_boot_and_first_step() -> Iterator[World]:
    world = world_of()
    for rank in world.ranks:
        rank.spend(800.0)
    yield world.steps(3, step_s=10.0)
    world.pause("checkpoint", 0.1).pause("eval", 0.1)
    for rank in world.ranks:
        rank.enter(None)
        rank.spend(200.0)
    yield world


def long_second_step() -> Iterator[World]:
    yield world_of().steps(2, step_s=400.0)
    world = world_of().steps(1, step_s=400.0)
    world.open_step()
    world.hang(0, "forward", 1000.0)
    yield world


@each("seconds", [290.0, 310.0])
def unknown_section_after_the_first_step(seconds: float) -> Iterator[World]:
    world = world_of().steps(1, step_s=2.0).pause("sampling", seconds)
    yield world.steps(5, step_s=2.0)


@each("step_s", [400.0, 700.0, 1000.0])
def step_ends_alone(step_s: float) -> Iterator[World]:
    world = world_of()
    for seconds in (400.0, step_s, 400.0, 400.0):
        for rank in world.ranks:
            rank.spend(seconds)
            rank.step += 1
            rank.say("step_end")
    yield world


def names_only_steps(*pauses: str, again: bool = False) -> World:
    """A script that attached and names its steps alone, and before them what `pauses` says."""
    world = world_of(entry=USERS)
    for rank in world.ranks:
        for pause in pauses:
            rank.enter(pause)
            rank.enter(None)
        for _ in range(100):
            rank.step += 1
            rank.say("step_start")
            rank.spend(0.5)
            rank.say("step_end")
        if again:
            rank.boot, rank.seq = f"again{rank.rank}", 0
            rank.say("boot")
            rank.enter(None)
            for _ in range(40):
                rank.step += 1
                rank.say("step_start")
                rank.spend(0.5)
                rank.say("step_end")
        rank.step += 1
        rank.say("step_start")
    return world


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


def stalled_loader_between_steps() -> Iterator[World]:
    world = world_of(entry=USERS).steps(100, step_s=4.0)
    yield world.pause(None, 295.0).steps(5, step_s=4.0)
    yield world.pause(None, 305.0)


@each("again", [False, True])
@each(
    "pauses, limit_s",
    [((), 300.0), (("eval",), 300.0), (("checkpoint",), 300.0), (("eval", "checkpoint"), 60.0)],
)
def unnamed_pause_within_a_step(
    pauses: tuple[str, ...], limit_s: float, again: bool
) -> Iterator[World]:
    for seconds, _due in ((limit_s - 5.0, []), (limit_s + 5.0, [limit_s])):
        world = names_only_steps(*pauses, again=again)
        for rank in world.ranks:
            rank.spend(seconds)
            rank.say("step_end")
        yield world


def plan_with_a_stall_limit() -> Iterator[World]:
    order = order_of({"stall": {"halt_s": 90.0}}, steps=400, detectors=detector_names())
    world = World(order, alive_every_s=5.0).boot().steps(40, step_s=0.5)
    for rank in world.ranks:
        rank.step += 1
        rank.say("step_start")
        rank.spend(95.0)
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


@each("section", ["rollout", None])
def longest_rollout_so_far(section: str | None) -> Iterator[World]:
    yield plays_in_rounds(section, 320.0)


def plays_now_and_then(slower_from: int = 10**9, slower_x: float = 1.0) -> World:
    """An agent plays for 40 s, then trains for one to three steps of 2 s on it, and so on."""
    world, dice = world_of(steps=500, entry=USERS), random.Random(0)
    while world.ranks[0].step < 420:
        times = slower_x if world.ranks[0].step >= slower_from else 1.0
        world.pause("rollout", 40.0 * times * dice.uniform(0.8, 1.25))
        world.steps(dice.randint(1, 3), step_s=2.0 * times)
    return world


def steps_of_two_lengths() -> Iterator[World]:
    yield plays_now_and_then()


def steps_of_two_lengths_then_slower() -> Iterator[World]:
    yield plays_now_and_then(300, 2.0)


def scenarios() -> Iterator[Scenario]:
    """Yield the streams of this family."""
    yield from streams(
        "limits",
        only_data_is_named_and_steps_are_long,
        only_data_is_named_then_a_hang,
        no_sections,
        first_batch,
        after_the_last_step,
        restart_in_place,
        episodes_before_each_step,
        hang_in_an_episode,
        between_boot_and_first_step,
        long_second_step,
        unknown_section_after_the_first_step,
        step_ends_alone,
        stalled_loader_that_is_not_named,
        stalled_loader_between_steps,
        unnamed_pause_within_a_step,
        plan_with_a_stall_limit,
        rollout_every_40_steps,
        longest_rollout_so_far,
        steps_of_two_lengths,
        steps_of_two_lengths_then_slower,
    )
