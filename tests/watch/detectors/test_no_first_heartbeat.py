"""D2: start-up has three deadlines."""

from typing import Any

import pytest

from gonogo.contract.finding import Severity, Source
from gonogo.contract.outcome import Detector
from gonogo.planning.resolve import load_train_config, resolve_plan
from gonogo.planning.source import bundled_plan
from gonogo.watch import armed
from gonogo.watch.detectors.no_first_heartbeat import NoFirstHeartbeat, _missing_text
from gonogo.watch.registry import versions
from gonogo.watch.view import Run, View
from tests.watch.standing import NOW, halts, look, standing
from tests.watch.streams import EPOCH, T0, World, order_of, watch, without_sections

COMPILED = resolve_plan(bundled_plan("m7c-125m"), {"train.engine.compile": True}).train


def test_a_rank_that_never_speaks_halts_after_the_limit_of_exec() -> None:
    world = World(order_of({}))
    world.alive()
    world.ranks[0].mono += 3.0
    world.ranks[0].say("boot", **world.order.identity.model_dump(exclude_none=True))
    world.ranks[0].spend(130.0)
    (finding,) = watch(world, interval_s=1.0).halts
    assert (finding.detector, finding.rank) == ("no_first_heartbeat", 1)
    assert 120.0 < finding.at - EPOCH <= 122.0


@pytest.mark.parametrize(
    ("settings", "seen", "limit_s"),
    [
        ({}, False, 300.0),
        ({}, True, 120.0),
        ({"no_first_heartbeat": {"exec_s": 150.0}}, False, 150.0),
    ],
)
def test_a_rank_of_another_node_may_be_started_later_until_somebody_sees_it(
    settings: dict[str, Any], seen: bool, limit_s: float
) -> None:
    world = World(order_of(settings, nodes=2))
    world.ranks[0].mono += 3.0
    world.ranks[0].say("boot", **world.order.identity.model_dump(exclude_none=True))
    if seen:
        world.probe(1, "alive")
    world.ranks[0].enter("data")
    world.ranks[0].spend(320.0)
    (finding,) = watch(world, interval_s=1.0).halts
    assert (finding.detector, finding.rank) == ("no_first_heartbeat", 1)
    assert finding.threshold == limit_s
    assert limit_s < (finding.value or 0) <= limit_s + 2.0


def test_nothing_at_all_is_told_by_the_number_of_ticks() -> None:
    world = World(order_of({}))
    world.ranks[0].mono += 130.0
    found = watch(world, interval_s=1.0, check_law=True)
    assert found.halted() == [("no_first_heartbeat", 0, None)]
    assert len(found.ticks) == 1


def test_boot_has_its_own_limit() -> None:
    world = World(order_of({})).boot()
    for rank in world.ranks:
        rank.enter("boot")
    world.ranks[0].collective_seq += 1
    for rank in world.ranks:
        rank.spend(310.0)
    (finding,) = watch(world, interval_s=1.0).halts
    assert (finding.detector, finding.section) == ("no_first_heartbeat", "boot")
    assert finding.rank == 1
    assert 300.0 < (finding.value or 0) <= 302.0


@pytest.mark.parametrize(
    ("world_size", "silent", "steps", "rank"),
    [(2, (1,), 0, 1), (2, (0,), 0, 0), (4, (2,), 0, 2), (4, (1, 2), 0, None), (2, (1,), 1, None)],
    ids=["rank 1", "rank 0", "one of four", "two of four", "in the first step"],
)
def test_who_waits_in_boot_for_a_rank_without_a_line_is_not_the_culprit(
    world_size: int, silent: tuple[int, ...], steps: int, rank: int | None
) -> None:
    """A command may be mute, so no limit of its first line ends it; the others wait for `.GO`."""
    order = order_of({}, world_size=world_size, command=["torchrun", "train.py"], entry="train")
    world = World(order)
    speaking = [row for row in world.ranks if row.rank not in silent]
    for row in speaking:
        row.mono += 3.0
        row.say("boot", **order.identity.model_dump(exclude_none=True))
        for _ in range(steps):
            row.step += 1
            row.enter("forward")
            row.say("step_start")
        row.spend(1_810.0)
    (finding,) = watch(world, interval_s=1.0).halts
    assert (finding.detector, finding.rank) == ("no_first_heartbeat", rank)
    ranks = ", ".join(map(str, silent))
    assert f"; nothing was ever heard of rank {ranks}: unless it hangs" in finding.text


@pytest.mark.parametrize("world_size", [1, 4])
@pytest.mark.parametrize(
    "program",
    [{"command": ["torchrun", "train.py"], "entry": None}, {"entry": "train.py"}],
    ids=["a command", "an entry"],
)
def test_a_program_whose_ranks_have_all_spoken_may_prepare_its_data_for_half_an_hour(
    program: dict[str, Any], world_size: int
) -> None:
    """A callback attaches as it is made: texts are tokenised in boot, before the first step."""
    order = order_of({}, world_size=world_size, **program)
    world = World(order, alive_every_s=5.0).boot()
    for rank in world.ranks:
        rank.enter("boot")
        rank.spend(1_700.0)
        rank.enter(None)
    assert watch(world.steps(40), interval_s=1.0).findings == []


@pytest.mark.parametrize(
    "program",
    [{"command": ["torchrun", "train.py"], "entry": None}, {"entry": "train.py"}],
    ids=["a command", "an entry"],
)
def test_who_waits_in_boot_for_a_rank_that_attaches_later_has_as_long_as_that(
    program: dict[str, Any],
) -> None:
    """Rank 0 downloads and tokenises for all before it attaches; the others attach at once."""
    world = World(order_of({}, world_size=4, **program), alive_every_s=5.0)
    world.ranks[0].mono += 1_700.0
    for rank in world.ranks:
        rank.say("boot", **world.order.identity.model_dump(exclude_none=True), backend="DDP")
    world.meet()
    for rank in world.ranks:
        rank.enter(None)
    world.alive()
    assert watch(world.steps(40), interval_s=1.0).halts == []


@pytest.mark.parametrize(
    ("settings", "limit_s", "source"),
    [({}, 1_800.0, Source.DEFAULT), ({"boot_s": 120.0}, 120.0, Source.PLAN)],
    ids=["nothing said", "the plan says"],
)
def test_a_command_that_hangs_in_boot_is_halted_all_the_same(
    settings: dict[str, Any], limit_s: float, source: Source
) -> None:
    order = order_of({"no_first_heartbeat": settings}, command=["torchrun", "train.py"])
    world = World(order, alive_every_s=5.0).boot()
    for rank in world.ranks:
        rank.enter("boot")
        rank.spend(1_900.0)
    (finding,) = watch(world, interval_s=1.0).halts
    assert (finding.detector, finding.section) == ("no_first_heartbeat", "boot")
    assert (finding.threshold, finding.source) == (limit_s, source)
    assert limit_s < (finding.value or 0) <= limit_s + 2.0


def test_a_rank_that_is_silent_while_it_prepares_has_the_same_time() -> None:
    """A tokenizer in C holds the interpreter; the peers, who wait, go on speaking."""
    world = World(order_of({}, command=["torchrun", "train.py"]), alive_every_s=5.0).boot()
    for rank in world.ranks:
        rank.enter("boot")
    world.ranks[0].spend(900.0)
    world.ranks[1].mono += 900.0
    for rank in world.ranks:
        rank.enter(None)
    assert watch(world.steps(40), interval_s=1.0).halts == []


def test_who_boots_for_too_long_while_all_have_spoken_is_named_alone() -> None:
    (finding,) = look(NoFirstHeartbeat, [standing("boot", for_s=301.0, steps=0, started_mono=None)])
    assert (finding.rank, finding.section) == (0, "boot")
    assert finding.text.endswith("rank 0 stands in boot")


@pytest.mark.parametrize(
    ("train", "limit_s", "first_step_s"),
    [
        ({}, 900.0, 950.0),
        (load_train_config("demo"), 900.0, 950.0),
        (load_train_config("m7c_125m"), 900.0, 950.0),
        (COMPILED, 1800.0, 1850.0),
        ({"engine": None}, 900.0, 950.0),
    ],
    ids=["nothing said", "demo", "m7c_125m", "m7c_125m compiled", "no engine"],
)
def test_the_first_step_has_its_own_limit(
    train: dict[str, object], limit_s: float, first_step_s: float
) -> None:
    world = World(order_of({}, train=train), alive_every_s=5).boot()
    world.open_step()
    world.hang(1, "backward", first_step_s)
    (finding,) = watch(world, interval_s=1.0).halts
    assert (finding.detector, finding.rank, finding.step) == ("no_first_heartbeat", 1, 1)
    assert finding.threshold == limit_s
    assert limit_s < (finding.value or 0) <= limit_s + 2


def test_a_plans_limit_of_the_first_step_beats_that_of_compilation() -> None:
    order = order_of({"no_first_heartbeat": {"first_step_s": 100}}, train=COMPILED)
    world = World(order).boot()
    world.open_step()
    world.hang(0, "forward", 120.0)
    (finding,) = watch(world, interval_s=1.0).halts
    assert (finding.threshold, finding.source) == (100, Source.PLAN)


@pytest.mark.parametrize(
    ("took_s", "settings", "found"),
    [(1700.0, {}, []), (1900.0, {}, [1800.0]), (1700.0, {"first_step_s": 900}, [900.0])],
    ids=["in time", "too late", "the plan says less"],
)
@pytest.mark.parametrize("section", ["data", "forward"])
def test_the_first_step_of_a_users_program_has_the_time_of_one_that_compiles(
    section: str, took_s: float, settings: dict[str, float], found: list[float]
) -> None:
    """It may compile, or pass over the batches that it was trained on before it was resumed."""
    watched = {"no_first_heartbeat": settings}
    order = order_of(watched, steps=540, resume_step=500, entry="train.py", detectors=versions())
    world = World(order, alive_every_s=5.0).boot()
    world.open_step(data_s=took_s if section == "data" else 0.01)
    for rank in world.ranks:
        rank.enter("forward")
        rank.spend(took_s if section == "forward" else 0.5)
    world.compute()
    world.close_step(grad_norm=1.0)
    halts = watch(world.steps(5), interval_s=1.0).halts
    assert [row.threshold for row in halts if row.detector == "no_first_heartbeat"] == found
    assert bool(halts) == bool(found)


def test_ten_minutes_of_compilation_are_silent() -> None:
    world = World(order_of({}), alive_every_s=5).boot().steps(1, step_s=600.0).steps(5)
    assert watch(world, interval_s=1.0).findings == []


def test_a_rank_that_names_no_sections_may_boot_for_long() -> None:
    world = World(order_of({}, world_size=1))
    (rank,) = world.ranks
    rank.section = None
    rank.say("boot", **world.order.identity.model_dump(exclude_none=True))
    for _ in range(200):
        rank.mono += 5.0
        rank.say("beat")
    assert watch(world, interval_s=1.0).halts == []


def test_it_is_disarmed_by_the_first_step_end() -> None:
    before = World(order_of()).boot()
    assert armed(watch(before).state)[Detector.NO_FIRST_HEARTBEAT]
    assert not armed(watch(World(order_of()).boot().steps(1)).state)[Detector.NO_FIRST_HEARTBEAT]


@pytest.mark.parametrize(
    ("settings", "command", "found"),
    [
        ({}, None, [120.0]),
        ({}, ["program"], []),
        ({"exec_s": 120.0}, ["program"], [120.0]),
        ({"boot_s": 60.0}, ["program"], []),
    ],
    ids=["a trainer of ours", "a command", "a command that shall speak", "another setting"],
)
def test_a_command_may_be_mute_unless_the_plan_says_when_it_speaks(
    settings: dict[str, float], command: list[str] | None, found: list[float]
) -> None:
    order = order_of({"no_first_heartbeat": settings})
    order = order.model_copy(update={"command": command})
    ranks = [standing("forward", for_s=1.0)]
    seen = look(NoFirstHeartbeat, ranks, order=order, started_mono=NOW - 120.25)
    assert halts(seen) == found
    assert look(NoFirstHeartbeat, ranks, order=order, started_mono=NOW - 120.0) == []


@pytest.mark.parametrize(
    ("section", "told", "found"),
    [
        ("forward", {"started_mono": NOW - 900.0}, []),
        ("forward", {"started_mono": NOW - 900.25}, [900.0]),
        ("forward", {"started_mono": NOW - 900.25, "heard_mono": NOW - 99.0}, []),
        ("forward", {"started_mono": NOW - 900.25, "steps": 1}, []),
        ("forward", {"started_mono": NOW - 900.25, "labelled": False}, []),
        ("boot", {"started_mono": None, "section_mono": NOW - 300.0}, []),
        ("boot", {"started_mono": None, "section_mono": NOW - 300.25}, [300.0]),
        ("data", {"started_mono": None, "section_mono": NOW - 999.0}, []),
    ],
    ids=[
        "at the limit of the first step",
        "beyond it",
        "all silent",
        "has ended a step",
        "names nothing",
        "at the limit of boot",
        "beyond the limit of boot",
        "in another section",
    ],
)
def test_each_limit_has_to_be_passed(
    section: str, told: dict[str, Any], found: list[float]
) -> None:
    rank = standing(section, for_s=1.0, **{"steps": 0, **told})
    assert halts(look(NoFirstHeartbeat, [rank], started_mono=NOW - 1000.0)) == found


@pytest.mark.parametrize("section", ["forward", "backward", "optimizer"])
@pytest.mark.parametrize(("for_s", "found"), [(900.0, []), (900.25, [900.0])])
def test_a_first_step_whose_opening_line_was_not_read_has_its_limit_all_the_same(
    section: str, for_s: float, found: list[float]
) -> None:
    rank = standing(section, for_s=for_s, steps=0, started_mono=None, completed=1, step=1)
    assert halts(look(NoFirstHeartbeat, [rank])) == found


@pytest.mark.parametrize(("late_s", "found"), [(0.0, 1), (0.75, 1), (1.0, 0)])
def test_a_late_tick_misses_no_deadline(late_s: float, found: int) -> None:
    world = World(order_of({}, world_size=1))
    world.alive()
    ticks = [(T0, 0.0), (T0 + 121.0, late_s)]
    assert len(watch(world, ticking=lambda end: ticks).halts) == found


@pytest.mark.parametrize(("seen_s", "found"), [(120.0, 0), (121.0, 1)])
def test_a_watcher_that_sleeps_again_and_again_counts_what_it_was_awake(
    seen_s: float, found: int
) -> None:
    """Rank 1 never says a line; of each hundred seconds the watcher sleeps fifty."""
    world = World(order_of({}))
    world.ranks[0].say("boot")
    world.ranks[0].spend(2.0 * seen_s)
    world.ranks = world.ranks[:1]
    ticks = [(T0, 0.0)]
    ticks += [(T0 + 100.0 * number, 50.0) for number in range(1, int(seen_s // 50.0) + 1)]
    ticks.append((ticks[-1][0] + seen_s % 50.0, 0.0))
    halted = watch(world, ticking=lambda end: ticks).halts
    assert [(row.detector, row.rank) for row in halted] == [("no_first_heartbeat", 1)] * found


@pytest.mark.parametrize(("section", "where"), [("forward", "forward"), (None, "no section")])
def test_it_says_where_the_rank_stands(section: str | None, where: str) -> None:
    rank = standing(section, for_s=1.0, steps=0)
    (halt,) = look(NoFirstHeartbeat, [rank], started_mono=NOW - 1000.0)
    assert halt.text.endswith(f"rank 0 stands in {where}")


@pytest.mark.parametrize(
    ("changes", "advised"),
    [
        ({}, False),
        ({"entry": "train.py"}, True),
        ({"command": ["program"]}, True),
    ],
    ids=["ours", "somebody's script", "a command that shall speak"],
)
def test_who_never_speaks_and_is_not_ours_may_never_have_attached(
    changes: dict[str, Any], advised: bool
) -> None:
    order = order_of({"no_first_heartbeat": {"exec_s": 120.0}}).model_copy(update=changes)
    seen = look(NoFirstHeartbeat, [], order=order, started_mono=NOW - 121.0)
    (finding,) = seen
    assert ("add gonogo.trainer.attach(), or run it as `command`" in finding.text) is advised


@pytest.mark.parametrize(
    ("settings", "entry", "silent_s", "found"),
    [
        ({}, "nsa.train", 120.25, [(Severity.HALT, 120.0)]),
        ({}, "train.py", 120.0, []),
        ({}, "train.py", 120.25, [(Severity.WARN, 120.0)]),
        ({}, "train.py", 1800.0, [(Severity.WARN, 120.0)]),
        ({}, "train.py", 1800.25, [(Severity.HALT, 1800.0)]),
        ({"exec_s": 200.0}, "train.py", 200.0, []),
        ({"exec_s": 200.0}, "train.py", 200.25, [(Severity.HALT, 200.0)]),
    ],
)
@pytest.mark.parametrize("spoke", [False, True], ids=["none spoke", "one did"])
def test_a_program_that_prepares_its_data_before_it_attaches_has_half_an_hour(
    settings: dict[str, float],
    entry: str,
    silent_s: float,
    found: list[tuple[Severity, float]],
    spoke: bool,
) -> None:
    """A callback attaches as it is made, with the trainer: texts are tokenised before that."""
    order = order_of({"no_first_heartbeat": settings}).model_copy(update={"entry": entry})
    ranks = [standing("boot", for_s=1.0, steps=0, started_mono=None)] if spoke else []
    seen = look(NoFirstHeartbeat, ranks, order=order, started_mono=NOW - silent_s)
    assert [(row.severity, row.threshold) for row in seen] == found
    assert {row.rank for row in seen} <= {1 if spoke else 0}


def evaluated_first(
    eval_s: float, first_s: float, *, alone: bool = False, reopens: bool = True
) -> World:
    """A run that evaluates before its first step; `alone`: rank 0 for all."""
    world = World(order_of({}), alive_every_s=5.0).boot()
    for rank in world.ranks:
        rank.step = 1
        rank.say("step_start")
        if rank.rank == 0 or not alone:
            rank.enter("eval")
            rank.spend(eval_s)
            rank.say("eval", val_loss=5.5)
            rank.enter(None)
    world.meet()
    for rank in world.ranks:
        if reopens:
            rank.say("step_start")
        rank.in_step = True
        rank.enter("forward")
        rank.spend(first_s)
    world.close_step()
    return world.steps(3)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("reopens", [False, True])
def test_an_evaluation_before_the_first_step_is_no_part_of_it(alone: bool, reopens: bool) -> None:
    world = evaluated_first(1_200.0, 600.0, alone=alone, reopens=reopens)
    found = watch(world, interval_s=1.0)
    assert found.halts == []
    assert found.state.streams[0].first_s == pytest.approx(600.0, abs=5.0)


@pytest.mark.parametrize("alone", [False, True])
def test_a_first_step_that_hangs_after_an_evaluation_has_its_own_limit(alone: bool) -> None:
    (halt,) = watch(evaluated_first(1_200.0, 1_000.0, alone=alone), interval_s=1.0).halts
    assert (halt.detector, halt.section) == ("no_first_heartbeat", "forward")
    assert halt.value == pytest.approx(900.0, abs=5.0)


@pytest.mark.parametrize("alone", [False, True])
def test_an_evaluation_before_the_first_step_has_its_own_limit(alone: bool) -> None:
    (halt,) = watch(evaluated_first(2_000.0, 1.0, alone=alone), interval_s=1.0).halts
    assert (halt.detector, halt.rank) == ("section_deadline", 0 if alone else None)
    assert (halt.section, halt.threshold) == ("eval", 1_800.0)


def resumed() -> World:
    """Goes on after step 500; up to its first step the ranks say that they are at step 0."""
    world = World(order_of({}, steps=540), alive_every_s=5.0).boot()
    for rank in world.ranks:
        rank.step = 500
    return world


def test_the_first_step_after_a_resume_may_take_as_long_as_any_first_step() -> None:
    """Boot lines say step 0 before the first one: no step ended between that and step 501."""
    compiled = watch(resumed().steps(1, step_s=600.0).steps(10))
    skipped = watch(resumed().steps(1, data_s=600.0).steps(10))
    assert compiled.halts == skipped.halts == []
    stream = compiled.state.view.streams[0]
    assert (stream.from_step, stream.completed, stream.completed_steps) == (500, 511, 11)


def test_a_rank_that_hangs_in_the_first_step_after_a_resume_is_named() -> None:
    world = resumed()
    world.open_step()
    found = watch(world.hang(1, "forward", 1000.0))
    assert found.halted() == [("no_first_heartbeat", 1, "forward")]


def test_the_second_step_after_a_resume_has_the_early_limit() -> None:
    world = resumed().steps(1)
    world.open_step()
    found = watch(world.hang(1, "forward", 400.0))
    assert found.halted() == [("stall", 1, "forward")]


@pytest.mark.parametrize(("missing", "more"), [(1, False), (8, False), (9, True)])
def test_eight_ranks_without_a_line_are_listed_and_more_are_others(
    missing: int, more: bool
) -> None:
    view = View(run=Run(order=order_of({}, world_size=16)))
    text = _missing_text(view, list(range(missing)))
    assert (" and others" in text) is more
    assert ("rank 0, 1, 2, 3, 4, 5, 6, 7" in text) is (missing >= 8)
    assert "8" not in text


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ("nsa.train", [(Severity.HALT, 120.0)]),
        ("train.py", [(Severity.WARN, 120.0), (Severity.HALT, 1800.0)]),
    ],
)
def test_a_rank_without_a_line_that_ends_nothing_hides_no_first_step(
    entry: str, found: list[tuple[Severity, float]]
) -> None:
    order = order_of({}).model_copy(update={"entry": entry})
    rank = standing("forward", for_s=1.0, steps=0, started_mono=NOW - 1800.25)
    seen = look(NoFirstHeartbeat, [rank], order=order, started_mono=NOW - 1750.0)
    assert [(row.severity, row.threshold) for row in seen] == found


@pytest.mark.parametrize(
    ("step", "began_s", "found"),
    [(501, 1.0, [900.0]), (502, 1.0, []), (502, 900.0, []), (502, 900.25, [900.0])],
)
def test_who_tells_only_in_which_step_it_is_has_ended_those_before(
    step: int, began_s: float, found: list[float]
) -> None:
    told: dict[str, Any] = {
        "started_mono": NOW - 2000.0,
        "from_step": 500,
        "step": step,
        "steps": 0,
    }
    rank = standing("forward", for_s=1.0, **{**told, "advanced_mono": NOW - began_s})
    assert halts(look(NoFirstHeartbeat, [rank], started_mono=NOW - 3000.0)) == found


@pytest.mark.parametrize(
    ("top", "first_s", "began_s", "found"),
    [
        (40, 1.0, 3600.0, []),
        (40, 1.0, 3600.25, [3600.0]),
        (40, 2000.0, 4800.0, []),
        (40, 2000.0, 4800.25, [4800.0]),
        (0, 0.0, 9000.0, []),
        (100, 1.0, 9000.0, []),
    ],
    ids=["in time", "too late", "a long one", "too late for that", "never a step", "all steps"],
)
def test_who_names_no_sections_has_to_show_a_step_after_a_restart_in_place(
    top: int, first_s: float, began_s: float, found: list[float]
) -> None:
    """How long such a program takes to show a step at all nobody knows."""
    order = order_of({}, steps=100, world_size=1, entry="train.py")
    told: dict[str, Any] = {"labelled": False, "computes": False, "started_mono": None}
    told |= {"steps": 0, "step": 30, "from_step": 30, "top_step": top, "first_s": first_s}
    rank = standing(None, for_s=began_s, **told)
    seen = look(NoFirstHeartbeat, [rank], order=order, started_mono=NOW - 20_000.0)
    assert halts(seen) == found


def test_one_that_hangs_in_its_first_step_after_a_restart_is_halted() -> None:
    order = order_of({}, steps=100, entry="train.py")
    world = World(order, alive_every_s=20.0).boot().steps(40)
    for rank in world.ranks:
        rank.boot, rank.seq, rank.section_seq = f"again{rank.rank}", 0, 0
    world.boot()
    for rank in world.ranks:
        rank.step = 30
    world.open_step()
    world.hang(1, "forward", 4000.0)
    for rank in world.ranks:
        rank.lines = [without_sections(said) for said in rank.lines]
    assert [row[0] for row in watch(world, interval_s=10.0).halted()] == ["no_first_heartbeat"]
