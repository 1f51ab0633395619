"""A neighbour's load, lines that do not come, standstills, time in no section: nobody is halted."""

import random
from dataclasses import replace
from typing import Any

import pytest

from gonogo.contract.order import Order
from lab import STANDARD, Part, Tally, simulate_part
from lab.hosts import Load, cut_at
from lab.ranks import Rank, Wall
from lab.rates import NOISES
from lab.variations import Reporting
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


def cuts(order: Order) -> set[frozenset[int]]:
    dice = random.Random(2)
    return {cut_at(5.0, order, range(4), STANDARD, dice).ranks for _ in range(60)}


def test_a_cut_is_of_all_ranks_or_of_the_node_without_the_watcher() -> None:
    whole = frozenset(range(4))
    assert cuts(order_of(world_size=4)) == {whole}
    assert cuts(order_of(world_size=4, nodes=2)) == {whole, frozenset({2, 3})}


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
