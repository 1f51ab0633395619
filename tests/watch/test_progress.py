"""Progress: the table of patience decides when a run that stands is halted, and by which rule."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.order import Order
from gonogo.contract.patience import Place, bounded
from gonogo.contract.tick import ProcessState
from gonogo.timeline.rank import RankStream
from gonogo.watch.detectors.culprit import COLLECTIVES, name_culprit
from gonogo.watch.detectors.deadlines import Deadline, NoFirstHeartbeat, SectionDeadline, Stall
from gonogo.watch.processes import Process, Processes
from gonogo.watch.progress import place_of, standstill
from gonogo.watch.view import Run, View
from tests.watch.standing import NOW, halts, look, standing, suspects
from tests.watch.streams import T0, World, order_of, watch

RULES: tuple[type[Deadline], ...] = (NoFirstHeartbeat, Stall, SectionDeadline)
WHOLE = {"steps": 1000}


def look_all(
    streams: list[RankStream], settings: dict[str, Any] | None = None, **known: Any
) -> list[Finding]:
    """Return what the three rules find."""
    return [row for rule in RULES for row in look(rule, streams, settings, **known)]


def attached(**fields: Any) -> Order:
    """Return the order of a user's program that calls `gonogo.trainer`."""
    return order_of({}, entry="train.py", **{"steps": 1000, "world_size": 1, **fields})


@pytest.mark.parametrize(
    ("rank", "detector", "limit_s"),
    [
        (standing("backward", for_s=0.0), "stall", 60.0),
        (standing("backward", for_s=0.0, step_s=20.0), "stall", 160.0),
        (standing("forward", for_s=0.0, steps=5), "stall", 300.0),
        (standing("forward", for_s=0.0, steps=5, step_s=50.0), "stall", 500.0),
        (standing("data", for_s=0.0), "section_deadline", 300.0),
        (standing("checkpoint", for_s=0.0), "section_deadline", 600.0),
        (
            standing("checkpoint", for_s=0.0, section_times=(("checkpoint", 100.0),)),
            "section_deadline",
            1000.0,
        ),
        (standing("checkpoint", for_s=0.0, saved_s=(200.0,)), "section_deadline", 2000.0),
        (standing("eval", for_s=0.0), "section_deadline", 1800.0),
        (standing("log", for_s=0.0), "section_deadline", 60.0),
        (standing(None, for_s=0.0), "section_deadline", 60.0),
        (standing(None, for_s=0.0, step_s=40.0), "section_deadline", 120.0),
        (standing(None, for_s=0.0, steps=1000), "section_deadline", 600.0),
        (standing("episodes", for_s=0.0), "section_deadline", 60.0),
        (standing("boot", for_s=0.0, steps=0, started_mono=None), "no_first_heartbeat", 300.0),
        (standing("forward", for_s=0.0, steps=0), "no_first_heartbeat", 900.0),
        (standing(None, for_s=0.0, labelled=False), "stall", 1800.0),
        (standing(None, for_s=0.0, labelled=False, step_s=2000.0), "stall", 3000.0),
        (standing(None, for_s=0.0, labelled=False, steps=1000), "stall", 14_400.0),
        (
            standing(None, for_s=0.0, labelled=False, steps=0, top_step=7),
            "no_first_heartbeat",
            3600.0,
        ),
    ],
)  # fmt: skip
def test_a_place_halts_at_its_limit_and_not_before(
    rank: RankStream, detector: str, limit_s: float
) -> None:
    for stood_s, expected in ((limit_s - 0.25, []), (limit_s + 0.25, [limit_s])):
        since = NOW - stood_s
        rank.section_mono = rank.advanced_mono = rank.first_mono = since
        rank.started_mono = None if rank.started_mono is None else since
        rank.compute_s = stood_s
        found = look_all([rank], order=order_of({}, steps=1000, world_size=1))
        assert halts(found) == expected
        rows = [row for row in found if row.severity is Severity.HALT]
        assert {row.detector for row in rows} <= {detector}
        assert {row.rank for row in rows} <= {0}


def test_a_rank_without_a_step_or_a_section_has_no_limit() -> None:
    rank = standing(None, for_s=50_000.0, labelled=False, steps=0)
    assert look_all([rank], order=order_of({}, steps=1000, world_size=1)) == []


@pytest.mark.parametrize(
    ("section", "steps", "limit_s"),
    [("boot", 0, 1800.0), ("forward", 0, 1800.0), (None, 40, 300.0), ("backward", 40, 120.0)],
)
def test_a_users_program_has_its_own_column(
    section: str | None, steps: int, limit_s: float
) -> None:
    started = {"started_mono": None} if section == "boot" else {}
    rank = standing(section, for_s=limit_s + 0.25, steps=steps, **started)
    rank.started_mono = None if section == "boot" else NOW - limit_s - 0.25
    assert halts(look_all([rank], order=attached())) == [limit_s]


def test_what_a_users_program_does_outside_of_sections_lengthens_its_limit() -> None:
    rank = standing(None, for_s=370.0, longest_apart_s=250.0)
    assert look_all([rank], order=attached()) == []
    rank = standing(None, for_s=380.0, longest_apart_s=250.0)
    assert halts(look_all([rank], order=attached())) == [375.0]


def test_suspicion_comes_before_the_halt() -> None:
    assert suspects(look_all([standing("backward", for_s=10.25)], {})) == [10.0]
    assert suspects(look_all([standing("data", for_s=121.0)], {})) == [120.0]


@pytest.mark.parametrize("section", ["data", "checkpoint", "eval"])
def test_ranks_that_wait_have_the_limit_of_the_rank_that_they_wait_for(section: str) -> None:
    waiting = standing("backward", for_s=250.0, rank=1)
    assert halts(look_all([standing(section, for_s=250.0), waiting], {})) == []
    came_back = standing("forward", for_s=1.0)
    assert look_all([came_back, waiting], {}) == []


def test_a_peer_that_runs_ahead_does_not_hide_a_rank_that_stands() -> None:
    ahead = standing("forward", for_s=1.0, steps=110)
    (finding,) = [f for f in look_all([ahead, standing("backward", for_s=61.0, rank=1)], {})
                  if f.severity is Severity.HALT]  # fmt: skip
    assert (finding.detector, finding.rank, finding.section) == ("stall", 1, "backward")


def test_a_peer_that_has_just_gone_on_shows_that_lines_come_late() -> None:
    ahead = standing("forward", for_s=1.0, steps=60)
    assert halts(look_all([ahead, standing("backward", for_s=61.0, rank=1)], {})) == []


def test_going_from_section_to_section_is_no_progress() -> None:
    rank = standing("data", for_s=1.0, advanced_mono=NOW - 6000.0)
    assert look_all([rank], {}) == []
    rank.advanced_mono = NOW - 7000.0
    (finding,) = look_all([rank], {})
    assert (finding.detector, finding.severity) == ("section_deadline", Severity.HALT)


@given(
    step_s=st.floats(0.01, 1000.0),
    longer=st.floats(1.0, 10.0),
    section=st.sampled_from(["forward", "data", "checkpoint", "eval", "log", None]),
    steps=st.integers(1, 100),
)
def test_a_limit_never_falls_when_steps_take_longer(
    step_s: float, longer: float, section: str | None, steps: int
) -> None:
    def limit_s(seconds: float) -> float:
        rank = standing(section, for_s=1.0, steps=steps, step_s=seconds, first_s=seconds)
        view = View(run=Run(order=order_of({}, steps=1000, world_size=1)), streams={0: rank})
        group = standstill(view, NOW)
        assert group is not None
        return group.stays[0].limit.seconds

    assert limit_s(step_s * longer) >= limit_s(step_s)


def test_a_process_that_was_started_again_is_at_its_start() -> None:
    rank = standing("backward", for_s=100.0, heard_mono=NOW - 100.0, pid=7)
    view = View(run=Run(order=order_of({})), streams={0: rank})
    assert place_of(view, rank) is Place.COMPUTE
    world = World(order_of({}, steps=1000, world_size=1)).boot().steps(40)
    world.ranks[0].mono += 2.0
    world.probe(0, "alive", pid=999)
    view = watch(world).state.view
    assert place_of(view, view.streams[0]) is Place.START


# A made-up run: lines, ticks and probes.


def test_a_rank_that_never_sends_a_line_is_named() -> None:
    world = World(order_of({}), alive_every_s=5.0)
    world.ranks[1].stopped = True
    world.boot()
    world.ranks[0].spend(400.0)
    (halt,) = watch(world, interval_s=1.0).halts
    assert (halt.detector, halt.rank, halt.threshold) == ("no_first_heartbeat", 1, 120.0)


def test_all_ranks_silent_at_once_is_unknown_until_a_quarter_of_an_hour() -> None:
    ranks = [standing("backward", for_s=800.0, rank=n, heard_mono=NOW - 800.0) for n in (0, 1)]
    alive = watch(World(order_of()).boot()).state.view.processes
    assert halts(look_all(ranks, {}, processes=alive)) == []
    for rank in ranks:
        rank.section_mono = rank.advanced_mono = rank.heard_mono = NOW - 901.0
    assert halts(look_all(ranks, {}, processes=alive)) == [60.0]
    assert halts(look_all(ranks, {}, processes=Processes())) == []


def test_a_stopped_process_corroborates_a_stall() -> None:
    world = World(order_of({}), alive_every_s=5.0).boot().steps(40)
    world.open_step()
    world.hang(1, "backward", 2.0)
    world.probe(1, "stopped")
    world.ranks[1].stopped = True
    for rank in world.ranks:
        rank.spend(90.0)
    (halt,) = watch(world).halts
    assert (halt.detector, halt.rank) == ("stall", 1)
    assert halt.threshold == 15.0


@pytest.mark.parametrize("idle", [True, False])
def test_unchanged_stacks_of_an_idle_minority_corroborate_a_stall(idle: bool) -> None:
    world = World(order_of({})).boot().steps(40)
    world.open_step()
    began = world.mono
    world.hang(1, "backward", 40.0)
    for at_s in (12.0, 18.0):
        rows = [
            {"rank": 0, "digest": "a", "waiting": True, "cpu_s": at_s},
            {"rank": 1, "digest": "b", "waiting": False, "cpu_s": 0.0 if idle else at_s},
        ]
        world.probes.append((began + at_s, {"stacks": rows}))
    found = watch(world).halts
    assert [(halt.rank, halt.threshold) for halt in found] == ([(1, 15.0)] if idle else [])


@pytest.mark.parametrize("waits", [None, True])
def test_flight_recorders_show_who_stands_outside_where_no_native_stack_could_be_read(
    waits: bool | None,
) -> None:
    """A busy host leaves no time for native frames; a stack that waits contradicts the recorder."""
    world = World(order_of({})).boot().steps(40)
    world.open_step()
    began = world.mono
    world.hang(1, "backward", 40.0)
    for at_s in (12.0, 18.0):
        rows = [
            {"rank": 0, "digest": "a", "cpu_s": 0.0},
            {"rank": 1, "digest": "b", "waiting": waits, "cpu_s": 0.0},
        ]
        world.probes.append((began + at_s, {"stacks": rows}))
    calls = {"behind": [1], "asked_mono": began + 12.0, "text": "rank 1 did not"}
    world.probes.append((began + 13.0, {"observations": {COLLECTIVES: calls}}))
    found = watch(world).halts
    assert [(halt.rank, halt.threshold) for halt in found] == ([] if waits else [(1, 15.0)])


@pytest.mark.parametrize(("works", "halt_s"), [(False, 120.0), (True, None)])
def test_one_rank_that_idles_where_it_was_is_halted_after_two_minutes(
    works: bool, halt_s: float | None
) -> None:
    """It waits for no other rank: only its own stack can show that it stands."""
    world = World(order_of({}, world_size=1)).boot().steps(10)
    world.open_step()
    began = world.mono
    world.hang(0, "forward", 200.0)
    for at_s in (30.0, 35.0, 95.0, 155.0):
        row = {"rank": 0, "digest": "a", "waiting": False, "cpu_s": at_s if works else 0.0}
        world.probes.append((began + at_s, {"stacks": [row]}))
    assert [halt.threshold for halt in watch(world).halts] == ([] if halt_s is None else [halt_s])


def test_a_run_that_is_done_and_does_not_exit_is_warned_of_and_halted() -> None:
    world = World(order_of({}, steps=10), alive_every_s=5.0).boot().steps(10)
    for rank in world.ranks:
        rank.say("done")
    done = world.mono
    world.ranks[0].mono = done + 1900.0
    seen = watch(world, interval_s=5.0)
    rows = [(f.severity, f.threshold) for f in seen.findings if f.detector == "section_deadline"]
    assert rows == [(Severity.WARN, 600.0), (Severity.HALT, 1800.0)]
    assert seen.halts[0].text.endswith("(limit 1800 s), and the ranks did not exit")


def test_one_bound_limits_the_first_step_as_well() -> None:
    order = order_of({}, world_size=1, steps=1000)
    order = order.model_copy(update={"patience": bounded(order.limits_of_places(), 20.0)})
    for rank in (
        standing("forward", for_s=21.0, steps=0),
        standing(None, for_s=21.0, steps=0, labelled=False),
        standing("eval", for_s=21.0),
        standing("backward", for_s=21.0, step_s=100.0),
    ):
        assert 20.0 in halts(look_all([rank], order=order))


def test_the_culprit_is_one_of_those_who_stand() -> None:
    view = watch(World(order_of()).boot().steps(5)).state.view
    assert name_culprit(view, [], T0) is None


@pytest.mark.parametrize(("heard_ago_s", "halted"), [(90.0, []), (110.0, ["section_deadline"])])
def test_ranks_of_a_node_that_nobody_hears_count_until_the_others_have_gone_on(
    heard_ago_s: float, halted: list[str]
) -> None:
    """The silent rank may still save; once the others have ended a step, it has saved."""
    near = standing(None, for_s=100.0)
    far = standing("checkpoint", for_s=300.0, rank=1)
    far.heard_mono = NOW - heard_ago_s
    order = order_of({}, steps=1000, world_size=2, nodes=2)
    found = look_all([near, far], order=order)
    assert [row.detector for row in found if row.severity is Severity.HALT] == halted


@pytest.mark.parametrize(
    ("gone", "agent", "who"),
    [
        ([], "alive", "the ranks"),
        ([0], "alive", "rank 1"),
        ([0, 1], "alive", "the launcher"),
        ([0, 1], "dead", None),
    ],
)
def test_who_does_not_exit_is_named(gone: list[int], agent: str, who: str | None) -> None:
    world = World(order_of({}, steps=10), alive_every_s=5.0).boot().steps(10)
    for rank in world.ranks:
        rank.say("done")
    world.probes.append((world.mono, {"agent": {"pid": 99, "state": agent, "code": 0}}))
    for number in gone:
        world.probe(number, "dead", code=0)
    world.ranks[0].mono += 1900.0
    found = [row.text for row in watch(world, interval_s=5.0).halts]
    assert [text.rpartition(", and ")[2] for text in found] == (
        [] if who is None else [f"{who} did not exit"]
    )


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, False),
        ({"entry": "train.py"}, True),
        (
            {
                "entry": None,
                "command": ["python"],
                "patience": bounded(order_of({}).limits_of_places(), 600.0),
            },
            False,
        ),
    ],
)
def test_a_program_that_may_never_have_attached_is_told_how(
    fields: dict[str, Any], told: bool
) -> None:
    world = World(order_of({}, **fields), alive_every_s=5.0)
    world.alive()
    for rank in world.ranks:
        rank.mono += 3600.0
    (halt,) = watch(world, interval_s=5.0).halts
    assert ("gonogo.trainer.attach()" in halt.text) is told


@pytest.mark.parametrize(("silent_s", "limits"), [(900.0, []), (900.25, [60.0])])
def test_a_silence_of_all_ranks_is_their_own_after_fifteen_minutes(
    silent_s: float, limits: list[float]
) -> None:
    row = standing("forward", for_s=1000.0, heard_mono=NOW - silent_s)
    alive = Processes(ranks={0: Process(state=ProcessState.ALIVE)})
    assert halts(look(Stall, [row], processes=alive)) == limits


def test_after_its_last_step_a_rank_may_go_from_section_to_section() -> None:
    row = standing("log", for_s=1.0, steps=1000, advanced_mono=NOW - 60_000.0)
    assert look(SectionDeadline, [row]) == []
    row = standing("log", for_s=1.0, steps=999, advanced_mono=NOW - 60_000.0)
    assert len(halts(look(SectionDeadline, [row]))) == 1


@pytest.mark.parametrize(
    ("section", "detector"),
    [("forward", "stall"), ("backward", "stall"), ("data", "section_deadline")],
)
def test_a_hang_is_found_and_named(section: str, detector: str) -> None:
    world = World(order_of()).boot().steps(20)
    world.open_step()
    world.hang(1, section, 60.0)
    (halt,) = watch(world).halts
    assert (halt.detector, halt.rank, halt.section, halt.step) == (detector, 1, section, 21)


def test_a_hang_is_found_within_its_limit() -> None:
    world = World(order_of()).boot().steps(20, step_s=0.25)
    world.open_step()
    stood = world.mono
    world.hang(1, "backward", 60.0)
    seen = watch(world)
    assert [halt.threshold for halt in seen.halts] == [5.0]
    assert seen.ticks[-1].mono - stood < 5.0 + 1.0
