"""A neighbour's load, lines that do not come, standstills, time in no section: nobody is halted."""

import random
from dataclasses import replace
from typing import Any

import pytest

from gonogo.contract.order import Order
from lab.noise import STANDARD, Reporting
from lab.ranks import Rank, Wall
from lab.run import Part, simulate_part
from lab.watcher import cut_at
from tests.watch.streams import order_of

SHAPES: dict[str, dict[str, Any]] = {
    "load": {"load_rate": 6.0},
    "outside": {"outside_share": 1.0},
    "cuts": {"cut_rate": 3.0, "nodes_share": 0.7},
    "standstills": {"standstill_rate": 3.0},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_happens_around_a_run_halts_nobody(shape: str) -> None:
    noise = replace(STANDARD, **SHAPES[shape])
    part = Part(seed=f"around/{shape}", noise=noise, step_s=60.0, ranks=2, hours=2.0)
    assert simulate_part(part).halts == ()


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
