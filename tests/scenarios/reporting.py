"""Trainers that report less, later or in another order than ours."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from tests.scenarios.faults import world_of
from tests.scenarios.scenario import Scenario, each, streams
from tests.scenarios.shapes import rewritten, with_the_section_first
from tests.watch.streams import T0, Said, World


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


def section_line_before_step_start() -> Iterator[World]:
    yield with_the_section_first(world_of(60).steps(40, step_s=60.0))


def section_line_before_step_start_then_a_hang() -> Iterator[World]:
    world = world_of().steps(40, step_s=1.0)
    world.open_step()
    world.hang(1, "forward", 120.0)
    yield with_the_section_first(world)


@each("steps", [40, 400])
def done_at_step_40(steps: int) -> Iterator[World]:
    world = world_of(steps).steps(40)
    for rank in world.ranks:
        rank.say("done")
        world.probe(rank.rank, "dead", code=0)
    for rank in world.ranks:
        rank.spend(2.0)
    yield world


def evaluation_reported_twice() -> Iterator[World]:
    world = world_of().steps(30, step_s=1.0)
    world.open_step()
    world.compute(step_s=1.0)
    world.close_step()
    world.pause("eval", 30.0, "eval")
    world.ranks[0].say("eval", dt=30.0, val_loss=3.0)
    world.ranks[1].say("eval", dt=30.0, val_loss=3.0)
    yield world.steps(3, step_s=1.0)


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


def numbers_behind(world: World, by: int, after: str = "step_start") -> World:
    """Report each step's numbers when later ones have begun, or have ended."""
    held_most = by - 1 if after == "step_start" else by
    for rank in world.ranks:
        lines: list[Said] = []
        held: list[Said] = []
        for said in rank.lines:
            if b'"progress"' in said.raw:
                held.append(said)
                continue
            lines.append(said)
            if f'"{after}"'.encode() in said.raw and len(held) > held_most:
                mono = re.sub(rb'"mono": [0-9.]+', b'"mono": %f' % said.mono, held.pop(0).raw)
                lines.append(Said(said.mono, mono))
        rank.lines = [
            Said(said.mono, re.sub(rb'"seq": \d+', b'"seq": %d' % number, said.raw))
            for number, said in enumerate(lines, start=1)
        ]
    return world


@each("by, after", [(1, "step_end"), (2, "step_start"), (2, "step_end"), (9, "step_start")])
def progress_some_steps_later(by: int, after: str) -> Iterator[World]:
    sick = world_of(2000).steps(30, step_s=2.0).steps(60, step_s=2.0, grad_norm=0.0)
    yield numbers_behind(sick, by, after)
    yield numbers_behind(world_of(2000).steps(100, step_s=2.0), by, after)


def naming_nothing(raw: bytes) -> bytes | None:
    """A trainer that reports the starts and the numbers of steps, and names no section."""
    line = json.loads(raw)
    if line["msg"] in ("section", "step_end"):
        return None
    line.pop("section_age_s", None)
    return json.dumps({**line, "section": None, "section_seq": 0}).encode()


@each("step_s", [2.0, 30.0])
@each("names", [False, True])
def late_progress_ends_the_step(names: bool, step_s: float) -> Iterator[World]:
    def changed(world: World) -> World:
        late = numbers_later(world)
        return with_progress_alone(late) if names else rewritten(late, naming_nothing)

    yield changed(world_of(2000).steps(60, step_s=step_s))
    sick = world_of(2000).steps(30, step_s=step_s).steps(60, step_s=step_s, grad_norm=0.0)
    yield changed(sick)


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


def numbers_together(world: World, every: int) -> World:
    """Report the numbers of so many steps together, at the end of the last one."""
    for rank in world.ranks:
        lines: list[Said] = []
        held: list[Said] = []
        for said in rank.lines:
            if b'"progress"' not in said.raw:
                lines.append(said)
                continue
            held.append(said)
            if json.loads(said.raw)["step"] % every:
                continue
            wrote_s = 2e-5 if said.mono < T0 + 900.0 else 4e-5
            for place, row in enumerate(held):
                mono = said.mono + place * wrote_s
                raw = re.sub(rb'"mono": [0-9.]+', b'"mono": %f' % mono, row.raw)
                lines.append(Said(mono, raw))
            held.clear()
        rank.lines = [
            Said(said.mono, re.sub(rb'"seq": \d+', b'"seq": %d' % number, said.raw))
            for number, said in enumerate(lines, start=1)
        ]
    return world


@each("names", [False, True])
@each("step_s", [2.0, 5.0])
def progress_of_ten_steps_together(names: bool, step_s: float) -> Iterator[World]:
    world = world_of(20000).steps(400, step_s=2.0).steps(400, step_s=step_s)
    world = numbers_together(world, 10)
    changed = with_progress_alone(world) if names else rewritten(world, naming_nothing)
    yield changed


def late_progress_of_one_rank_and_none_of_the_other() -> Iterator[World]:
    for late in (False, True):
        world = world_of(2000).steps(30, step_s=2.0).steps(9, step_s=2.0, grad_norm=0.0)
        silent = world.ranks[1]
        kept = [said for said in silent.lines if b'"progress"' not in said.raw]
        silent.lines = [
            Said(said.mono, re.sub(b'"seq": \\d+', b'"seq": %d' % number, said.raw))
            for number, said in enumerate(kept, start=1)
        ]
        yield (numbers_later(world, ranks=1) if late else world)


@each("clock_of_the_new_process", [0.0, 1.0])
def torn_boot_line_of_a_restart(clock_of_the_new_process: float) -> Iterator[World]:
    world = world_of().steps(30, step_s=1.0)
    for peer in world.ranks:
        peer.spend(3.0)
    rank = world.ranks[1]
    rank.boot, rank.seq, rank.step = "again", 0, 20
    rank.say("boot")
    rank.lines[-1] = Said(rank.mono, b'{"v": 1, "ts": 17')
    for peer in world.ranks:
        peer.step = 30
    before = len(rank.lines)
    world.steps(100, step_s=1.0)
    if clock_of_the_new_process:
        mono = b'"mono": %g' % clock_of_the_new_process
        rank.lines[before:] = [
            Said(said.mono, re.sub(rb'"mono": [\d.]+', mono, said.raw))
            for said in rank.lines[before:]
        ]
    yield world


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
        section_line_before_step_start,
        section_line_before_step_start_then_a_hang,
        done_at_step_40,
        evaluation_reported_twice,
        progress_after_step_end,
        progress_within_the_next_step,
        progress_some_steps_later,
        late_progress_ends_the_step,
        progress_of_every_tenth_step,
        progress_of_ten_steps_together,
        late_progress_of_one_rank_and_none_of_the_other,
        torn_boot_line_of_a_restart,
    )
