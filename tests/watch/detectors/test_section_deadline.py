"""D5: every section but boot and compute has its own clock."""

import json
from typing import Any

import pytest

from gonogo.contract.finding import Severity, Source
from gonogo.contract.tick import ProcessState, StackProbe
from gonogo.watch.detectors.section_deadline import SectionDeadline
from gonogo.watch.processes import Process, Processes, Stack
from gonogo.watch.stream import RankStream
from tests.watch.standing import NOW, halts, look, standing, suspects
from tests.watch.streams import T0, Rank, Said, World, order_of, watch

ROUND = (200.0, *[0.5] * 63)
"""Seconds in no section of 64 steps, of which the first generates what the others learn from."""


def between(section: str | None, seconds: float, settings: dict[str, Any] | None = None) -> World:
    world = World(order_of(settings or {}, steps=200), alive_every_s=5).boot().steps(40)
    return world.pause("checkpoint", 0.1).pause("eval", 0.1).pause(section, seconds)


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


@pytest.mark.parametrize(
    ("section", "for_s", "suspect", "halt"),
    [
        ("data", 120.0, [], []),
        ("data", 120.25, [120.0], []),
        ("data", 300.0, [120.0], []),
        ("data", 300.25, [120.0], [300.0]),
        ("log", 60.0, [], []),
        ("log", 60.25, [], [60.0]),
        (None, 60.0, [], []),
        (None, 60.25, [], [60.0]),
    ],
)
def test_each_limit_has_to_be_passed(
    section: str | None, for_s: float, suspect: list[float], halt: list[float]
) -> None:
    found = look(SectionDeadline, [standing(section, for_s=for_s)])
    assert (suspects(found), halts(found)) == (suspect, halt)


@pytest.mark.parametrize(
    ("section", "told", "limit"),
    [
        ("data", {"steps": 0}, [900.0]),
        ("data", {"steps": 1}, [300.0]),
        ("log", {"steps": 0}, [900.0]),
        ("log", {"steps": 1}, [300.0]),
        ("log", {"steps": 2}, [60.0]),
        (None, {"steps": 5}, [60.0]),
        (None, {"steps": 500, "named": ("data", "eval")}, [300.0]),
        (None, {"steps": 500, "named": ("data", "checkpoint")}, [300.0]),
        (None, {"steps": 500, "named": ("eval", "checkpoint")}, [300.0]),
        (None, {"steps": 500, "named": ("eval", "checkpoint"), "computes": False}, [300.0]),
        ("rollout", {"steps": 500, "named": ()}, [300.0]),
        ("log", {"steps": 500, "named": ()}, [60.0]),
        (None, {"steps": 1000, "named": ()}, [600.0]),
        (None, {"steps": 5, "computes": False}, [300.0]),
        (None, {"steps": 1, "computes": False}, [300.0]),
        (None, {"steps": 0, "computes": False}, []),
        (None, {"steps": 0, "computes": False, "started_mono": None}, [900.0]),
        (None, {"steps": 0}, [900.0]),
        ("rollout", {"steps": 0}, [900.0]),
        ("rollout", {"apart_times": (0.0, 20.0, 20.5, 90.0)}, [162.0]),
        (None, {"apart_times": (0.0, 0.5, 300.0)}, [60.0]),
        ("rollout", {"of_users": True, "apart_times": (*ROUND, *ROUND, 0.5)}, [300.0]),
        (None, {"of_users": True, "apart_times": (30.0, *ROUND[1:])}, [90.0]),
        ("rollout", {"of_users": True, "apart_times": (*ROUND, 0.5), "planned_s": 60}, [60.0]),
        (None, {"apart_times": (24.0,)}, [192.0]),
        (None, {"apart_times": (24.0, 72.0)}, [384.0]),
        (None, {"apart_times": (24.0, 72.0, 70.0)}, [560.0]),
        (None, {"steps": 1}, [300.0]),
        ("sampling", {"steps": 1}, [300.0]),
        (None, {"steps": 1, "apart_times": (40.0,)}, [320.0]),
        (None, {"steps": 2}, [60.0]),
        (None, {"steps": 999}, [60.0]),
        (None, {"steps": 1000}, [600.0]),
        ("export", {"steps": 999}, [60.0]),
        ("export", {"steps": 1000}, [600.0]),
        ("log", {"steps": 1000}, [60.0]),
        ("forward", {}, []),
        ("boot", {"started_mono": None}, []),
        ("boot", {}, [60.0]),
        ("data", {"labelled": False}, []),
    ],
    ids=[
        "the first data", "later data", "the first log", "the second log", "later log",
        "no section", "no checkpoint was named",
        "no evaluation was named", "no data was named", "nor was computing",
        "a name of its own, and none was named", "log, and none was",
        "after the last step, and none was", "no section, may compute",
        "the second step, may compute", "the first step, may compute", "no step yet",
        "no section in the first step", "a name of its own in the first step",
        "episodes in every step", "episodes in few steps", "rounds of a user's",
        "short rounds", "rounds, and the plan", "episodes before the first step",
        "episodes twice", "episodes three times", "after the first step", "a name of its own there",
        "episodes before the second step", "after the second step", "before the last step",
        "after the last step", "a name of its own before it", "a name of its own after it",
        "log after the last step", "compute", "boot", "boot again", "names nothing",
    ],
)  # fmt: skip
def test_the_limit_of_a_rank(section: str | None, told: dict[str, Any], limit: list[float]) -> None:
    """Where it matters what was named, or comes once in many steps, the program is a user's."""
    known = {name: value for name, value in told.items() if name not in ("of_users", "planned_s")}
    settings = {"stall": {"halt_s": told["planned_s"]}} if "planned_s" in told else {}
    users = "of_users" in told or "named" in told
    order = order_of(settings, steps=1000, world_size=1, entry="train.py") if users else None
    found = look(SectionDeadline, [standing(section, for_s=1e4, **known)], order=order)
    assert halts(found) == limit


@pytest.mark.parametrize("ranks", [1, 2])
def test_steps_whose_device_is_waited_for_in_log_halt_nothing(ranks: int) -> None:
    """They are longer than the limit of logging, also the first of each process."""
    world = World(order_of({}, steps=200, world_size=ranks), alive_every_s=5)
    for boot in (1, 2):
        for rank in world.ranks:
            rank.boot, rank.seq, rank.section = f"boot{boot}.{rank.rank}", 0, "boot"
        world.boot()
        for waited_s in (700.0, 95.0, 95.0, 95.0):
            world.open_step()
            world.compute()
            for rank in world.ranks:
                rank.spend(waited_s)
            world.close_step()
    assert watch(world, interval_s=1.0).halts == []


@pytest.mark.parametrize("section", [None, "rollout"])
def test_our_own_trainer_names_what_it_does_from_the_first(section: str | None) -> None:
    rank = standing(section, for_s=1e4, steps=500, named=())
    assert halts(look(SectionDeadline, [rank])) == [60.0]


@pytest.mark.parametrize(
    ("section", "times_s", "limit"),
    [
        ("checkpoint", [("checkpoint", 100.0), ("checkpoint", 200.0), ("eval", 9.0)], 1500.0),
        ("checkpoint", [("eval", 900.0)], 600.0),
        ("eval", [("checkpoint", 1.0), ("eval", 400.0)], 2000.0),
        ("log", [("log", 900.0)], 60.0),
    ],
)
def test_the_median_of_a_section_is_its_own(
    section: str, times_s: list[tuple[str, float]], limit: float
) -> None:
    rank = standing(section, for_s=1e4, section_times=tuple(times_s))
    assert halts(look(SectionDeadline, [rank])) == [limit]


@pytest.mark.parametrize("section", ["log", None, "some_new_name"])
@pytest.mark.parametrize(("step_s", "limit_s"), [(20.0, 60.0), (25.0, 75.0), (60.0, 180.0)])
def test_where_steps_take_long_what_lies_between_them_has_three(
    section: str | None, step_s: float, limit_s: float
) -> None:
    """A host that stood still for 52 s, and lines that came ten seconds late, halted a run."""
    for for_s, due in ((limit_s, []), (limit_s + 0.25, [limit_s])):
        rank = standing(section, for_s=for_s, step_s=step_s)
        found = look(SectionDeadline, [rank])
        assert halts(found) == due
        source = Source.DEFAULT if step_s == 20.0 else Source.ADAPTIVE
        assert {row.source for row in found if row.severity is Severity.HALT} <= {source}


@pytest.mark.parametrize(
    ("apart_s", "limit", "source"),
    [(20.0, 60.0, Source.DEFAULT), (20.25, 60.75, Source.ADAPTIVE)],
)
def test_what_recurs_is_told_where_it_is_more_than_the_limit(
    apart_s: float, limit: float, source: Source
) -> None:
    rank = standing(None, for_s=1e4, apart_times=(apart_s, *ROUND[1:]))
    order = order_of({}, steps=1000, world_size=1, entry="train.py")
    (halt,) = look(SectionDeadline, [rank], order=order)
    assert (halt.threshold, halt.source) == (limit, source)


@pytest.mark.parametrize("section", ["log", "data", "checkpoint", "eval", None])
def test_a_limit_of_the_plan_holds_however_short_it_is(section: str | None) -> None:
    settings = {section or "out_of_section": {"suspect_s": None, "halt_s": 0.25}}
    for for_s, found in ((0.25, []), (0.5, [0.25])):
        rank = standing(section, for_s=for_s)
        assert halts(look(SectionDeadline, [rank], {"section_deadline": settings})) == found


@pytest.mark.parametrize("name", ["log", "out_of_section"])
def test_a_limit_of_the_plan_follows_no_steps(name: str) -> None:
    section = "log" if name == "log" else None
    rank = standing(section, for_s=61.0, step_s=60.0)
    assert halts(look(SectionDeadline, [rank], {"section_deadline": {name: {"halt_s": 60}}})) == [
        60.0
    ]


def test_who_waits_for_a_checkpoint_that_another_rank_writes_has_what_such_a_one_takes() -> None:
    world = World(order_of({}, steps=42), alive_every_s=5).boot().steps(40)
    world.ranks[0].say("checkpoint", dt=700.0)
    world.ranks[1].say("checkpoint", dt=0.0)
    world.pause("checkpoint", 0.1).pause("checkpoint", 800.0).steps(1)
    assert watch(world, interval_s=1.0).halts == []
    world.pause("checkpoint", 7010.0)
    (halt,) = watch(world, interval_s=2.0).halts
    assert (halt.threshold, halt.source) == (7000.0, Source.ADAPTIVE)


@pytest.mark.parametrize(
    ("peer", "step", "settings", "found"),
    [
        ("checkpoint", 41, {}, []),
        ("eval", 41, {}, []),
        ("checkpoint", 42, {}, [300.0]),
        ("log", 41, {}, [300.0]),
        ("checkpoint", 41, {"section_deadline": {"data": {"halt_s": 300.0}}}, [300.0]),
    ],
)
def test_who_is_in_data_may_wait_for_a_peer_that_saves_or_evaluates(
    peer: str, step: int, settings: dict[str, Any], found: list[float]
) -> None:
    """Some scripts name data whatever lies between two steps, now and then a save in it."""
    ahead = standing(peer, for_s=302.0, step=step, section_seq=2)
    entered = (("checkpoint", 5.0), ("eval", 5.0))
    behind = standing("data", for_s=302.0, rank=1, section_seq=1, section_times=entered)
    assert halts(look(SectionDeadline, [ahead, behind], settings)) == found


@pytest.mark.parametrize(
    ("for_s", "usual_s", "settings", "found"),
    [
        (602.0, 5.0, {}, []),
        (702.0, 70.0, {}, []),
        (1802.0, 5.0, {}, [1800.0]),
        (602.0, 5.0, {"section_deadline": {"checkpoint": {"halt_s": 600.0}}}, [600.0]),
    ],
)
def test_who_saves_may_wait_for_a_peer_that_evaluates_alone_before(
    for_s: float, usual_s: float, settings: dict[str, Any], found: list[float]
) -> None:
    """All ranks meet in what saves their shards, however long that usually takes."""
    evaluates = standing("eval", for_s=for_s, section_seq=1)
    saved = (("checkpoint", usual_s),)
    waits = standing("checkpoint", for_s=for_s, rank=1, section_seq=2, section_times=saved)
    assert halts(look(SectionDeadline, [evaluates, waits], settings)) == found


def test_who_is_in_data_waits_for_no_peer_for_longer_than_that_has() -> None:
    ahead = standing("checkpoint", for_s=602.0, section_seq=2)
    entered = (("checkpoint", 5.0),)
    behind = standing("data", for_s=602.0, rank=1, section_seq=1, section_times=entered)
    assert halts(look(SectionDeadline, [ahead, behind])) == [600.0]


def standing_still(streams: list[RankStream], **of: Any) -> Processes:
    """Processes whose stacks have stood still since before the last lines were lost."""
    readings = {
        row.rank: tuple(
            Stack(mono=NOW - ago_s, probe=StackProbe(rank=row.rank, round=1, digest="same"))
            for ago_s in (20.0, 10.0)
        )
        for row in streams
    }
    return Processes(stacks=readings, **of)


@pytest.mark.parametrize(
    ("section", "for_s", "found"),
    [
        (None, 599.0, []),
        ("log", 599.0, []),
        ("exporting", 599.0, []),
        (None, 601.0, [600.0]),
        ("data", 301.0, [300.0]),
    ],
)
def test_who_was_heard_on_its_way_and_nobody_since_may_save(
    section: str | None, for_s: float, found: list[float]
) -> None:
    """Its lines were lost behind the end of a step: a stack that stands does not tell where."""
    ranks = [standing(section, for_s=for_s, rank=rank, heard_mono=NOW - 31.0) for rank in (0, 1)]
    assert halts(look(SectionDeadline, ranks, processes=standing_still(ranks))) == found


def test_who_is_heard_or_held_or_was_not_watched_has_no_longer_for_that() -> None:
    heard = [standing(None, for_s=61.0, rank=rank) for rank in (0, 1)]
    assert halts(look(SectionDeadline, heard, processes=standing_still(heard))) == [60.0]
    silent = [standing(None, for_s=61.0, rank=rank, heard_mono=NOW - 61.0) for rank in (0, 1)]
    stopped = Process(state=ProcessState.STOPPED, held_mono=NOW - 61.0)
    held = standing_still(silent, ranks={0: stopped, 1: stopped})
    assert halts(look(SectionDeadline, silent, processes=held)) == [60.0]
    assert halts(look(SectionDeadline, silent, watched=False)) == [60.0]


@pytest.mark.parametrize(
    ("section", "settings", "told"),
    [
        (None, {"stall": {"halt_s": 60.0}}, {"computes": False}),
        ("checkpoint", {}, {"section_times": (("checkpoint", 60.0),)}),
    ],
    ids=["of the stall rule", "of the median"],
)
def test_of_equal_limits_its_own_is_told(
    section: str | None, settings: dict[str, Any], told: dict[str, Any]
) -> None:
    (halt,) = look(SectionDeadline, [standing(section, for_s=1e4, **told)], settings)
    assert (halt.threshold, halt.source) == (
        60.0 if section is None else 600.0,
        Source.DEFAULT,
    )


def test_a_run_without_a_last_step_has_none_after_which_it_saves() -> None:
    rank = standing(None, for_s=1e4, completed=2**40)
    order = order_of({}, world_size=1).model_copy(update={"steps": None})
    assert halts(look(SectionDeadline, [rank], order=order)) == [60.0]


@pytest.mark.parametrize(("late_s", "found"), [(0.0, 1), (0.75, 1), (1.0, 0)])
def test_a_late_tick_misses_no_deadline(late_s: float, found: int) -> None:
    world = World(order_of({}, world_size=1), alive_every_s=5).boot().steps(2).pause("log", 62.0)
    before = [(world.mono - ago_s, 0.0) for ago_s in range(62, 4, -5)]
    ticks = [(T0, 0.0), *before, (world.mono - 1.0, late_s)]
    assert len(watch(world, ticking=lambda end: ticks).halts) == found


ALL_S = 300.0 + 600.0 + 1800.0 + 60.0 + 60.0
"""What data, checkpoint, evaluation, log and no section may take together; a step a minute more."""


def cycle(seconds: float, *sections: str | None, each_s: float = 40.0) -> World:
    """All ranks go from section to section, and no step ends."""
    world = World(order_of({}, steps=200, world_size=1), alive_every_s=20.0).boot().steps(40)
    world.pause("checkpoint", 0.1).pause("eval", 0.1)
    end = world.mono + seconds
    while world.mono < end:
        for section in sections:
            world.pause(section, each_s)
    return world


@pytest.mark.parametrize("sections", [("data",), ("eval", "checkpoint", None)])
def test_going_round_without_a_step_halts_in_the_end(sections: tuple[str | None, ...]) -> None:
    limit_s = 2.0 * (ALL_S + 60.0)
    assert watch(cycle(limit_s - 300.0, *sections).steps(1), interval_s=10.0).halts == []
    (halt,) = watch(cycle(limit_s + 300.0, *sections), interval_s=10.0).halts
    assert (halt.detector, halt.rank, halt.threshold) == ("section_deadline", 0, limit_s)
    assert "goes from section to section" in halt.text


@pytest.mark.parametrize(
    ("told", "limit_s"),
    [
        ({}, 2.0 * (ALL_S + 60.0)),
        ({"completed": 1000}, 8.0 * (300.0 + 600.0 + 1800.0 + 60.0 + 60.0 + 60.0)),
        ({"section_times": (("eval", 600.0),)}, 2.0 * (ALL_S + 60.0 + 1200.0)),
        ({"completed_steps": 0}, 2.0 * (ALL_S + 600.0 + 2 * 840.0 + 2 * 300.0 + 900.0 + 1800.0)),
    ],
    ids=["in the run", "after its last step", "long evaluations", "before its first step"],
)
def test_the_limit_of_going_round_is_made_of_those_of_its_sections(
    told: dict[str, Any], limit_s: float
) -> None:
    for for_s, found in ((limit_s, []), (limit_s + 0.25, [limit_s])):
        fields = {"advanced_mono": NOW - for_s, **told}
        rank = standing("data", for_s=10.0, step_s=0.25, **fields)
        assert halts(look(SectionDeadline, [rank])) == found


def test_a_rank_that_names_no_sections_is_the_stall_rules() -> None:
    rank = standing(None, for_s=10.0, labelled=False, advanced_mono=NOW - 1e6)
    assert look(SectionDeadline, [rank]) == []


DONE = {"done": True, "completed": 1000}


def states(*known: ProcessState) -> Processes:
    return Processes(ranks={rank: Process(state=state) for rank, state in enumerate(known)})


@pytest.mark.parametrize(
    ("for_s", "found"),
    [
        (600.0, []),
        (600.25, ["warn"]),
        (1800.0, ["warn"]),
        (1800.25, ["warn", "halt"]),
    ],
)
def test_a_rank_that_is_done_and_does_not_exit_is_told_of_and_then_ended(
    for_s: float, found: list[str]
) -> None:
    ranks = [
        standing(None, for_s=1e4, rank=rank, done_mono=NOW - for_s - (1 - rank), **DONE)
        for rank in (0, 1)
    ]
    processes = states(ProcessState.DEAD, ProcessState.ALIVE)
    seen = look(SectionDeadline, ranks, processes=processes)
    assert [str(row.severity) for row in seen] == found
    assert {row.rank for row in seen} <= {1}
    both = look(SectionDeadline, ranks, processes=states(ProcessState.ALIVE, ProcessState.ALIVE))
    assert {row.rank for row in both} <= {None}


@pytest.mark.parametrize(
    ("processes", "told", "found"),
    [
        (states(ProcessState.ALIVE, ProcessState.ALIVE), DONE, 2),
        (states(ProcessState.DEAD, ProcessState.DEAD), DONE, 0),
        (Processes(), DONE, 0),
        (Processes(agent=Process(state=ProcessState.ALIVE)), DONE, 2),
        (states(ProcessState.ALIVE, ProcessState.ALIVE), {"section": "forward"}, 0),
    ],
    ids=["ranks", "all gone", "unknown", "the launcher", "a peer still trains"],
)
def test_only_what_is_seen_and_all_done_can_fail_to_exit(
    processes: Processes, told: dict[str, Any], found: int
) -> None:
    first = standing(None, for_s=1e4, done_mono=NOW - 1e4, **DONE)
    section = told.get("section")
    rest = {name: value for name, value in told.items() if name != "section"}
    other = standing(section, for_s=1.0, rank=1, done_mono=NOW - 1e4, **rest)
    assert len(look(SectionDeadline, [first, other], processes=processes)) == found


def test_lines_alone_do_not_tell_whether_a_process_exits() -> None:
    rank = standing(None, for_s=1e4, done_mono=NOW - 1e4, **DONE)
    processes = states(ProcessState.ALIVE)
    assert look(SectionDeadline, [rank], processes=processes, watched=False) == []


def test_a_run_that_is_done_and_hangs_is_ended() -> None:
    world = World(order_of({}, steps=40), alive_every_s=60.0).boot().steps(40)
    for rank in world.ranks:
        rank.say("done")
    world.probe(0, "dead", code=0)
    world.ranks[1].spend(1900.0)
    (halt,) = watch(world, interval_s=10.0).halts
    assert (halt.detector, halt.rank, halt.section) == ("section_deadline", 1, None)
    assert "did not exit" in halt.text


@pytest.mark.parametrize("others", [0, 1])
def test_a_rank_that_evaluates_alone_after_all_have_has_the_time_that_takes(others: int) -> None:
    """No collective is counted: those in no section may wait for it."""
    world = World(order_of({}, steps=200), alive_every_s=20.0).boot().steps(40)
    world.pause("eval", 60.0).steps(3)
    for rank in world.ranks:
        rank.collective_seq = 0
        if rank.rank == others:
            rank.enter("eval")
        rank.spend(900.0)
        rank.enter(None)
    for rank in world.ranks:
        rank.lines = [Said(row.mono, _uncounted(row.raw)) for row in rank.lines]
    assert watch(world.steps(0), interval_s=2.0).halts == []


def _uncounted(raw: bytes) -> bytes:
    line = json.loads(raw)
    line.pop("collective_seq", None)
    return json.dumps(line).encode()


@pytest.mark.parametrize("section", [None, "save"], ids=["names nothing", "names it its way"])
@pytest.mark.parametrize("save_s", range(75, 80))
def test_who_waited_for_a_peer_that_saves_and_names_no_checkpoint_has_stood_since_then(
    section: str | None, save_s: int
) -> None:
    """Both go on together; which of them is heard first is a matter of when they spoke last."""
    order = order_of({}, steps=200, entry=None, command=["python", "train.py"])
    world = World(order, alive_every_s=5.0).boot()
    for step in range(1, 6):
        for rank in world.ranks:
            rank.step, rank.in_step = step, True
            rank.say("step_start")
            if step == 4 and rank.rank == 0:
                rank.enter(section)
                rank.spend(save_s)
                rank.enter(None)
            _ask(rank)
        world.meet()
        for rank in world.ranks:
            rank.enter(None)
            rank.spend(8.0)
        world.close_step()
    assert watch(world).halts == []


@pytest.mark.parametrize("section", ["log", "backward"])
@pytest.mark.parametrize("does", ["checkpoint", "data", None])
def test_who_waited_at_the_end_of_an_accumulation_has_stood_since_the_others_came(
    section: str, does: str | None
) -> None:
    """A rank saves four micro-steps behind; a moment later it is two ahead, and heard first."""
    order = order_of({}, steps=200, entry=None, command=["python", "train.py"])
    world = World(order, alive_every_s=5.0).boot()
    first, second = world.ranks
    for step in range(1, 48):
        for rank in world.ranks:
            rank.step, rank.in_step = step, True
            rank.say("step_start")
            if step == 41 and rank is first:
                rank.enter(does)
                rank.spend(150.0)
                rank.enter(None)
            rank.enter("forward")
            rank.spend(0.3)
            rank.enter(section)
        if step % 5 == 0:
            world.meet()
            second.spend(1.5 if step == 45 else 0.0)
        world.close_step()
    assert watch(world).halts == []


def _ask(rank: Rank) -> None:
    """Wait for the others in a collective that is counted, as `should_halt()` does."""
    rank.collective_seq += 1
    rank.enter("log")


@pytest.mark.parametrize(
    ("section", "advanced_s", "found"),
    [("log", 10.0, [60.0]), (None, 10.0, []), (None, 60.25, [60.0])],
    ids=["in a section", "in none, and its step moves", "in none"],
)
def test_a_step_that_advances_is_a_move_in_no_section_alone(
    section: str | None, advanced_s: float, found: list[float]
) -> None:
    rank = standing(section, for_s=70.0, advanced_mono=NOW - advanced_s)
    assert halts(look(SectionDeadline, [rank])) == found


@pytest.mark.parametrize("section", ["log", "data", None])
@pytest.mark.parametrize(
    ("ahead", "back_s", "found"),
    [
        (0, 5.0, False),
        (1, 5.0, False),
        (1, 301.0, True),
        (2, 50.0, False),
        (2, 300.0, True),
        (60, 5.0, True),
    ],
)
def test_who_waited_for_a_peers_slow_step_has_stood_since_that_ended(
    section: str | None, ahead: int, back_s: float, found: bool
) -> None:
    """The peer's lines are read first; many steps ahead it does not wait for this rank at all."""
    waits = standing(section, for_s=320.0, rank=1, section_seq=3)
    peer = standing(
        None, for_s=back_s, step=41 + ahead, completed=40 + ahead, section_seq=4, compute_s=0.0
    )
    assert bool(halts(look(SectionDeadline, [peer, waits]))) is found


@pytest.mark.parametrize(
    ("section", "times_s", "saved_s", "limit"),
    [
        ("checkpoint", (), (100.0,), 1000.0),
        ("checkpoint", (("checkpoint", 300.0),), (100.0,), 3000.0),
        ("checkpoint", (("checkpoint", 100.0),), (200.0, 300.0, 400.0), 3000.0),
        ("eval", (), (900.0,), 1800.0),
        ("eval", (("eval", 400.0),), (900.0,), 2000.0),
    ],
    ids=["its lines alone", "its section", "its lines", "an evaluation", "usual evaluations"],
)
def test_a_checkpoint_takes_what_its_lines_or_its_sections_say(
    section: str, times_s: tuple[tuple[str, float], ...], saved_s: tuple[float, ...], limit: float
) -> None:
    rank = standing(section, for_s=1e4, section_times=times_s, saved_s=saved_s)
    assert halts(look(SectionDeadline, [rank])) == [limit]


def test_a_rank_that_names_no_sections_beside_one_that_does_is_the_stall_rules() -> None:
    behind = standing(None, for_s=10.0, labelled=False, advanced_mono=NOW - 1e6, steps=39)
    assert look(SectionDeadline, [behind, standing("data", for_s=10.0, rank=1)]) == []


@pytest.mark.parametrize(
    ("processes", "episode", "who"),
    [
        (states(ProcessState.ALIVE, ProcessState.ALIVE), "a/done", "the ranks"),
        (states(ProcessState.ALIVE, ProcessState.DEAD), "a/done", "rank 0"),
        (states(ProcessState.DEAD, ProcessState.ALIVE), "b/done", "rank 1"),
        (Processes(agent=Process(state=ProcessState.ALIVE)), "a/done", "the launcher"),
    ],
)
def test_who_does_not_exit_is_told(processes: Processes, episode: str, who: str) -> None:
    ranks = [
        standing(None, for_s=1e4, rank=rank, boot="ab"[rank], done_mono=NOW - 1e4, **DONE)
        for rank in (0, 1)
    ]
    for finding in look(SectionDeadline, ranks, processes=processes):
        assert finding.key.endswith(episode)
        assert finding.text.endswith(f", and {who} did not exit")


def test_a_peer_that_died_before_it_was_done_does_not_excuse_who_lingers() -> None:
    first = standing(None, for_s=1e4, done_mono=NOW - 1e4, **DONE)
    died = standing("forward", for_s=1.0, rank=1)
    processes = states(ProcessState.ALIVE, ProcessState.DEAD)
    found = look(SectionDeadline, [first, died], processes=processes)
    assert {finding.rank for finding in found} == {0}
    assert len(found) == 2


@pytest.mark.parametrize(
    ("section", "rank"), [("log", 1), (None, 1), ("checkpoint", 0), ("data", 0)]
)
def test_one_that_left_is_to_blame_where_the_others_may_wait_for_it(
    section: str | None, rank: int
) -> None:
    gone = standing(None, for_s=1.0, rank=1, done=True, completed=40)
    (*_, halt) = look(SectionDeadline, [standing(section, for_s=2000.0), gone])
    assert (halt.severity, halt.rank) == (Severity.HALT, rank)


def suspended_in(section: str, suspended_s: float, *, said: bool) -> World:
    """Ranks pause for 35 s, and are suspended for so long besides; then they pause for ever."""
    world = World(order_of({}, steps=900), alive_every_s=5).boot().steps(20, step_s=5.0)
    began = world.mono
    for rank in world.ranks:
        rank.enter(section)
        rank.spend(30.0)
    world.suspend(suspended_s)
    for rank in world.ranks:
        rank.spend(5.0)
        if said:
            rank.say(section, dt=rank.mono - began)
        rank.enter(None)
    return world.steps(20, step_s=5.0).pause(section, 2_000.0)


@pytest.mark.parametrize("said", [True, False], ids=["said", "unsaid"])
@pytest.mark.parametrize("suspended_s", [34.0, 10_800.0])
@pytest.mark.parametrize(("section", "limit_s"), [("checkpoint", 600.0), ("eval", 1800.0)])
def test_a_suspension_in_a_pause_is_none_of_what_it_usually_takes(
    section: str, limit_s: float, suspended_s: float, said: bool
) -> None:
    seen = watch(suspended_in(section, suspended_s, said=said), interval_s=1.0)
    (halt,) = seen.halts
    assert (halt.detector, halt.section, halt.threshold) == ("section_deadline", section, limit_s)
    taken = dict(seen.state.view.streams[0].section_times)
    assert taken == {section: pytest.approx(35.0, abs=1.5)}


@pytest.mark.parametrize("lag_s", [0.0, 8.0])
@pytest.mark.parametrize(("section", "limit_s"), [("checkpoint", 600.0), ("eval", 1800.0)])
def test_a_suspension_in_a_pause_that_is_over_before_the_watcher_wakes_is_none_of_it(
    section: str, limit_s: float, lag_s: float
) -> None:
    world = World(order_of({}, steps=900), alive_every_s=5).boot().steps(20, step_s=5.0)
    for rank in world.ranks:
        rank.enter(section)
        rank.spend(1.0)
    world.suspend(10_800.0)
    (since, until) = world.suspended.pop()
    world.suspended.append((since, until + lag_s))
    for rank in world.ranks:
        rank.spend(2.0)
        rank.say(section, dt=10_803.0)
        rank.enter(None)
    seen = watch(world.steps(20, step_s=5.0).pause(section, 2_000.0), interval_s=1.0)
    (halt,) = seen.halts
    assert (halt.detector, halt.section, halt.threshold) == ("section_deadline", section, limit_s)
