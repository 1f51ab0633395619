"""Trainers that report less, later or in another order than ours."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from tests.scenarios.faults import world_of
from tests.scenarios.scenario import Scenario, each, streams
from tests.scenarios.shapes import rewritten
from tests.watch.streams import Said, World


def no_step_end() -> Iterator[World]:
    def without_ends(raw: bytes) -> bytes | None:
        return None if b'"step_end"' in raw else raw

    world = world_of(2000).steps(1, step_s=40.0).steps(1000, step_s=1.0)
    yield rewritten(world, without_ends)


def with_progress_alone(world: World) -> World:
    """Sections are reported, and only the progress of steps."""
    return rewritten(
        world,
        lambda raw: None if b'"step_start"' in raw or b'"step_end"' in raw else raw,
    )


def progress_lines_alone() -> Iterator[World]:
    yield with_progress_alone(world_of(2000).steps(1000, step_s=1.0))


def progress_lines_alone_then_a_hang() -> Iterator[World]:
    world = world_of().steps(40, step_s=1.0)
    world.open_step()
    world.hang(1, "forward", 120.0)
    yield with_progress_alone(world)


def progress_lines_alone_then_twice_as_slow() -> Iterator[World]:
    world = world_of(2000).steps(300, step_s=1.0).steps(500, step_s=2.0)
    yield with_progress_alone(world)


def with_signs_of_life_alone(world: World) -> World:
    """Rank 1 reports its place, but neither the starts nor the ends of steps."""
    told = world.ranks[1].lines
    kept = [said for said in told if not re.search(rb'"(step_start|progress|step_end)"', said.raw)]
    world.ranks[1].lines = kept
    return rewritten(world, lambda raw: raw)


def rank_1_reports_only_its_step_number() -> Iterator[World]:
    yield with_signs_of_life_alone(world_of(150).steps(150, step_s=10.0).finish())


@each("before", [0, 1, 100])
def rank_1_reports_only_its_step_number_then_hangs(before: int) -> Iterator[World]:
    world = world_of(150).steps(before, step_s=10.0)
    world.open_step()
    world.hang(1, "forward", 1000.0)
    yield with_signs_of_life_alone(world)


@each("steps", [40, 400])
def done_at_step_40(steps: int) -> Iterator[World]:
    world = world_of(steps).steps(40)
    for rank in world.ranks:
        rank.say("done")
        world.probe(rank.rank, "dead", code=0)
    for rank in world.ranks:
        rank.spend(2.0)
    yield world


def numbers_late(world: World) -> World:
    """Report each step's numbers right after its end."""
    for rank in world.ranks:
        lines = rank.lines
        for at in range(len(lines) - 1):
            if b'"progress"' in lines[at].raw and b'"step_end"' in lines[at + 1].raw:
                lines[at], lines[at + 1] = lines[at + 1], lines[at]
        rank.lines = [
            Said(said.mono, re.sub(rb'"seq": \d+', b'"seq": %d' % number, said.raw))
            for number, said in enumerate(lines, start=1)
        ]
    return world


def progress_after_step_end() -> Iterator[World]:
    sick = world_of(2000).steps(30, step_s=1.0, grad_norm=1.0)
    sick.steps(200, step_s=1.0, grad_norm=0.0)
    yield sick
    yield numbers_late(sick)
    healthy = numbers_late(world_of(2000).steps(300, step_s=1.0))
    yield healthy


def numbers_later(world: World, ranks: int = 2) -> World:
    """Report each step's numbers when the next one has begun."""
    for rank in world.ranks[:ranks]:
        lines: list[Said] = []
        held: list[Said] = []
        for said in rank.lines:
            if b'"progress"' in said.raw:
                held.append(said)
                continue
            lines.append(said)
            if held and (b'"step_start"' in said.raw or said is rank.lines[-1]):
                mono = re.sub(rb'"mono": [0-9.]+', b'"mono": %f' % said.mono, held.pop().raw)
                lines.append(Said(said.mono, mono))
        rank.lines = [
            Said(said.mono, re.sub(rb'"seq": \d+', b'"seq": %d' % number, said.raw))
            for number, said in enumerate(lines, start=1)
        ]
    return world


@each("style", ["section lines", "ends alone"])
def progress_within_the_next_step(style: str) -> Iterator[World]:
    def changed(world: World) -> World:
        ends = style == "section lines"
        return world if ends else rewritten(world, lambda raw: raw if b"_end" not in raw else None)

    sick = world_of(2000).steps(30, step_s=2.0).steps(200, step_s=2.0, grad_norm=0.0)
    yield changed(numbers_later(sick))
    yield changed(numbers_later(world_of(2000).steps(300, step_s=2.0)))


def numbers_now_and_then(raw: bytes) -> bytes | None:
    """Every step's start is reported, and every tenth step's numbers."""
    line = json.loads(raw)
    if line["msg"] == "step_end" or (line["msg"] == "progress" and line["step"] % 10):
        return None
    return raw


@each("step_s", [5.0, 2.0])
def progress_of_every_tenth_step(step_s: float) -> Iterator[World]:
    world = world_of(20000).steps(400, step_s=2.0).steps(200, step_s=step_s)
    yield rewritten(world, numbers_now_and_then)


def scenarios() -> Iterator[Scenario]:
    """Yield the streams of this family."""
    yield from streams(
        "reporting",
        no_step_end,
        progress_lines_alone,
        progress_lines_alone_then_a_hang,
        progress_lines_alone_then_twice_as_slow,
        rank_1_reports_only_its_step_number,
        rank_1_reports_only_its_step_number_then_hangs,
        done_at_step_40,
        progress_after_step_end,
        progress_within_the_next_step,
        progress_of_every_tenth_step,
    )
