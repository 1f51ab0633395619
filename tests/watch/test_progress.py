"""Progress: the table of patience decides when a run that stands is halted, and by which rule."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.order import Order
from gonogo.contract.watch import Place
from gonogo.timeline.rank import RankStream
from gonogo.watch.detectors.deadlines import (
    Deadline,
    NoFirstHeartbeat,
    SectionDeadline,
    Stall,
    place_of,
    standstill,
)
from gonogo.watch.view import Processes, Run, View
from tests.watch.standing import NOW, halts, look, standing, suspects
from tests.watch.streams import World, order_of, watch

RULES: tuple[type[Deadline], ...] = (NoFirstHeartbeat, Stall, SectionDeadline)


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
    (standing("forward", for_s=0.0, steps=5), "stall", 300.0),
    (standing("data", for_s=0.0), "section_deadline", 300.0),
    (standing("checkpoint", for_s=0.0), "section_deadline", 600.0),
    (
            standing("checkpoint", for_s=0.0, section_times=(("checkpoint", 100.0),)),
            "section_deadline",
            1000.0,
        ),
    (standing("eval", for_s=0.0), "section_deadline", 1800.0),
    (standing("log", for_s=0.0), "section_deadline", 60.0),
    (standing(None, for_s=0.0), "section_deadline", 60.0),
    (standing(None, for_s=0.0, steps=1000), "section_deadline", 600.0),
    (standing("boot", for_s=0.0, steps=0, started_mono=None), "no_first_heartbeat", 300.0),
    (standing("forward", for_s=0.0, steps=0), "no_first_heartbeat", 900.0),
    (standing(None, for_s=0.0, labelled=False), "stall", 1800.0),
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


def test_going_from_section_to_section_is_no_progress() -> None:
    rank = standing("data", for_s=1.0, advanced_mono=NOW - 6000.0)
    assert look_all([rank], {}) == []
    rank.advanced_mono = NOW - 7000.0
    (finding,) = look_all([rank], {})
    assert (finding.detector, finding.severity) == ("section_deadline", Severity.HALT)
    rank.advanced_mono = NOW - (finding.threshold or 0.0)
    assert look_all([rank], {}) == [], "exactly as long as allowed"


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
