"""Tests of the timeline of a run."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.order import Order
from gonogo.contract.records import Tick
from gonogo.timeline.timeline import Timeline
from tests.watch.streams import World, order_of

LINES = {
    rank.rank: [said.raw for said in rank.lines] for rank in World(order_of()).boot().steps(6).ranks
}
"""Rank → its lines."""

TICK = Tick(n=1, mono=100.0, ts=100.0)


def timeline(order: Order, *reads: tuple[int, list[bytes]]) -> tuple[Timeline, list[Heartbeat]]:
    """Return what reads of ranks' files come to, all received at once, and the lines that count."""
    found, counted = Timeline(), list[Heartbeat]()
    for rank, lines in reads:
        beats = found.parse(rank, lines, 100.0)
        counted += [line for line, _, _ in found.advance(order, rank, beats, TICK)]
    return found, counted


@settings(max_examples=25)
@given(st.lists(st.integers(0, 1), max_size=40), st.integers(1, 9))
def test_how_the_lines_of_ranks_interleave_changes_nothing(turns: list[int], size: int) -> None:
    """Each rank's file is read in pieces, now one rank's and now another's."""
    order, left = order_of(), {rank: list(lines) for rank, lines in LINES.items()}
    reads = [*turns, *(rank for rank in LINES for _ in range(200))]
    pieces = list[tuple[int, list[bytes]]]()
    for rank in reads:
        pieces.append((rank, left[rank][:size]))
        del left[rank][:size]
    whole, _ = timeline(order, *LINES.items())
    found, _ = timeline(order, *pieces)
    assert (found.streams, found.lines) == (whole.streams, whole.lines)


def test_repeated_torn_and_foreign_lines_are_counted_and_move_nothing() -> None:
    lines = LINES[0]
    whole, counted = timeline(order_of(), (0, lines))
    noisy = [*lines, lines[3], b"{torn", LINES[1][0], b"  "]
    found, again = timeline(order_of(), (0, noisy))
    assert again == counted
    assert found.streams == whole.streams
    assert found.unreadable[0].count == 2
    assert found.lines[0].distinct() == whole.lines[0].distinct()


@pytest.mark.parametrize(
    ("told", "counts"),
    [
        ({}, True), ({"run": "run_1", "attempt": 1}, True), ({"run": "run_2"}, False),
        ({"run": "run_1", "attempt": 2}, False),
    ],
)  # fmt: skip
def test_a_process_of_another_run_is_not_obeyed(told: dict[str, object], counts: bool) -> None:
    row = {"ts": 1.0, "mono": 1.0, "pid": 1, "rank": 0, "boot": "b", "seq": 1, "step": 0}
    boot = json.dumps({**row, "msg": "boot", **told}).encode()
    found, counted = timeline(order_of(), (0, [boot]))
    assert (len(counted), 0 in found.streams) == (counts, counts)


def test_eighty_characters_of_an_unreadable_line_are_kept() -> None:
    found, _ = timeline(order_of(), (0, [b"x" * 200, b"y"]))
    assert (found.unreadable[0].first, found.unreadable[0].count) == ("x" * 80, 2)
