"""A step that pauses and starts anew: who has come back from the pause is ahead of who is in it.

The adapters open a step where the one before ended, evaluate and save in it, and say that it starts
anew in the section that follows, which is data: there a rank may wait for another's batches.
"""

from collections.abc import Iterable

import pytest

from gonogo.judge.watch.registry import versions
from tests.judge.watch.streams import T0, World, order_of, watch


def paused(
    section: str,
    seconds: list[float],
    *,
    logs: bool = True,
    ranks: int = 2,
    waits_in: str = "data",
    ends: bool = True,
) -> World:
    """After 40 steps every rank enters a section, each for so long, and goes on; the last wait.

    Who is back waits in a section of the next step for whoever is not.
    """
    order = order_of({}, steps=400, world_size=ranks, detectors=versions())
    world = World(order, alive_every_s=5.0).boot().steps(40, step_s=1.0)
    for rank, spent_s in zip(world.ranks, seconds, strict=True):
        rank.step += 1
        rank.in_step = True
        rank.say("step_start")
        if logs:
            rank.enter("log")
        rank.enter(section)
        rank.say("section")
        rank.spend(spent_s)
        if spent_s < max(seconds) or ends:
            rank.say(section, dt=spent_s)
            rank.enter("data")
            rank.say("step_start")
            if waits_in != "data":
                rank.enter(waits_in)
    world.meet()
    if ends:
        world.compute(step_s=1.0)
        world.close_step()
        world.steps(10, step_s=1.0)
    return world


@pytest.mark.parametrize("logs", [True, False])
@pytest.mark.parametrize("section", ["checkpoint", "eval"])
@pytest.mark.parametrize(("ranks", "back_s"), [(2, 0.01), (4, 20.0)], ids=["at_once", "later"])
def test_who_is_back_sooner_may_wait_for_its_batch_for_as_long_as_the_others_pause(
    section: str, ranks: int, back_s: float, logs: bool
) -> None:
    seconds = [450.0, *(back_s for _ in range(ranks - 1))]
    assert watch(paused(section, seconds, ranks=ranks, logs=logs), interval_s=1.0).halted() == []


@pytest.mark.parametrize(("section", "limit_s"), [("checkpoint", 600.0), ("eval", 1800.0)])
@pytest.mark.parametrize("waits_in", ["data", "backward"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_who_never_comes_back_is_named_when_its_section_is_over(
    section: str, limit_s: float, ranks: int, waits_in: str
) -> None:
    seconds = [*(4.0 for _ in range(ranks - 1)), limit_s + 30.0]
    world = paused(section, seconds, ranks=ranks, waits_in=waits_in, ends=False)
    found = watch(world, interval_s=1.0)
    assert found.halted() == [("section_deadline", ranks - 1, section)]
    assert found.halts[0].threshold == limit_s


def test_two_that_never_come_back_are_told_from_the_others_and_not_from_each_other() -> None:
    world = paused("eval", [4.0, 1830.0, 4.0, 1830.0], ranks=4, ends=False)
    found = watch(world, interval_s=1.0)
    assert found.halted() == [("section_deadline", None, "eval")]
    assert "one of ranks 1, 3" in found.halts[0].text


def test_a_watcher_that_was_away_names_it_all_the_same() -> None:
    def away(end: float) -> Iterable[tuple[float, float]]:
        mono = T0
        while mono < end:
            late_s = 60.0 if mono < T0 + 200.0 <= mono + 61.0 else 0.0
            mono += 1.0 + late_s
            yield mono, late_s

    world = paused("checkpoint", [4.0, 900.0], ends=False)
    assert watch(world, ticking=away).halted() == [("section_deadline", 1, "checkpoint")]


def test_who_stands_in_data_after_a_pause_that_all_have_left_is_named() -> None:
    world = paused("checkpoint", [4.0, 4.5], ends=False)
    last = world.ranks[1]
    last.say("checkpoint", dt=4.5)
    last.enter("data")
    last.say("step_start")
    last.enter("forward")
    last.enter("backward")
    last.collective_seq += 1
    end = world.mono + 330.0
    for rank in world.ranks:
        rank.spend(end - rank.mono)
    assert watch(world, interval_s=1.0).halted() == [("section_deadline", 0, "data")]


def test_who_paused_at_an_earlier_step_than_the_one_that_pauses_now_is_behind() -> None:
    world = paused("eval", [4.0, 4.5], ends=False)
    first, ahead = world.ranks
    ahead.say("eval", dt=4.5)
    ahead.enter(None)
    ahead.step += 1
    ahead.say("step_start")
    ahead.enter("eval")
    ahead.say("section")
    end = world.mono + 330.0
    for rank in (first, ahead):
        rank.spend(end - rank.mono)
    assert watch(world, interval_s=1.0).halted() == [("section_deadline", 0, "data")]
