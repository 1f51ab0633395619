"""D5: every section but boot and compute has its own clock."""

from typing import Any

import pytest

from gonogo.contract.finding import Severity, Source
from tests.judge.watch.streams import World, order_of, watch


def between(section: str | None, seconds: float, settings: dict[str, Any] | None = None) -> World:
    world = World(order_of(settings or {}, steps=200), alive_every_s=5).boot().steps(40)
    return world.pause(section, seconds)


@pytest.mark.parametrize(
    ("section", "limit_s"),
    [
        ("data", 300.0),
        ("checkpoint", 600.0),
        ("eval", 1800.0),
        ("log", 60.0),
        (None, 60.0),
        ("some_new_name", 60.0),
        ("boot", 60.0),
    ],
)
def test_a_section_halts_after_its_limit_and_not_before(
    section: str | None, limit_s: float
) -> None:
    assert watch(between(section, limit_s - 2.0).steps(1), interval_s=1.0).halts == []
    (halt,) = watch(between(section, limit_s + 5.0), interval_s=1.0).halts
    assert (halt.detector, halt.section) == ("section_deadline", section)
    assert halt.threshold == limit_s
    assert limit_s < (halt.value or 0) <= limit_s + 2.0


def test_data_is_suspect_first() -> None:
    found = watch(between("data", 130.0).steps(1), interval_s=1.0)
    assert found.named(Severity.SUSPECT) == {"section_deadline"}
    assert found.halts == []


def test_the_loader_of_one_rank_is_named_within_the_plans_limit() -> None:
    world = World(order_of()).boot().steps(11)
    world.open_step()
    world.hang(0, "data", 30.0)
    (halt,) = watch(world).halts
    assert (halt.detector, halt.rank, halt.section) == ("section_deadline", 0, "data")
    assert (halt.threshold, halt.source) == (10.0, Source.PLAN)


def test_a_loader_that_hangs_in_the_first_step_is_this_detectors() -> None:
    world = World(order_of()).boot()
    world.open_step()
    world.hang(1, "data", 30.0)
    assert watch(world).halted() == [("section_deadline", 1, "data")]


@pytest.mark.parametrize(("section", "factor"), [("checkpoint", 10.0), ("eval", 5.0)])
def test_long_sections_get_a_multiple_of_their_median(section: str, factor: float) -> None:
    world = World(order_of({}, steps=200), alive_every_s=5).boot().steps(40)
    usual_s = 400.0
    for _ in range(3):
        world.pause(section, usual_s).steps(1)
    limit_s = factor * usual_s
    world.pause(section, limit_s + 5.0)
    (halt,) = watch(world, interval_s=2.0).halts
    assert halt.source is Source.ADAPTIVE
    assert halt.threshold == pytest.approx(limit_s, rel=0.01)


def test_entering_a_section_starts_its_clock_anew() -> None:
    world = World(order_of({}, steps=200), alive_every_s=5).boot().steps(40)
    for _ in range(4):
        world.pause("log", 50.0)
    assert watch(world.steps(1), interval_s=1.0).halts == []


def test_no_end_after_the_last_step_is_out_of_section() -> None:
    world = World(order_of({}, steps=40), alive_every_s=5).boot().steps(40)
    for rank in world.ranks:
        rank.section_seq += 1
        rank.spend(610.0)
    assert watch(world, interval_s=1.0).halted() == [("section_deadline", None, None)]


def test_a_rank_that_is_done_has_no_deadline() -> None:
    world = World(order_of({}, steps=40), alive_every_s=5).boot().steps(40)
    for rank in world.ranks:
        rank.say("done")
        rank.spend(100.0)
    assert watch(world, interval_s=1.0).findings == []


def test_all_ranks_silent_in_a_section_is_unknown() -> None:
    world = between("log", 20.0)
    for rank in world.ranks:
        del rank.lines[-1]
        rank.mono += 300.0
    assert watch(world, interval_s=1.0).halts == []


def test_computing_for_long_is_not_this_detectors() -> None:
    world = World(order_of({}, steps=200), alive_every_s=5).boot().steps(5).steps(2, step_s=130.0)
    assert watch(world, interval_s=1.0).findings == []


def test_booting_for_long_is_not_this_detectors() -> None:
    world = World(order_of({}), alive_every_s=5)
    for rank in world.ranks:
        rank.mono += 1.0
        rank.say("boot", **world.order.identity.model_dump(exclude_none=True))
        rank.spend(200.0)
    assert watch(world, interval_s=1.0).findings == []


def test_opening_the_data_before_the_first_step_has_a_deadline() -> None:
    world = World(order_of({}), alive_every_s=5).boot(load_s=910.0)
    assert ("section_deadline", None, "data") in watch(world, interval_s=1.0).halted()
    sooner = {"section_deadline": {"data": {"halt_s": 300.0}}}
    world = World(order_of(sooner), alive_every_s=5).boot(load_s=310.0)
    assert watch(world, interval_s=1.0).halted() == [("section_deadline", None, "data")]
