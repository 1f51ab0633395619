"""A round is taken before a deadline that would name nobody, and before no other."""

from typing import Any

import pytest

from gonogo.contract.finding import Severity
from gonogo.contract.tick import StackProbe, Tick
from gonogo.supervise.watcher.foresight import FORESIGHT_S, FORESIGHT_TWICE_S, halt_ahead
from gonogo.supervise.watcher.halting import RECENT_ROUND_S
from gonogo.watch import WatchState, fold, look, start
from tests.watch.streams import EPOCH, T0, Rank, World, order_of


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


def test_where_all_are_silent_at_once_stacks_are_read_before_the_limit() -> None:
    state = standing(speaks_until=20.0)
    ahead = halt_ahead(state, tick_at(53.0))
    assert ahead is not None
    assert ahead.rank is None
    assert {row.severity for row in look(state, tick_at(73.0))} == {Severity.SUSPECT}


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


def unheard(at: float, *, world_size: int = 2, read_at: tuple[float, ...] = (12.0, 18.0)) -> Any:
    """What is foreseen of ranks in backward whose lines come no more, and whose stacks were read.

    Seconds count from the last line, which told that it began.
    """
    world = World(order_of({}, world_size=world_size, steps=400)).boot().steps(40, step_s=1.0)
    for rank in world.ranks:
        rank.step += 1
        rank.say("step_start")
        rank.enter("backward")
    began = world.ranks[0].mono - T0
    beats = {rank.rank: [line.raw for line in rank.lines] for rank in world.ranks}
    state, _ = fold(start(world.order), tick_at(began, 3), beats)
    for second in read_at:
        rows = [StackProbe(rank=rank, digest="same") for rank in range(world_size)]
        state, _ = fold(state, tick_at(began + second, 3, stacks=rows), {})
    return halt_ahead(state, tick_at(began + at))


@pytest.mark.parametrize("world_size", [1, 2])
def test_where_nobody_is_heard_stacks_are_read_again_before_they_testify(world_size: int) -> None:
    ahead = unheard(55.0, world_size=world_size)
    assert (ahead.detector, ahead.severity) == ("stall", "halt")


@pytest.mark.parametrize(
    ("at", "read_at"),
    [(50.0, (12.0, 18.0)), (62.0, (12.0, 18.0)), (38.0, ())],
    ids=["too early", "its time is over", "too early where nothing was read"],
)
def test_they_are_read_once_and_where_it_may_decide(at: float, read_at: tuple[float, ...]) -> None:
    assert unheard(at, read_at=read_at) is None


@pytest.mark.parametrize("read_at", [(), (-30.0, -20.0)], ids=["never", "before the last line"])
def test_where_nothing_was_read_in_the_silence_there_is_time_to_read_twice(
    read_at: tuple[float, ...],
) -> None:
    """One reading testifies to nothing: suspicions before may have taken their share of rounds."""
    assert FORESIGHT_TWICE_S - FORESIGHT_S > RECENT_ROUND_S
    first = unheard(42.0, read_at=read_at)
    assert (first.detector, first.severity) == ("stall", "halt")
    assert unheard(46.0, read_at=(*read_at, 43.0)) is None
    assert unheard(54.0, read_at=(*read_at, 43.0)) is not None
