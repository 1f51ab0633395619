"""A neighbour's load, lines that do not come, standstills, time in no section: nobody is halted."""

import random
from dataclasses import replace
from typing import Any

import pytest

from gonogo.contract.order import Order
from gonogo.contract.tick import ProcessState
from lab import STANDARD, Part, Tally, simulate_part
from lab.hosts import Cut, Load, cut_at
from lab.ranks import Rank, Wall
from lab.rates import NOISES
from lab.variations import Reporting
from lab.watcher import Watcher
from tests.watch.streams import order_of

SHAPES: dict[str, dict[str, Any]] = {
    "load": {"load_rate": 6.0},
    "outside": {"outside_share": 1.0},
    "cuts": {"cut_rate": 3.0, "nodes_share": 0.7},
    "standstills": {"standstill_rate": 3.0},
}


def of_shape(monkeypatch: pytest.MonkeyPatch, shape: str, **part: Any) -> Tally:
    monkeypatch.setitem(NOISES, shape, replace(STANDARD, **SHAPES[shape]))
    return simulate_part(Part(seed=f"around/{shape}", noise=shape, **part))


@pytest.mark.parametrize("shape", SHAPES)
def test_what_happens_around_a_run_halts_nobody(
    monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    assert of_shape(monkeypatch, shape, step_s=60.0, ranks=2, hours=2.0).halts == ()


def loaded(seconds: float, slower_x: float) -> Load:
    noise = replace(STANDARD, load_rate=0.0)
    return Load(noise, random.Random(1), until=100.0 + seconds, slower_x=slower_x)


@pytest.mark.parametrize(
    ("seconds", "slower_x", "step_s", "took_s"),
    [
        (0.0, 2.0, 10.0, 10.0),
        (60.0, 2.0, 10.0, 20.0),
        (8.0, 2.0, 10.0, 14.0),
        (20.0, 2.0, 10.0, 20.0),
        (60.0, 1.5, 10.0, 15.0),
    ],
    ids=["none", "all of it", "its beginning", "just all of it", "a light one"],
)
def test_a_step_takes_longer_for_as_long_as_a_load_lasts(
    seconds: float, slower_x: float, step_s: float, took_s: float
) -> None:
    assert loaded(seconds, slower_x).slowed(step_s, 100.0) == pytest.approx(took_s)


def test_a_load_begins_by_its_rate_and_ends() -> None:
    noise = replace(STANDARD, load_rate=3600.0, short_load_share=0.0)
    load = Load(noise, random.Random(1))
    assert load.slowed(1.0, 50.0) > 1.05
    assert 60.0 <= load.until <= 290.0
    load.noise = replace(noise, load_rate=0.0)
    assert load.slowed(1.0, load.until) == 1.0


def cuts(order: Order) -> set[frozenset[int]]:
    dice = random.Random(2)
    return {cut_at(5.0, order, range(4), STANDARD, dice).ranks for _ in range(60)}


def test_a_cut_is_of_all_ranks_or_of_the_node_without_the_watcher() -> None:
    whole = frozenset(range(4))
    assert cuts(order_of(world_size=4)) == {whole}
    assert cuts(order_of(world_size=4, nodes=2)) == {whole, frozenset({2, 3})}


def test_of_a_cut_nodes_processes_nothing_is_known() -> None:
    cut = Cut(since=5.0, until=9.0, ranks=frozenset({1}), node=True)
    assert [cut.off(1, now) for now in (4.0, 5.0, 8.0, 9.0)] == [False, True, True, False]
    assert (cut.off(0, 6.0), cut.unknown(1, 6.0)) == (False, True)
    assert not replace(cut, node=False).unknown(1, 6.0)


def test_how_a_rank_ended_is_read_no_sooner_than_its_lines() -> None:
    wall, noise = Wall(), replace(STANDARD, messy_share=0.0)
    rank = Rank(0, now=0.0, offset=0.0, wall=wall)
    order, dice = order_of(world_size=1), random.Random(1)
    watcher = Watcher(order, [rank], noise=noise, wall=wall, dice=dice, now=0.0)
    watcher._cut = Cut(since=0.0, until=100.0, ranks=frozenset({0}))
    watcher.probe(5.0, 0, ProcessState.UNINTERRUPTIBLE)
    watcher.probe(10.0, 0, ProcessState.DEAD, code=0)
    assert [at for at, _ in watcher._probes] == [5.0, 100.0]


def test_an_end_that_is_still_to_be_read_waits_for_a_cut_that_begins_before() -> None:
    noise = replace(STANDARD, cut_s=(60.0, 60.0), long_cut_share=0.0)
    order, dice, wall = order_of(world_size=1), random.Random(1), Wall()
    rank = Rank(0, now=0.0, offset=0.0, wall=wall)
    watcher = Watcher(order, [rank], noise=noise, wall=wall, dice=dice, now=0.0)
    watcher.probe(5.0, 0, ProcessState.UNINTERRUPTIBLE)
    watcher.probe(10.0, 0, ProcessState.DEAD, code=0)
    watcher._cut_off()
    assert [at for at, _ in watcher._probes] == [5.0, 60.0]


def test_lines_come_until_the_first_was_read() -> None:
    """Preflight has just read and written where they lie."""
    noise = replace(STANDARD, cut_rate=1e6, late_tick_rate=0.0, asleep_rate=0.0, messy_share=0.0)
    order, dice, wall = order_of(world_size=1), random.Random(1), Wall()
    rank = Rank(0, now=0.0, offset=0.0, wall=wall)
    watcher = Watcher(order, [rank], noise=noise, wall=wall, dice=dice, now=0.0)
    watcher.look_until(5.0)
    assert watcher._cut.until == 0.0
    rank.now = 5.0
    rank.say("boot")
    watcher.look_until(8.0)
    assert watcher._cut.until > 5.0


def test_a_rank_writes_no_line_that_its_trainer_does_not_tell() -> None:
    reporting = Reporting(
        messages_left_out=frozenset({"step_end"}),
        fields_left_out=frozenset({"lr"}),
        sections=False,
        every_steps=10,
    )
    rank = Rank(0, now=50.0, offset=0.0, wall=Wall(), reporting=reporting)
    for rank.step in (9, 10):
        for msg in ("step_start", "progress", "step_end"):
            rank.say(msg, lr=0.1, loss=2.0)
    lines = [line for _, line in rank.lines]
    assert [(line.step, line.msg, line.seq) for line in lines] == [
        (10, "step_start", 1),
        (10, "progress", 2),
    ]
    assert {(line.section, line.section_seq, line.lr, line.loss) for line in lines} == {
        (None, 0, None, 2.0)
    }


def test_a_clock_of_its_own_counts_from_the_start_of_each_process() -> None:
    rank = Rank(0, now=50.0, offset=7.0, wall=Wall(), reporting=Reporting(own_clock=True))
    rank.say("boot")
    rank.now = 500.0
    rank.begin("again", first_seq=1)
    rank.say("boot")
    assert [line.mono for _, line in rank.lines] == [1.0, 1.0]
