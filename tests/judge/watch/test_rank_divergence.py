"""D6: the culprit is the rank behind."""

from typing import Any

import pytest

from gonogo.contract.tick import Tick
from gonogo.judge.watch import fold, start
from gonogo.judge.watch.rank_divergence import name_culprit
from gonogo.judge.watch.view import View
from tests.judge.watch.streams import EPOCH, T0, Rank, order_of

Position = tuple[int, int, int]


def view_of(positions: list[Position], **probes: Any) -> View:
    """Ranks at (step, section_seq, collective_seq), and what probes tell of them."""
    state = start(order_of(world_size=len(positions)))
    beats = {}
    for number, (step, section_seq, collective_seq) in enumerate(positions):
        rank = Rank(number, mono=T0, alive_every_s=1)
        rank.step, rank.section_seq, rank.section = step, section_seq, "backward"
        rank.say("alive", collective_seq=collective_seq)
        beats[number] = [line.raw for line in rank.lines]
    tick = Tick.model_validate({"n": 1, "mono": T0, "ts": EPOCH, **probes})
    state, _ = fold(state, tick, beats)
    return state.view()


@pytest.mark.parametrize(
    ("positions", "culprit"),
    [
        ([(5, 9, 9), (4, 9, 9)], 1),
        ([(4, 8, 9), (4, 9, 1)], 0),
        ([(4, 9, 3), (4, 9, 2)], 1),
        ([(4, 9, 3), (4, 9, 3)], 0),
        ([(4, 9, 3), (4, 9, 3), (4, 9, 2), (5, 0, 0)], 2),
    ],
    ids=["step", "section", "collective", "tie", "four ranks"],
)
def test_the_lowest_position_is_the_culprit(positions: list[Position], culprit: int) -> None:
    view = view_of(positions)
    found = name_culprit(view, view.active())
    assert found is not None
    assert found.rank == culprit


def test_on_a_tie_the_rank_that_does_not_wait_is_the_culprit() -> None:
    stacks = [{"rank": 0, "waiting": True}, {"rank": 1, "waiting": False}]
    view = view_of([(4, 9, 3), (4, 9, 3)], stacks=stacks)
    found = name_culprit(view, view.active())
    assert found is not None
    assert found.rank == 1


def test_a_stack_outside_a_collective_does_not_beat_the_position() -> None:
    stacks = [{"rank": 0, "waiting": False}, {"rank": 1, "waiting": True}]
    view = view_of([(4, 9, 3), (4, 9, 2)], stacks=stacks)
    found = name_culprit(view, view.active())
    assert found is not None
    assert found.rank == 1


@pytest.mark.parametrize("state", ["stopped", "uninterruptible"])
def test_a_held_rank_is_the_culprit_by_its_state(state: str) -> None:
    view = view_of([(4, 9, 3), (4, 9, 4)], ranks=[{"rank": 1, "state": state}])
    found = name_culprit(view, view.active())
    assert found is not None
    assert found.rank == 1


def test_nobody_is_named_among_nobody() -> None:
    assert name_culprit(view_of([(1, 1, 1)]), []) is None
