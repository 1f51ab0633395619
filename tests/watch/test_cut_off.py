"""What nobody hears: a node, or all ranks at once. Silence is no sin; to stand is."""

import pytest

from gonogo.watch import dump_state, load_state
from gonogo.watch.registry import versions
from tests.watch.streams import EPOCH, T0, Said, World, order_of, watch


def world_of(step_s: float) -> World:
    """Two ranks, each on a node of its own, that have gone on for a while."""
    order = order_of({}, steps=2000, detectors=versions(), nodes=2)
    return World(order, alive_every_s=5.0).boot().steps(40, step_s=step_s)


def cut(world: World, since: float, until: float) -> None:
    """Nothing of node 1 arrives meanwhile: its follower is not heard, its lines come later."""
    row = {"rank": 1, "pid": 101}
    world.probes.append((since + 10.0, {"ranks": [{**row, "state": "unknown"}]}))
    world.probes.append((until, {"ranks": [{**row, "state": "alive"}]}))
    rank = world.ranks[1]
    rank.lines = [
        Said(until, said.raw) if since < said.mono < until else said for said in rank.lines
    ]


@pytest.mark.parametrize(("step_s", "cut_s"), [(1.0, 100.0), (8.0, 40.0), (25.0, 100.0)])
def test_a_run_that_goes_on_behind_a_cut_is_not_halted(step_s: float, cut_s: float) -> None:
    world = world_of(step_s)
    since = world.mono + 0.5 * step_s
    world.steps(int(1.5 * cut_s / step_s) + 3, step_s=step_s)
    cut(world, since, since + cut_s)
    assert watch(world, interval_s=1.0).halted() == []


@pytest.mark.parametrize("section", ["checkpoint", "eval"])
def test_who_was_heard_last_in_a_long_section_has_its_time(section: str) -> None:
    world = world_of(1.0)
    since = world.mono
    for rank, seconds in zip(world.ranks, (20.0, 300.0), strict=True):
        rank.enter(section)
        rank.spend(seconds)
        rank.enter(None)
    world.meet()
    world.steps(3)
    cut(world, since + 1.0, since + 305.0)
    assert watch(world, interval_s=1.0).halted() == []


@pytest.mark.parametrize("step_s", [1.0, 8.0])
def test_a_run_that_stands_behind_a_cut_is_halted_and_nobody_is_named(step_s: float) -> None:
    world = world_of(step_s)
    since = world.mono
    world.open_step()
    world.hang(1, "backward", 120.0)
    cut(world, since + 3.0, since + 1000.0)
    found = watch(world, interval_s=1.0)
    assert found.halted()[0][:2] == ("stall", None)
    assert "nothing is heard of node 1" in found.halts[0].text


def test_a_rank_that_is_seen_is_silent_as_before() -> None:
    world = world_of(25.0)
    since = world.mono + 12.0
    world.steps(8, step_s=25.0)
    rank = world.ranks[1]
    rank.lines = [said for said in rank.lines if said.mono < since]
    assert watch(world, interval_s=1.0).halted()[0][:2] == ("alive_lost", 1)


def silent_in_backward(seconds: float, times: int = 1) -> World:
    """In one step no rank can speak for so long, and again: its host, or its disk, stands still."""
    world = World(order_of({}, steps=2000, detectors=versions()), alive_every_s=5.0)
    world.boot().steps(40, step_s=1.0).open_step()
    for rank in world.ranks:
        rank.enter("backward")
        rank.spend(2.0)
    for _ in range(times):
        for rank in world.ranks:
            rank.mono += seconds
            rank.spend(1.0)
    return world


def test_the_first_line_after_a_silence_of_all_ranks_halts_nobody() -> None:
    world = silent_in_backward(100.0)
    world.close_step()
    assert watch(world.steps(5), interval_s=1.0).halted() == []


def test_what_stands_after_a_silence_of_all_ranks_has_its_usual_time() -> None:
    world = silent_in_backward(100.0)
    since = world.mono
    for rank in world.ranks:
        rank.spend(100.0)
    (halt,) = watch(world, interval_s=1.0).halts
    assert (halt.detector, halt.rank) == ("stall", None)
    assert 50.0 < halt.at - (EPOCH + since - T0) < 65.0


def test_a_run_that_only_speaks_now_and_then_is_halted_in_the_end() -> None:
    found = watch(silent_in_backward(40.0, times=30), interval_s=1.0)
    assert [row.detector for row in found.halts] == ["stall"]


@pytest.mark.parametrize(("late_s", "halted"), [(3.0, []), (8.0, ["process_death"])])
def test_last_lines_may_come_after_the_word_that_a_rank_of_another_node_has_ended(
    late_s: float, halted: list[str]
) -> None:
    order = order_of({}, steps=40, detectors=versions(), nodes=2)
    world = World(order, alive_every_s=5.0).boot().steps(39, step_s=1.0)
    since = world.mono
    world.steps(1, step_s=1.0).finish()
    rank = world.ranks[1]
    rank.lines = [Said(s.mono + (late_s if s.mono > since else 0.0), s.raw) for s in rank.lines]
    rank.mono += 10.0
    assert [row.detector for row in watch(world).halts] == halted


def test_a_launcher_that_was_ended_is_named_with_its_node() -> None:
    world = world_of(1.0)
    node = {"node": 1, "state": "heard", "host": "node2"}
    world.probes.append((world.mono, {"nodes": [node]}))
    agent = {"pid": 99, "state": "dead", "signal": 9, "node": 1}
    world.probes.append((world.mono + 1.0, {"agent": agent}))
    world.steps(3)
    text = watch(world, interval_s=1.0).halts[0].text
    assert text == "the torchrun agent (node 1, host node2) was ended by SIGKILL"


@pytest.mark.parametrize("told", [True, False])
def test_who_is_named_is_so_with_its_node_and_that_ones_host(told: bool) -> None:
    """A node's number is no name: the host of node 1 may well be called node2."""
    world = world_of(1.0)
    if told:
        row = {"node": 1, "state": "heard", "host": "node2"}
        world.probes.append((world.mono, {"nodes": [row]}))
    world.open_step()
    world.hang(1, "backward", 120.0)
    seen = watch(world, interval_s=1.0)
    restored = load_state(world.order, dump_state(seen.state))
    assert restored.view.hosts == ({1: "node2"} if told else {})
    text = seen.halts[0].text
    assert text.endswith("(rank 1 is on node 1, host node2)" if told else "(rank 1 is on node 1)")
