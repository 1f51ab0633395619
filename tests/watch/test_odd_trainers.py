"""Trainers that do things in their own way: a healthy one is never halted, a sick one always is."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.finding import Severity
from gonogo.contract.heartbeat import parse_heartbeat
from gonogo.contract.tick import Tick
from gonogo.watch import dump_state, load_state, refold, snapshot
from gonogo.watch.absorb import absorb
from gonogo.watch.lines import Arrival
from gonogo.watch.registry import versions
from gonogo.watch.series import Look, Series
from gonogo.watch.steps import Steps
from gonogo.watch.stream import RankStream
from gonogo.watch.view import Run, View
from tests.watch.streams import EPOCH, T0, Said, Watched, World, order_of, watch

USERS = "train.py"
"""A program of a user's, which may name less than ours does."""


def world_of(steps: int = 400, **fields: Any) -> World:
    """Two ranks under all detectors and the default settings."""
    order = order_of({}, steps=steps, detectors=versions(), **fields)
    return World(order, alive_every_s=5.0).boot()


def halted(world: World) -> list[tuple[str, int | None, str | None]]:
    return watch(world).halted()


def checkpoint_of_rank_0(world: World) -> None:
    """Rank 0 writes a checkpoint alone; nobody waits for it here."""
    first = world.ranks[0]
    first.enter("checkpoint")
    first.spend(5.0)
    first.enter(None)
    world.meet()


@pytest.mark.parametrize("alone", [0, 1, 3])
def test_sections_that_one_rank_enters_alone_put_it_ahead_of_nobody(alone: int) -> None:
    world = world_of().steps(40, step_s=1.0)
    for _ in range(alone):
        checkpoint_of_rank_0(world)
    world.open_step(data_s=[100.0, 0.01])  # rank 0's loader stalls, within its deadline
    world.compute(step_s=1.0)
    world.close_step()
    assert halted(world.steps(10, step_s=1.0)) == []


@pytest.mark.parametrize("culprit", [0, 1])
def test_after_them_a_real_hang_is_named_rightly(culprit: int) -> None:
    world = world_of().steps(40, step_s=1.0)
    checkpoint_of_rank_0(world)
    world.open_step()
    world.hang(culprit, "forward", 120.0)
    assert halted(world)[0][:2] == ("stall", culprit)


def rewritten(world: World, change: Callable[[bytes], bytes | None]) -> World:
    """Change or drop lines of every rank; `seq` goes on without gaps."""
    for rank in world.ranks:
        kept = [(said, raw) for said in rank.lines if (raw := change(said.raw)) is not None]
        rank.lines = [
            Said(said.mono, re.sub(rb'"seq": \d+', b'"seq": %d' % number, raw))
            for number, (said, raw) in enumerate(kept, start=1)
        ]
    return world


def test_a_trainer_that_says_no_step_end_ends_a_step_where_it_starts_the_next() -> None:
    def without_ends(raw: bytes) -> bytes | None:
        return None if b'"step_end"' in raw else raw

    world = world_of(2000).steps(1, step_s=40.0).steps(1000, step_s=1.0)
    found = watch(rewritten(world, without_ends))
    assert found.halts == []
    assert snapshot(found.state).median_step_s == pytest.approx(1.01, rel=0.05)
    assert found.state.streams[0].first_s == pytest.approx(40.0, abs=1.0)


def with_progress_alone(world: World) -> World:
    """Sections are told, and of steps their progress alone."""
    return rewritten(
        world,
        lambda raw: None if b'"step_start"' in raw or b'"step_end"' in raw else raw,
    )


def test_a_labelled_trainer_that_says_progress_alone_ends_a_step_in_the_next_ones() -> None:
    found = watch(with_progress_alone(world_of(2000).steps(1000, step_s=1.0)))
    assert found.halts == []
    assert snapshot(found.state).median_step_s == pytest.approx(1.01, rel=0.05)


def test_its_hang_is_a_stall_and_not_a_first_step() -> None:
    world = world_of().steps(40, step_s=1.0)
    world.open_step()
    world.hang(1, "forward", 120.0)
    assert halted(with_progress_alone(world))[0][:2] == ("stall", 1)


def test_its_slowing_down_is_found() -> None:
    world = world_of(2000).steps(300, step_s=1.0).steps(500, step_s=2.0)
    assert halted(with_progress_alone(world))[0][0] == "slow"


def test_what_it_tells_of_its_steps_is_watched() -> None:
    """Step by step, each with its own numbers and its own time, its last one with the end."""
    world = with_progress_alone(world_of(300).steps(60, step_s=1.0).steps(240, loss=9.0))
    seen = []
    steps, run = Steps(), Run(order=world.order)
    tick = Tick(n=1, mono=0.0, ts=0.0, interval_s=1.0)
    streams: dict[int, RankStream] = {}
    for said in sorted(
        (said for rank in world.finish().ranks for said in rank.lines), key=lambda said: said.mono
    ):
        beat = parse_heartbeat(said.raw)
        own = streams.get(beat.rank) or RankStream(rank=beat.rank)
        streams[beat.rank] = absorb(own, beat, said.mono, Arrival.NEW)
        view = View(run=run, streams=streams)
        seen += steps.take(beat, streams[beat.rank], view, tick)
    assert [step.step for step in seen] == list(range(1, 301))
    assert {step.loss() for step in seen[60:]} == {9.0}
    assert seen[30].median_s() == pytest.approx(1.01, rel=0.05)


def with_signs_of_life_alone(world: World) -> World:
    """Rank 1 tells where it is, and neither where a step begins nor where it ends."""
    told = world.ranks[1].lines
    kept = [said for said in told if not re.search(rb'"(step_start|progress|step_end)"', said.raw)]
    world.ranks[1].lines = kept
    return rewritten(world, lambda raw: raw)


def test_a_rank_that_tells_only_in_which_step_it_is_has_ended_those_before() -> None:
    assert halted(with_signs_of_life_alone(world_of(150).steps(150, step_s=10.0).finish())) == []


@pytest.mark.parametrize("before", [0, 1, 100])
def test_its_hang_is_found_after_the_time_of_a_first_step(before: int) -> None:
    world = world_of(150).steps(before, step_s=10.0)
    world.open_step()
    world.hang(1, "forward", 1000.0)
    (finding,) = watch(with_signs_of_life_alone(world)).halts
    assert (finding.detector, finding.rank, finding.step) == ("no_first_heartbeat", 1, before + 1)
    assert 900.0 < (finding.value or 0.0) <= 902.0


def with_the_section_first(world: World) -> World:
    """No step's end is told, and a section line names the next step ahead of its start."""
    for rank in world.ranks:
        told: list[Said] = []
        for said in rank.lines:
            if b'"step_start"' in said.raw:
                told.append(Said(said.mono, said.raw.replace(b'"step_start"', b'"section"')))
            if b'"step_end"' not in said.raw:
                told.append(said)
        rank.lines = told
    return rewritten(world, lambda raw: raw)


def test_a_section_line_ahead_of_its_start_keeps_no_step_from_ending() -> None:
    found = watch(with_the_section_first(world_of(60).steps(40, step_s=60.0)))
    assert found.halts == []
    assert snapshot(found.state).median_step_s == pytest.approx(60.0, rel=0.05)


def test_nor_does_it_make_a_hang_one_of_the_first_step() -> None:
    world = world_of().steps(40, step_s=1.0)
    world.open_step()
    world.hang(1, "forward", 120.0)
    assert halted(with_the_section_first(world))[0][:2] == ("stall", 1)


def torn_restart(mono_off: float) -> Watched:
    """Rank 1 starts anew in place, and its boot line is torn; its clock goes on from `mono_off`."""
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
    if mono_off:
        rank.lines[before:] = [
            Said(said.mono, re.sub(rb'"mono": [\d.]+', b'"mono": %g' % mono_off, said.raw))
            for said in rank.lines[before:]
        ]
    return watch(world)


def test_a_restart_whose_boot_line_is_torn_is_followed_all_the_same() -> None:
    found = torn_restart(0.0)
    assert found.halts == []
    assert snapshot(found.state).ranks[1].boot == "again"


def test_lines_of_another_boot_that_are_older_than_what_was_obeyed_stay_refused() -> None:
    found = torn_restart(1.0)
    assert snapshot(found.state).ranks[1].boot == "boot1"


@pytest.mark.parametrize(("steps", "died"), [(40, False), (400, True)], ids=["at the end", "early"])
def test_done_before_the_last_ordered_step_is_an_end_too_early(steps: int, died: bool) -> None:
    world = world_of(steps).steps(40)
    for rank in world.ranks:
        rank.say("done")
        world.probe(rank.rank, "dead", code=0)
    for rank in world.ranks:
        rank.spend(2.0)
    found = watch(world).halted()
    assert [row[0] for row in found][:1] == (["process_death"] if died else [])


LOOK = Look(after=0, least=16, most=256, rise_ratio=0.05)


def grown(values: list[float]) -> Series:
    series = Series(boot="a")
    for step, value in enumerate(values, start=1):
        series = series.with_sample(step, value, LOOK)
    return series


def test_memory_that_breathes_is_no_leak_once_it_has_fallen() -> None:
    tooth = [20_000.0 + 125.0 * n for n in range(80)]
    assert grown(tooth).slope > 0
    assert grown(tooth * 2).slope == 0.0


def test_memory_that_outgrows_its_breathing_is_a_leak() -> None:
    values = [10_000.0 + 100.0 * n + 200.0 * (n % 8) for n in range(240)]
    assert grown(values).slope > 0


def test_time_of_an_evaluation_that_a_section_told_is_taken_out_once() -> None:
    world = world_of().steps(30, step_s=1.0)
    world.open_step()
    world.compute(step_s=1.0)
    world.close_step()
    world.pause("eval", 30.0, "eval")
    world.ranks[0].say("eval", dt=30.0, val_loss=3.0)
    world.ranks[1].say("eval", dt=30.0, val_loss=3.0)
    found = watch(world.steps(3, step_s=1.0))
    times = [stream.pace.times_s for stream in found.state.streams.values()]
    assert all(min(row) > 0.9 for row in times)
    assert all(len(row) == 33 for row in times)


def test_a_torn_restart_is_found_in_the_files_as_it_was_seen(tmp_path: Path) -> None:
    live = torn_restart(0.0)
    again = refold(live.save(tmp_path / "run")).findings
    assert [row.key for row in again] == [row.key for row in live.findings]


def naming_only_data(raw: bytes) -> bytes:
    """Let a line name no section but data, as of a trainer that labels its loader alone."""
    line = json.loads(raw)
    if line.get("section") in {"forward", "backward", "optimizer", "log"}:
        line["section"] = None
    line["section_seq"] = 2 * line["step"] + (line.get("section") != "data")
    line.pop("step_sections", None)
    return json.dumps(line).encode()


@pytest.mark.long
def test_a_trainer_that_names_only_its_loader_may_take_long_for_a_step() -> None:
    world = world_of(steps=200).steps(100, step_s=90.0)
    assert halted(rewritten(world, naming_only_data)) == []


def test_a_trainer_that_names_only_its_loader_is_halted_where_it_hangs() -> None:
    world = world_of(steps=200).steps(100, step_s=25.0)
    world.open_step()
    world.hang(1, "forward", 400.0)
    ((detector, rank, section),) = halted(rewritten(world, naming_only_data))
    assert (detector, section) == ("section_deadline", None)
    assert rank in (1, None)


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
    """One rank evaluates in the step that is open, which then opens anew."""
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


def test_a_step_that_is_opened_at_once_and_anew_after_an_evaluation_takes_its_own_time() -> None:
    world = opens_at_once(world_of(), 40)
    for rank in (0, 1):
        evaluates(world, rank, 50.0)
    found = watch(opens_at_once(world, 40))
    assert found.halts == []
    assert snapshot(found.state).median_step_s == pytest.approx(1.01, rel=0.05)
    assert all(max(row.pace.times_s) < 60.0 for row in found.state.streams.values())


@pytest.mark.parametrize("culprit", [0, 1])
def test_an_evaluation_in_a_step_that_opens_anew_puts_a_rank_ahead_of_nobody(culprit: int) -> None:
    world = opens_at_once(world_of(), 40)
    evaluates(world, 0, 5.0)
    for rank in world.ranks:
        rank.enter("data")
        rank.spend(0.01)
    assert halted(world.hang(culprit, "forward", 120.0))[0][:2] == ("stall", culprit)


def test_done_is_heard_from_a_rank_that_had_opened_another_step() -> None:
    world = opens_at_once(world_of(), 40)
    for rank in world.ranks:
        rank.step -= 1
        rank.say("done")
        rank.spend(400.0)
    found = watch(world)
    assert all(stream.done for stream in found.state.streams.values())
    assert found.halts == []


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


@pytest.mark.parametrize("in_log", [False, True])
@pytest.mark.parametrize(
    ("section", "seconds"),
    [("checkpoint", 590.0), pytest.param("eval", 1750.0, marks=pytest.mark.long)],
)
def test_who_waits_while_one_rank_saves_or_evaluates_for_all_is_not_behind(
    section: str, seconds: float, in_log: bool
) -> None:
    world = world_of().steps(40, step_s=1.0)
    for _ in range(2):
        saves_alone(world, section, seconds, in_log=in_log).steps(10, step_s=1.0)
    assert halted(world) == []
    opened = opens_at_once(world_of(), 40)
    evaluates(opened, 0, seconds)
    assert halted(opens_at_once(opened, 10)) == []


def asks_each_step(world: World, count: int) -> World:
    """A plain script, attached: it names nothing, and all ranks agree after a step to go on."""
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


def test_who_waits_again_and_again_for_one_rank_that_saves_is_not_behind() -> None:
    """What all have logged in the step that rank 0 opens anew is no difference between them."""
    world = world_of()
    for _ in range(3):
        evaluates(asks_each_step(world, 40), 0, 120.0)
    assert halted(asks_each_step(world, 10)) == []


def test_a_hang_after_one_rank_has_saved_names_not_that_one() -> None:
    world = asks_each_step(world_of(), 40)
    evaluates(world, 0, 5.0)
    for rank in world.ranks:
        rank.spend(400.0)
    assert [row[1] for row in halted(world)] == [None]


def ends_with(world: World, count: int, rank: int, section: str, seconds: float) -> World:
    """Steps at whose end one rank saves or evaluates, having computed: none opens anew."""
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


@pytest.mark.parametrize(("section", "seconds"), [("eval", 400.0), ("checkpoint", 200.0)])
def test_who_waits_within_a_step_for_one_rank_that_saves_is_not_behind(
    section: str, seconds: float
) -> None:
    """Sections that rank 1 entered alone are a usual difference, which hides who is ahead."""
    world = ends_with(world_of().steps(40, step_s=0.5), 1, 1, "checkpoint", 1.0)
    assert halted(ends_with(world, 2, 0, section, seconds).steps(10)) == []


@pytest.mark.parametrize("fed_last", [0, 1])
@pytest.mark.parametrize(("seconds", "halts"), [(110.0, []), (400.0, [("data", 300.0)])])
def test_who_waits_for_a_peers_loader_has_not_computed_where_nothing_tells_them_apart(
    fed_last: int, seconds: float, halts: list[tuple[str, float]]
) -> None:
    world = ends_with(world_of().steps(40, step_s=0.5), 1, 1, "checkpoint", 1.0).steps(5)
    world.open_step(data_s=[seconds if rank == fed_last else 0.01 for rank in (0, 1)])
    world.compute()
    world.close_step()
    for rank in world.steps(10).ranks:  # the script does not count its collectives
        rank.lines = [
            Said(said.mono, re.sub(rb', "collective_seq": \d+', b"", said.raw))
            for said in rank.lines
        ]
    assert [(row.section, row.threshold) for row in watch(world).halts] == halts


def test_who_never_comes_back_from_there_has_the_time_of_its_section() -> None:
    world = ends_with(world_of().steps(40, step_s=0.5), 1, 1, "checkpoint", 1.0)
    (found,) = watch(ends_with(world, 1, 0, "checkpoint", 1000.0)).halts
    assert (found.detector, found.section, found.threshold) == (
        "section_deadline",
        "checkpoint",
        600.0,
    )


def test_a_save_for_all_that_never_ends_is_named_with_its_own_limit() -> None:
    world = saves_alone(world_of().steps(40, step_s=1.0), "checkpoint", 1000.0)
    (found,) = watch(world).halts
    assert (found.detector, found.rank, found.section) == ("section_deadline", 0, "checkpoint")
    assert found.threshold == 600.0


def test_a_start_that_comes_late_ends_the_step_before_it_where_no_end_is_told() -> None:
    """So who waits for the evaluation is known to have ended what the one that evaluates has."""
    world = with_the_section_first(saves_alone(world_of().steps(40, step_s=2.0), "eval", 200.0))
    told = world.ranks[1].lines
    at = max(number for number, said in enumerate(told) if b'"step_start"' in said.raw)
    late = told.pop(at)
    upto = next(n for n, said in enumerate(told) if said.mono > late.mono + 0.5)
    told.insert(upto + 1, Said(told[upto].mono + 0.5, late.raw))
    assert halted(world) == []


@pytest.mark.parametrize(("seconds", "halts"), [(300.0, 0), (1000.0, 1)])
def test_who_has_saved_before_and_does_not_come_to_save_has_the_time_of_a_save(
    seconds: float, halts: int
) -> None:
    """Nobody knows whether it waits, in a collective that is not counted, or is waited for."""
    world = world_of().steps(40, step_s=1.0)
    world.pause("checkpoint", 10.0)
    saves_alone(world.steps(10, step_s=1.0), "checkpoint", seconds)
    found = watch(world).halts
    assert [(row.detector, row.rank, row.section, row.threshold) for row in found] == [
        ("section_deadline", None, "checkpoint", 600.0)
    ] * halts


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "step_s", [1.0, *(pytest.param(step_s, marks=pytest.mark.long) for step_s in (0.05, 61.0))]
)
def test_who_names_no_section_after_boot_trains_for_as_long_as_it_likes(
    ranks: int, step_s: float
) -> None:
    """Three lines in a script: steps and losses, nothing else."""
    world = World(order_of({}, world_size=ranks, steps=10_000, detectors=versions())).boot()
    for step in range(1, 31 + int(200 / step_s)):
        for rank in world.ranks:
            rank.step, rank.in_step = step, True
            rank.say("step_start")
            rank.spend(step_s)
            rank.say("progress", loss=3.0 + 0.01 * (step % 7))
            rank.say("step_end", tokens=512)
    assert halted(world) == []
    for rank in world.ranks:
        rank.spend(1200.0)
    assert halted(world) != []


@pytest.mark.parametrize("in_log", [False, True])
def test_who_waits_in_a_collective_for_the_one_that_saves_is_not_behind(in_log: bool) -> None:
    """All enter the checkpoint's section, rank 0 saves; it alone has logged before."""
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
    assert halted(world) == []


def numbers_late(world: World) -> World:
    """Tell each step's numbers right after its end."""
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


def test_numbers_that_come_after_the_end_of_their_step_count() -> None:
    sick = world_of(2000).steps(30, step_s=1.0, grad_norm=1.0)
    sick.steps(200, step_s=1.0, grad_norm=0.0)
    early = watch(sick).halted()
    assert [name for name, *_ in early] == ["gradients"]
    assert watch(numbers_late(sick)).halted() == early
    healthy = numbers_late(world_of(2000).steps(300, step_s=1.0))
    assert halted(healthy) == []


def numbers_later(world: World, ranks: int = 2) -> World:
    """Tell each step's numbers when the next one has begun."""
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


@pytest.mark.parametrize("style", ["section lines", "ends alone"])
def test_numbers_that_come_while_the_next_step_goes_on_count(style: str) -> None:
    def changed(world: World) -> World:
        ends = style == "section lines"
        return world if ends else rewritten(world, lambda raw: raw if b"_end" not in raw else None)

    sick = world_of(2000).steps(30, step_s=2.0).steps(200, step_s=2.0, grad_norm=0.0)
    found = watch(changed(numbers_later(sick)))
    assert [(halt.detector, halt.step) for halt in found.halts] == [("gradients", 33)]
    seen = watch(changed(numbers_later(world_of(2000).steps(300, step_s=2.0))))
    assert seen.halts == []
    assert {stream.loss for stream in seen.state.streams.values()} == {2.5}
    assert len(seen.state.steps.waiting) <= 1
    again = load_state(seen.state.run.order, dump_state(seen.state))
    assert again.steps.late == seen.state.steps.late == {0: 1, 1: 1}


def numbers_behind(world: World, by: int, after: str = "step_start") -> World:
    """Tell each step's numbers when later ones have begun, or have ended."""
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


@pytest.mark.parametrize(
    ("by", "after"), [(1, "step_end"), (2, "step_start"), (2, "step_end"), (9, "step_start")]
)
def test_numbers_that_come_some_steps_later_count(by: int, after: str) -> None:
    """A device may have several steps ahead of it when the loss of one is read."""
    sick = world_of(2000).steps(30, step_s=2.0).steps(60, step_s=2.0, grad_norm=0.0)
    found = watch(numbers_behind(sick, by, after))
    assert [(halt.detector, halt.step) for halt in found.halts] == [("gradients", 33)]
    seen = watch(numbers_behind(world_of(2000).steps(100, step_s=2.0), by, after))
    assert seen.halts == []
    assert seen.state.steps.last >= 100 - by - 1
    again = load_state(seen.state.run.order, dump_state(seen.state))
    assert again.steps == seen.state.steps
    assert {len(rows) for rows in again.steps.bare.values()} <= {by, by + 1}


def naming_nothing(raw: bytes) -> bytes | None:
    """A trainer that tells where a step begins and its numbers, and names no section."""
    line = json.loads(raw)
    if line["msg"] in ("section", "step_end"):
        return None
    line.pop("section_age_s", None)
    return json.dumps({**line, "section": None, "section_seq": 0}).encode()


@pytest.mark.parametrize("step_s", [2.0, 30.0])
@pytest.mark.parametrize("names", [False, True])
def test_numbers_end_their_step_where_nothing_else_does_though_the_next_goes_on(
    names: bool, step_s: float
) -> None:
    def changed(world: World) -> World:
        late = numbers_later(world)
        return with_progress_alone(late) if names else rewritten(late, naming_nothing)

    healthy = watch(changed(world_of(2000).steps(60, step_s=step_s)))
    assert healthy.halts == []
    assert snapshot(healthy.state).median_step_s == pytest.approx(step_s, rel=0.05)
    sick = world_of(2000).steps(30, step_s=step_s).steps(60, step_s=step_s, grad_norm=0.0)
    assert [halt.detector for halt in watch(changed(sick)).halts] == ["gradients"]


def numbers_now_and_then(raw: bytes) -> bytes | None:
    """Every step's start is told, and of every tenth its numbers."""
    line = json.loads(raw)
    if line["msg"] == "step_end" or (line["msg"] == "progress" and line["step"] % 10):
        return None
    return raw


@pytest.mark.parametrize(("step_s", "found"), [(2.0, set()), (5.0, {"slow"})])
def test_every_step_counts_though_only_its_start_is_told(step_s: float, found: set[str]) -> None:
    world = world_of(20_000).steps(400, step_s=2.0).steps(200, step_s=step_s)
    seen = watch(rewritten(world, numbers_now_and_then), interval_s=2.0)
    assert {row.detector for row in seen.findings} == found
    assert seen.named(Severity.HALT) == found


def numbers_together(world: World, every: int) -> World:
    """Tell the numbers of so many steps one after the other, at the end of the last of them."""
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


@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize(("step_s", "found"), [(2.0, set()), (5.0, {"slow"})])
def test_numbers_of_several_steps_that_are_told_together_took_no_moment_each(
    names: bool, step_s: float, found: set[str]
) -> None:
    """How long they took to write says nothing of steps, and it may double."""
    world = world_of(20_000).steps(400, step_s=2.0).steps(400, step_s=step_s)
    world = numbers_together(world, 10)
    changed = with_progress_alone(world) if names else rewritten(world, naming_nothing)
    seen = watch(changed, interval_s=1.0)
    assert {row.detector for row in seen.findings} == found
    assert seen.named(Severity.HALT) == found


def test_numbers_that_one_rank_tells_late_delay_no_step_of_one_that_tells_none() -> None:
    """A finding comes when it came before: rank 1 has nothing to wait for."""
    times = []
    for late in (False, True):
        world = world_of(2000).steps(30, step_s=2.0).steps(9, step_s=2.0, grad_norm=0.0)
        silent = world.ranks[1]
        kept = [said for said in silent.lines if b'"progress"' not in said.raw]
        silent.lines = [
            Said(said.mono, re.sub(rb'"seq": \d+', b'"seq": %d' % number, said.raw))
            for number, said in enumerate(kept, start=1)
        ]
        (halt,) = watch(numbers_later(world, ranks=1) if late else world).halts
        times.append((halt.detector, halt.step, round(halt.at - EPOCH)))
    assert times[0] == times[1]


def test_a_first_batch_may_take_as_long_as_a_first_step() -> None:
    for seconds, halts in ((850.0, 0), (1000.0, 1)):
        world = world_of()
        world.open_step(data_s=seconds)
        world.compute(step_s=1.0)
        world.close_step()
        assert min(1, len(halted(world.steps(5, step_s=1.0)))) == halts


def test_what_is_left_after_the_last_step_has_the_time_of_a_checkpoint() -> None:
    for seconds, halts in ((590.0, 0), (650.0, 1)):
        world = world_of(40).steps(40, step_s=1.0)
        for rank in world.ranks:
            rank.spend(seconds)
        assert len(halted(world.finish())) == halts


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


@pytest.mark.parametrize("left_in", [None, "eval"])
def test_who_wakes_after_the_one_that_evaluated_is_done_has_not_stood_meanwhile(
    left_in: str | None,
) -> None:
    assert halted(done_after_evaluating_alone(left_in, 5.0)) == []


def test_who_does_not_wake_after_that_one_is_done_has_the_time_of_a_checkpoint() -> None:
    found = halted(done_after_evaluating_alone(None, 700.0))
    assert found == [("section_deadline", 1, None)]


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("later_s", [0.3, 4.0, 9.0])
def test_ranks_that_fall_silent_together_corroborate_no_stall(later_s: float, stays: bool) -> None:
    """One was heard a little later: it is not silent yet when the other is. One that stays is."""
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
    found = halted(world.steps(10, step_s=2.4))
    assert [row[:2] for row in found[:1]] == ([("stall", 0)] if stays else [])


@pytest.mark.parametrize("waits_in", [None, "log", "data", "backward"])
@pytest.mark.parametrize(("section", "seconds"), [("checkpoint", 590.0), ("eval", 1750.0)])
def test_who_wakes_later_than_the_one_that_acted_for_all_has_not_stood_meanwhile(
    section: str, seconds: float, waits_in: str | None
) -> None:
    """It comes out of the barrier a moment after the other, whose next step has been read."""
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
    assert halted(world.steps(3, step_s=1.0)) == []


@pytest.mark.parametrize("hangs_in", [None, "log", "data", "backward"])
def test_who_does_not_wake_at_all_has_its_limit_from_then(hangs_in: str | None) -> None:
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
    (found,) = watch(world, interval_s=1.0).halts
    limit_s = 300.0 if hangs_in == "data" else 60.0
    assert (found.rank, found.section, found.threshold) == (1, hangs_in, limit_s)
    assert found.value == pytest.approx(limit_s, abs=2.0)


def waited_for_an_evaluation(seconds: float) -> tuple[World, float]:
    """Rank 0 evaluates while rank 1 waits in no section; half a second later their steps go on."""
    world = world_of().pause("checkpoint", 0.1).steps(40, step_s=0.5)
    acting = world.ranks[0]
    acting.enter("eval")
    acting.spend(seconds)
    acting.enter(None)
    world.meet()
    return world, world.mono + 0.5


def test_lines_that_come_late_after_an_evaluation_are_no_deadline_of_who_waited_for_it() -> None:
    """A disk that others share tells of the waiting rank a minute later: its peer is far ahead."""
    world, since = waited_for_an_evaluation(90.0)
    world.steps(200, step_s=0.5)
    late = world.ranks[1]
    late.lines = [
        Said(max(s.mono, since + 50.0), s.raw) if s.mono > since - 1.0 else s for s in late.lines
    ]
    assert halted(world) == []


def test_who_does_not_wake_where_nobody_waits_for_it_has_its_limit_from_then() -> None:
    world, back = waited_for_an_evaluation(90.0)
    runs_on, hanging = world.ranks
    for _ in range(200):
        runs_on.step += 1
        runs_on.say("step_start")
        runs_on.enter("backward")
        runs_on.spend(0.5)
        runs_on.enter(None)
        runs_on.say("step_end")
    hanging.spend(runs_on.mono - hanging.mono)
    (found,) = watch(world, interval_s=1.0).halts
    assert (found.detector, found.rank, found.section) == ("section_deadline", 1, None)
    assert found.at - EPOCH + T0 - back == pytest.approx(60.0, abs=3.0)


def one_evaluates_for_both() -> tuple[World, float]:
    """Both have evaluated before; now rank 0 does alone, for two minutes, and nothing counts it."""
    world = world_of().steps(40, step_s=0.5).pause("eval", 5.0).steps(20, step_s=0.5)
    world.ranks[0].enter("eval")
    world.ranks[0].spend(120.0)
    world.ranks[0].enter(None)
    return world, world.ranks[1].mono


@pytest.mark.parametrize("cut_after_s", [5.0, 20.0, 45.0])
def test_lines_of_who_waits_that_come_late_during_an_evaluation_are_no_deadline(
    cut_after_s: float,
) -> None:
    """Only its silence tells it from one that waits: it has its limit from when it was heard."""
    world, since = one_evaluates_for_both()
    world.meet()
    world.steps(60, step_s=0.5)
    cut, late = since + cut_after_s, world.ranks[1]
    late.lines = [Said(max(s.mono, cut + 58.0), s.raw) if s.mono > cut else s for s in late.lines]
    assert halted(world) == []


@pytest.mark.parametrize(("section", "seconds"), [("eval", 20.0), ("checkpoint", 40.0)])
def test_lines_that_come_late_while_every_fifth_step_is_evaluated_are_no_deadline(
    section: str, seconds: float
) -> None:
    """The last evaluation of the peer is of a later step, and one that waited had waited before."""
    world = world_of().steps(60, step_s=0.5)
    cut, late = world.mono + seconds - 1.0, world.ranks[1]
    for _ in range(6):
        world.ranks[0].enter(section)
        world.ranks[0].spend(seconds)
        world.ranks[0].enter(None)
        world.meet()
        world.steps(5, step_s=0.5)
    late.lines = [Said(max(s.mono, cut + 50.0), s.raw) if s.mono > cut else s for s in late.lines]
    assert halted(world) == []


@pytest.mark.parametrize("loads", [False, True], ids=["it saved", "it waited for its loader"])
def test_lines_that_come_late_after_a_long_pause_are_no_deadline_where_a_short_one_follows(
    loads: bool,
) -> None:
    """What rank 0 did last is of a step of which rank 1 is yet to be heard."""
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
    assert halted(world) == []


def restarted_during_an_evaluation(*, comes_back: bool) -> tuple[World, float]:
    """Rank 0 evaluates, rank 1 waits; all start anew at their step. Rank 1 is read 20 s late."""
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


def test_who_waited_for_an_evaluation_that_a_restart_has_ended_may_be_read_later() -> None:
    assert halted(restarted_during_an_evaluation(comes_back=True)[0]) == []


def test_who_does_not_come_back_from_such_a_restart_has_its_limit_from_then() -> None:
    world, back = restarted_during_an_evaluation(comes_back=False)
    found = watch(world, interval_s=1.0).halts[0]
    assert found.rank == 1
    assert found.at - EPOCH + T0 - back == pytest.approx(60.0, abs=5.0)


@pytest.mark.parametrize(
    ("away_s", "seen", "found"),
    [(1700.0, True, []), (2500.0, True, [1800.0]), (1700.0, False, [900.0])],
    ids=["in time", "too late", "the same process"],
)
def test_who_is_started_anew_in_place_attaches_after_it_has_loaded(
    away_s: float, seen: bool, found: list[float]
) -> None:
    """Its first start had half an hour for that as well."""
    world = world_of(entry=USERS).steps(60, step_s=1.0)
    left, rows = world.mono, []
    for rank in world.ranks:
        rank.mono += away_s
        rank.boot, rank.seq, rank.section_seq = f"again{rank.rank}", 0, 0
        rank.collective_seq, rank.section = 0, "boot"
        rows.append({"rank": rank.rank, "pid": 300 + rank.rank, "state": "alive"})
    if seen:
        world.probes.append((left + 3.0, {"ranks": rows}))
    halts = watch(world.boot().steps(40, step_s=1.0), interval_s=1.0).halts
    assert [halt.at - EPOCH + T0 - left for halt in halts] == pytest.approx(found, abs=5.0)


@pytest.mark.parametrize("spoke_s", [0.6, 20.0, 90.0])
def test_who_falls_silent_for_good_during_an_evaluation_is_lost_a_minute_later(
    spoke_s: float,
) -> None:
    world, since = one_evaluates_for_both()
    silent = world.ranks[1]
    silent.spend(spoke_s)
    heard = silent.lines[-1].mono
    silent.mono = world.mono
    silent.stopped = True
    world.ranks[0].spend(60.0)
    found = watch(world, interval_s=1.0).halts
    assert {row.rank for row in found} == {1}
    assert "alive_lost" in {row.detector for row in found}
    assert heard >= since
    assert found[0].at - EPOCH + T0 - heard == pytest.approx(61.0, abs=1.5)


def test_who_waited_for_an_evaluation_may_wake_later_where_not_every_step_is_told() -> None:
    """Of the steps in between only `alive` lines tell, and those come now and then."""
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
    assert halted(world.steps(1, step_s=1.0)) == []


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


@pytest.mark.parametrize("section", [None, "rollout"])
def test_time_that_every_step_spends_in_no_section_is_its_way(section: str | None) -> None:
    assert watch(with_episodes(section, 90.0, 4), interval_s=1.0).halted() == []


def test_a_rank_that_stands_there_for_far_longer_is_halted() -> None:
    world = with_episodes("rollout", 25.0, 6)
    for rank in world.ranks:
        rank.step, rank.in_step = rank.step + 1, True
        rank.say("step_start")
        rank.enter("rollout")
        rank.spend(25.0)
    world.ranks[1].enter("backward")
    world.meet()
    for rank in world.ranks:
        rank.spend(200.0)
    (halt,) = watch(world, interval_s=1.0).halts
    assert (halt.detector, halt.rank, halt.section) == ("section_deadline", 0, "rollout")
    assert halt.threshold == pytest.approx(200.0, rel=0.05)


def test_what_lies_between_boot_and_the_first_step_has_the_time_of_a_first_step() -> None:
    world = world_of()
    for rank in world.ranks:
        rank.spend(800.0)
    assert watch(world.steps(3, step_s=10.0), interval_s=1.0).halted() == []
    world.pause("checkpoint", 0.1).pause("eval", 0.1)
    for rank in world.ranks:
        rank.enter(None)
        rank.spend(200.0)
    assert halted(world)[0][0] == "section_deadline"


def test_the_second_step_may_take_what_a_first_one_may() -> None:
    assert watch(world_of().steps(2, step_s=400.0), interval_s=1.0).halted() == []
    world = world_of().steps(1, step_s=400.0)
    world.open_step()
    world.hang(0, "forward", 1000.0)
    (halt,) = watch(world, interval_s=1.0).halts
    assert (halt.detector, halt.threshold) == ("stall", 900.0)


@pytest.mark.parametrize(("seconds", "halts"), [(290.0, 0), (310.0, 1)])
def test_what_comes_for_the_first_time_between_two_steps_has_the_early_limit(
    seconds: float, halts: int
) -> None:
    """Samples are drawn, a model is exported: nobody knows yet whether each step does so."""
    world = world_of().steps(1, step_s=2.0).pause("sampling", seconds)
    assert len(halted(world.steps(5, step_s=2.0))) == halts


@pytest.mark.parametrize(("step_s", "halts"), [(400.0, 0), (700.0, 0), (1000.0, 1)])
def test_the_ends_of_steps_alone_tell_how_long_they_take(step_s: float, halts: int) -> None:
    """A trainer that writes one line a step: the second may take what a first one may."""
    world = world_of()
    for seconds in (400.0, step_s, 400.0, 400.0):
        for rank in world.ranks:
            rank.spend(seconds)
            rank.step += 1
            rank.say("step_end")
    found = halted(world)
    assert [row[0] for row in found] == ["section_deadline"] * halts


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


@pytest.mark.parametrize(("seconds", "halts"), [(100.0, 0), (305.0, 1)])
def test_a_loader_that_stalls_in_a_step_that_names_no_data_has_the_early_limit(
    seconds: float, halts: int
) -> None:
    """Evaluations and checkpoints have their names, and nothing but steps lies between them."""
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
    assert len(watch(world, interval_s=1.0).halts) == halts


def test_so_has_one_of_a_script_that_names_its_computing() -> None:
    world = world_of(entry=USERS).steps(100, step_s=4.0)
    assert halted(world.pause(None, 295.0).steps(5, step_s=4.0)) == []
    assert halted(world.pause(None, 305.0))[0][0] == "section_deadline"


@pytest.mark.parametrize("again", [False, True], ids=["throughout", "restarted"])
@pytest.mark.parametrize(
    ("pauses", "limit_s"),
    [((), 300.0), (("eval",), 300.0), (("checkpoint",), 300.0), (("eval", "checkpoint"), 60.0)],
)
def test_a_first_evaluation_or_checkpoint_that_nobody_names_has_the_early_limit(
    pauses: tuple[str, ...], limit_s: float, again: bool
) -> None:
    """It comes at step 100, within the step: none of those before has taken as long."""
    for seconds, due in ((limit_s - 5.0, []), (limit_s + 5.0, [limit_s])):
        world = names_only_steps(*pauses, again=again)
        for rank in world.ranks:
            rank.spend(seconds)
            rank.say("step_end")
        found = watch(world, interval_s=1.0).halts
        assert [row.threshold for row in found] == due
        assert {row.detector for row in found} <= {"section_deadline"}


def test_a_plan_that_says_how_long_a_step_takes_gives_an_unnamed_evaluation_no_more() -> None:
    order = order_of({"stall": {"halt_s": 90.0}}, steps=400, detectors=versions())
    world = World(order, alive_every_s=5.0).boot().steps(40, step_s=0.5)
    for rank in world.ranks:
        rank.step += 1
        rank.say("step_start")
        rank.spend(95.0)
    (halt,) = watch(world, interval_s=1.0).halts
    assert halt.threshold == 90.0


def test_who_said_done_before_the_others_is_who_they_wait_for() -> None:
    world = world_of().steps(40)
    world.ranks[1].say("done")
    world.ranks[1].stopped = True
    first = world.ranks[0]
    first.step, first.in_step = first.step + 1, True
    first.say("step_start")
    first.enter("backward")
    first.spend(100.0)
    (halt,) = watch(world, interval_s=1.0).halts
    assert (halt.detector, halt.rank, halt.section) == ("stall", 1, None)
    assert "rank 1 was done after step 40, and rank 0 waits for it" in halt.text


def plays_in_rounds(section: str | None, last_s: float) -> World:
    """An agent plays or generates for 100 s, then trains for 40 steps on it, and so on."""
    world = world_of(entry=USERS).pause("eval", 0.1).pause("checkpoint", 0.1).pause("data", 1.5)
    for _ in range(3):
        world.pause(section, 100.0).steps(40)
    return world.pause(section, last_s).steps(2)


@pytest.mark.parametrize("section", ["rollout", None])
def test_what_takes_long_once_in_many_steps_is_no_hang(section: str | None) -> None:
    """Most steps spend nothing there, so none of it is usual."""
    assert halted(plays_in_rounds(section, 200.0)) == []


@pytest.mark.parametrize("section", ["rollout", None])
def test_one_that_lasts_longer_than_any_of_it_is(section: str | None) -> None:
    assert halted(plays_in_rounds(section, 320.0)) == [("section_deadline", None, section)]


def plays_now_and_then(slower_from: int = 10**9, slower_x: float = 1.0) -> World:
    """An agent plays for 40 s, then trains for one to three steps of 2 s on it, and so on."""
    world, dice = world_of(steps=500, entry=USERS), random.Random(0)
    while world.ranks[0].step < 420:
        times = slower_x if world.ranks[0].step >= slower_from else 1.0
        world.pause("rollout", 40.0 * times * dice.uniform(0.8, 1.25))
        world.steps(dice.randint(1, 3), step_s=2.0 * times)
    return world


def test_steps_of_two_lengths_about_as_many_of_each_are_not_slow() -> None:
    """Their median is now the one, now the other."""
    assert halted(plays_now_and_then()) == []


def test_where_all_of_them_take_longer_they_are() -> None:
    assert halted(plays_now_and_then(300, 2.0)) == [("slow", None, None)]
