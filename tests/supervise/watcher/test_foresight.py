"""A round is taken before a deadline that would name nobody, and before no other."""

from typing import Any

import pytest

from gonogo.contract.tick import Tick
from gonogo.supervise.watcher.foresight import FORESIGHT_S, halt_ahead
from gonogo.watch import WatchState, fold, look, start
from tests.watch.streams import EPOCH, T0, Rank, order_of


def standing(
    world_size: int = 2, *, halt_s: float = 60.0, speaks_until: float = 53.0
) -> WatchState:
    """Ranks that name no section after their start, and stand since the end of a step."""
    watch = {
        "alive_lost": {"suspect_s": 2.0, "halt_s": 5.0},
        "section_deadline": {"out_of_section": {"halt_s": halt_s}},
        "stall": {"min_steps": 1, "halt_s": halt_s},
    }
    state = start(order_of(watch, world_size=world_size, steps=400))
    ranks = [Rank(number, mono=T0 - 6.0, alive_every_s=1) for number in range(world_size)]
    for rank in ranks:
        rank.say("boot")
        rank.section, rank.section_seq = None, 1
        for step in range(1, 13):
            rank.mono += 0.5
            rank.step = step
            for msg in ("step_start", "progress", "step_end"):
                rank.say(msg)
    seconds = 0.0
    while True:
        beats = {rank.rank: [line.raw for line in rank.lines] for rank in ranks}
        state, findings = fold(state, tick_at(seconds, 3), beats)
        assert {row.detector for row in findings} <= {"identity"}
        if seconds >= speaks_until:
            return state
        for rank in ranks:
            rank.lines.clear()
            rank.mono += 0.5
            rank.say("alive")
        seconds += 0.5


def tick_at(seconds: float, n: int = 4, **told: Any) -> Tick:
    return Tick(n=n, mono=T0 + seconds, ts=EPOCH + seconds, **told)


def test_a_halt_that_names_nobody_is_foreseen_and_finds_nothing_yet() -> None:
    state = standing()
    ahead = halt_ahead(state, tick_at(53.0))
    assert ahead is not None
    assert (ahead.detector, ahead.rank) == ("section_deadline", None)
    assert ahead.value == pytest.approx(53.0 + FORESIGHT_S)
    assert look(state, tick_at(53.0)) == []
    assert state.streams[0].heard_mono == T0 + 53.0


@pytest.mark.parametrize(
    ("seconds", "n"), [(51.0, 4), (53.0, 5)], ids=["too early", "between two looks"]
)
def test_nothing_is_foreseen_before_its_time(seconds: float, n: int) -> None:
    assert halt_ahead(standing(speaks_until=seconds), tick_at(seconds, n)) is None


def test_a_rank_alone_has_nobody_to_be_told_apart_from() -> None:
    assert halt_ahead(standing(1), tick_at(53.0)) is None


def test_a_halt_that_names_a_rank_needs_no_round() -> None:
    state = standing()
    told = {"behind": [1], "asked_mono": T0 + 1.0, "text": "rank 1 did not"}
    state, _ = fold(state, tick_at(53.0, observations={"collectives": told}), {})
    assert halt_ahead(state, tick_at(53.0)) is None


def test_a_limit_of_seconds_is_foreseen_once_half_of_it_has_passed() -> None:
    for seconds, foreseen in ((2.5, False), (3.5, True)):
        state = standing(halt_s=6.0, speaks_until=seconds)
        assert (halt_ahead(state, tick_at(seconds)) is not None) is foreseen
