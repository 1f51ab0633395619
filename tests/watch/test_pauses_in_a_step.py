"""A step that pauses and starts anew: who has come back from the pause is ahead of who is in it.

The adapters open a step where the one before ended, evaluate and save in it, and say that it starts
anew in the section that follows, which is data: there a rank may wait for another's batches.
"""

from collections.abc import Iterable, Sequence

import pytest

from gonogo.watch.registry import versions
from tests.watch.streams import T0, World, order_of, watch


def paused(
    section: str,
    seconds: list[float],
    *,
    then: Sequence[tuple[str, list[float]]] = (),
    between: str | None = None,
    logs: bool = True,
    ranks: int = 2,
    waits_in: str = "data",
    ends: bool = True,
) -> World:
    """After 40 steps every rank enters a section, each for so long, and goes on; the last wait.

    Who is back waits in a section of the next step for whoever is not. `then` are the pauses that
    follow in the same step, at once or with a section `between` them, in which it starts anew.
    """
    order = order_of({}, steps=400, world_size=ranks, detectors=versions())
    world = World(order, alive_every_s=5.0).boot().steps(40, step_s=1.0)
    pauses = [(section, seconds), *then]
    longest_s = max(max(each_s) for _, each_s in pauses)
    for rank in world.ranks:
        rank.step += 1
        rank.in_step = True
        rank.say("step_start")
        if logs:
            rank.enter("log")
        for number, (name, each_s) in enumerate(pauses):
            spent_s = each_s[rank.rank]
            if number and between is not None:
                rank.enter(between)
                rank.say("step_start")
                rank.spend(0.1)
            rank.enter(name)
            rank.say("section")
            rank.spend(spent_s)
            if spent_s == longest_s and not ends:
                break
            rank.say(name, dt=spent_s)
        else:
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


def away(end: float) -> Iterable[tuple[float, float]]:
    """Tick each second; for a minute the watcher is away."""
    mono = T0
    while mono < end:
        late_s = 60.0 if mono < T0 + 200.0 <= mono + 61.0 else 0.0
        mono += 1.0 + late_s
        yield mono, late_s


def test_a_watcher_that_was_away_names_it_all_the_same() -> None:
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


TWO = pytest.mark.parametrize(
    ("first", "second"),
    [("eval", "checkpoint"), ("checkpoint", "eval")],
    ids=["evaluates", "saves"],
)
BETWEEN = pytest.mark.parametrize("between", [None, "data"], ids=["at_once", "anew"])
LIMIT_S = {"checkpoint": 600.0, "eval": 1800.0}


@TWO
@BETWEEN
@pytest.mark.parametrize(
    ("first_s", "second_s"),
    [
        ([450.0, 4.0], [4.0, 4.5]),
        ([4.0, 4.5], [450.0, 4.0]),
        ([450.0, 4.0], [400.0, 4.0]),
        ([450.0, 4.0], [4.0, 500.0]),
        ([450.0, 0.01], [0.01, 0.01]),
        ([450.0, 4.0, 20.0, 0.01], [4.0, 500.0, 4.0, 0.01]),
        ([4.0, 450.0, 4.0, 4.0], [450.0, 4.0, 4.0, 4.0]),
    ],
    ids=["first", "second", "both", "crosswise", "soon", "all_ways", "four_crosswise"],
)
def test_each_rank_may_take_its_time_for_either_of_two_pauses(
    first: str, second: str, between: str | None, first_s: list[float], second_s: list[float]
) -> None:
    world = paused(first, first_s, then=[(second, second_s)], between=between, ranks=len(first_s))
    assert watch(world, interval_s=1.0).halted() == []


@BETWEEN
@pytest.mark.parametrize("ranks", [2, 4])
def test_who_waits_in_its_checkpoint_for_one_that_still_evaluates_has_the_time_of_that(
    ranks: int, between: str | None
) -> None:
    evaluates_s = [1500.0, *(4.0 for _ in range(ranks - 1))]
    saves_s = [4.0, *(1500.0 for _ in range(ranks - 1))]
    world = paused(
        "eval", evaluates_s, then=[("checkpoint", saves_s)], between=between, ranks=ranks
    )
    assert watch(world, interval_s=1.0).halted() == []


@TWO
@BETWEEN
@pytest.mark.parametrize("where", [0, 1], ids=["in_the_first", "in_the_second"])
@pytest.mark.parametrize("waits_in", ["data", "backward"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_who_never_comes_back_from_one_of_two_pauses_is_named(
    first: str, second: str, between: str | None, where: int, waits_in: str, ranks: int
) -> None:
    limit_s = LIMIT_S[(first, second)[where]]
    each_s = [[4.0] * ranks, [5.0] * ranks]
    each_s[where][-1] = limit_s + 60.0
    world = paused(
        first,
        each_s[0],
        then=[(second, each_s[1])],
        between=between,
        ranks=ranks,
        waits_in=waits_in,
        ends=False,
    )
    found = watch(world, interval_s=1.0)
    assert found.halted() == [("section_deadline", ranks - 1, (first, second)[where])]
    assert found.halts[0].threshold == limit_s


@pytest.mark.parametrize("ranks", [2, 4])
def test_who_hangs_in_the_first_while_others_wait_in_the_second_is_named(ranks: int) -> None:
    """Some are back from both already: not every rank has to wait where it saves."""
    first_s = [*(4.0 for _ in range(ranks - 1)), 1900.0]
    saves_s = [1890.0, *(5.0 for _ in range(ranks - 1))]
    world = paused("eval", first_s, then=[("checkpoint", saves_s)], ranks=ranks, ends=False)
    found = watch(world, interval_s=1.0)
    assert found.halted() == [("section_deadline", ranks - 1, "eval")]
    assert found.halts[0].threshold == LIMIT_S["eval"]


@TWO
@BETWEEN
def test_a_watcher_that_was_away_between_the_two_names_it_all_the_same(
    first: str, second: str, between: str | None
) -> None:
    """At the end of its absence the one is back from both, and the other in the second."""
    stays_s = LIMIT_S[second] + 200.0
    world = paused(
        first, [60.0, 120.0], then=[(second, [4.0, stays_s])], between=between, ends=False
    )
    assert watch(world, ticking=away).halted() == [("section_deadline", 1, second)]


@pytest.mark.parametrize("second_s", [[450.0, 4.0], [4.0, 450.0]], ids=["both", "crosswise"])
@pytest.mark.parametrize("between", ["data", "checkpoint"])
def test_each_rank_may_take_its_time_for_each_of_two_data_sets(
    between: str, second_s: list[float]
) -> None:
    """Where a save is due, too, the Trainer's adapter goes to that after each of them."""
    then = [("eval", second_s), ("checkpoint", [4.0, 4.5])]
    if between == "checkpoint":
        then.insert(0, ("checkpoint", [0.01, 0.01]))
    anew = "data" if between == "data" else None
    world = paused("eval", [450.0, 4.0], then=then, between=anew)
    assert watch(world, interval_s=1.0).halted() == []


def test_who_never_comes_back_from_the_first_of_two_data_sets_is_named() -> None:
    """The other waits in the second: it has entered that last, and is ahead."""
    world = paused(
        "eval", [4.0, 2000.0], then=[("eval", [1990.0, 4.0])], between="data", ends=False
    )
    assert watch(world, interval_s=1.0).halted() == [("section_deadline", 1, "eval")]


@TWO
@BETWEEN
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("section", "halted"),
    [("data", "section_deadline"), ("forward", "stall"), ("backward", "stall")],
)
def test_who_hangs_after_two_pauses_is_named(
    first: str, second: str, between: str | None, ranks: int, section: str, halted: str
) -> None:
    """It was the first to come back from both, or the last."""
    for culprit in (0, ranks - 1):
        each_s = [200.0, *(4.0 for _ in range(ranks - 1))]
        world = paused(
            first, each_s, then=[(second, each_s)], between=between, ranks=ranks, ends=False
        )
        slow = world.ranks[0]
        if slow.section == first:
            slow.say(first, dt=200.0)
            slow.enter(second)
            slow.say("section")
            slow.spend(200.0)
        slow.say(second, dt=200.0)
        slow.enter("data")
        slow.say("step_start")
        world.meet()
        world.hang(culprit, section, 2000.0)
        assert watch(world, interval_s=1.0).halted() == [(halted, culprit, section)]
