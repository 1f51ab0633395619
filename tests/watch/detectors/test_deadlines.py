"""The silence of ranks, and places in which a run stands for longer than its limit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.order import Order
from gonogo.contract.records import ProcessState, StackProbe
from gonogo.contract.watch import Place
from gonogo.timeline.rank import RankStream
from gonogo.watch.detectors.culprit import COLLECTIVES
from gonogo.watch.detectors.deadlines import (
    AliveLost,
    Deadline,
    NoFirstHeartbeat,
    SectionDeadline,
    Stall,
    corroborated,
    place_of,
    standstill,
)
from gonogo.watch.fold import armed, start
from gonogo.watch.offline_fold import not_observed
from gonogo.watch.view import Observed, Process, Processes, Run, Stack, View
from tests.watch.detectors.host import disk, tell
from tests.watch.standing import NOW, halts, look, standing, suspects
from tests.watch.streams import World, order_of, watch


def unchanged(*waiting: bool | None) -> Processes:
    """Return two equal dumps of each rank, which uses no CPU."""
    return Processes(
        stacks={
            rank: tuple(
                Stack(mono=mono, probe=StackProbe(rank=rank, digest="a", cpu_s=0.0, waiting=waits))
                for mono in (NOW - 10.0, NOW)
            )
            for rank, waits in enumerate(waiting)
        }
    )


# D3: the silence of one rank, and of all.


def silent(section: str | None, for_s: float, **fields: Any) -> RankStream:
    """Return a rank that has sent no line for so long, since it entered its section."""
    return standing(section, for_s=for_s, heard_mono=NOW - for_s, **fields)


def peer() -> RankStream:
    """Return a rank that sends lines."""
    return standing("backward", for_s=1.0, rank=1)


def process(state: ProcessState, held_s: float) -> Processes:
    """Return a probe of rank 0."""
    return Processes(ranks={0: Process(state=state, held_mono=NOW - held_s)})


@pytest.mark.parametrize(
    ("section", "fields", "limit_s"),
    [
        ("forward", {}, 60.0), ("log", {}, 60.0), (None, {}, 60.0), ("data", {}, 300.0),
        ("checkpoint", {}, 600.0), ("eval", {}, 1800.0),
        ("boot", {"steps": 0, "started_mono": None}, 300.0), ("forward", {"steps": 0}, 900.0),
        (None, {"steps": 1000}, 600.0),
    ],
)  # fmt: skip
def test_a_silent_rank_halts_at_the_limit_of_its_place_when_its_peers_live(
    section: str | None, fields: dict[str, Any], limit_s: float
) -> None:
    assert halts(look(AliveLost, [silent(section, limit_s, **fields), peer()], {})) == []
    found = look(AliveLost, [silent(section, limit_s + 0.25, **fields), peer()], {})
    (halt,) = [finding for finding in found if finding.severity is Severity.HALT]
    assert (halt.detector, halt.rank, halt.section) == ("alive_lost", 0, section)
    assert halt.text.endswith(", and other ranks speak")
    assert [row.text.endswith("process is unknown") for row in found] == [True, False]


@pytest.mark.parametrize(
    ("state", "held_s", "expected"),
    [
        (ProcessState.STOPPED, 61.0, [60.0]), (ProcessState.STOPPED, 2.0, []),
        (ProcessState.DEAD, 1.0, []), (ProcessState.ALIVE, 61.0, []),
        (ProcessState.UNINTERRUPTIBLE, 61.0, []), (ProcessState.UNKNOWN, 61.0, []),
    ],
)  # fmt: skip
def test_all_ranks_silent_at_once_is_unknown_unless_a_process_is_stopped(
    state: ProcessState, held_s: float, expected: list[float]
) -> None:
    ranks = [silent("data", 61.0), silent("backward", 61.0, rank=1)]
    found = look(AliveLost, ranks, {}, processes=process(state, held_s))
    assert halts(found) == expected
    assert suspects(found)


def test_a_rank_without_sections_is_lost_once_it_has_been_stopped() -> None:
    ranks = [silent(None, 500.0, labelled=False), peer()]
    assert halts(look(AliveLost, ranks, {}, processes=process(ProcessState.STOPPED, 61.0))) == [60]
    assert look(AliveLost, ranks, {}, processes=process(ProcessState.STOPPED, 60.0)) == []


def test_a_rank_that_speaks_again_is_forgiven_and_may_be_suspected_again() -> None:
    world = World(order_of()).boot().steps(8)
    for _ in range(2):
        world.ranks[0].mono += 3.0
        world.ranks[1].spend(3.0)
        world.meet()
        world.steps(4)
    found = watch(world)
    assert found.halts == []
    rows = [f for f in found.of(Severity.SUSPECT) if f.detector == "alive_lost"]
    assert len(rows) == len({f.key for f in rows}) == 2


def test_it_is_armed_by_a_rank_that_speaks_under_a_watcher() -> None:
    state = watch(World(order_of()).boot()).state
    assert armed(state)["alive_lost"]
    alone = start(order_of(), watched=False)
    assert not armed(alone)["alive_lost"]
    assert not_observed(alone)


# A disk that takes no lines for longer than a deadline ends no run; a hang behind it is found.


WATCH = {"alive_lost": {"suspect_s": 2, "halt_s": 5}}


def mute(*, refused: bool, ranks: tuple[int, ...], seconds: float) -> World:
    """A run that is silent for so long, on a disk that is reported as full."""
    world = World(order_of(WATCH, steps=2000)).boot().steps(11)
    world.open_step()
    for rank in world.ranks:
        rank.enter("forward")
    if refused:
        tell(world, disk={**disk(0.0), "refused": True})
    for rank in world.ranks:
        if rank.rank in ranks:
            rank.mono += seconds
        else:
            rank.spend(seconds)
    return world


@pytest.mark.parametrize("ranks", [(0, 1), (0,)], ids=["all", "one"])
def test_silence_on_a_disk_that_takes_no_lines_is_unknown(ranks: tuple[int, ...]) -> None:
    found = watch(mute(refused=True, ranks=ranks, seconds=2000.0), interval_s=1.0)
    assert found.halts == []
    said = [f.text for f in found.of(Severity.SUSPECT) if f.detector == "alive_lost"]
    assert any("the disk takes no lines" in text for text in said)
    assert watch(mute(refused=False, ranks=ranks, seconds=2000.0), interval_s=1.0).halts


@pytest.mark.parametrize(
    ("section", "found"), [("backward", "stall"), ("data", "section_deadline")]
)
def test_a_hang_of_a_rank_that_is_heard_all_the_same_is_found(section: str, found: str) -> None:
    """A disk without inodes takes no new file, but still takes lines."""
    world = World(order_of({}, steps=2000), alive_every_s=5.0).boot().steps(60)
    tell(world, disk={**disk(0.0), "refused": True})
    world.steps(60).open_step()
    halts = watch(world.hang(1, section, 2000.0), interval_s=1.0).halted()
    assert halts == [(found, 1, section)]


@pytest.mark.parametrize(("silent_s", "limits"), [(900.0, []), (900.25, [60.0])])
def test_a_silence_of_all_ranks_is_their_own_after_fifteen_minutes(
    silent_s: float, limits: list[float]
) -> None:
    row = standing("forward", for_s=1000.0, heard_mono=NOW - silent_s)
    alive = Processes(ranks={0: Process(state=ProcessState.ALIVE)})
    assert halts(look(Stall, [row], processes=alive)) == limits
    assert halts(look(Stall, [row])) == [], "nobody knows whether its process lives"


@pytest.mark.parametrize(("fields", "told"), [({}, False), ({"entry": "train.py"}, True)])
def test_the_halt_of_a_silent_user_program_names_attach(fields: dict[str, str], told: bool) -> None:
    world = World(order_of({}, **fields), alive_every_s=5.0)
    world.alive()
    for rank in world.ranks:
        rank.mono += 3600.0
    (halt,) = watch(world, interval_s=5.0).halts
    assert ("gonogo.trainer.attach()" in halt.text) is told


def test_the_text_says_no_section_and_the_last_step() -> None:
    (halt,) = look(SectionDeadline, [standing(None, for_s=60.25)])
    assert halt.text.endswith("rank 0 is in no section")
    assert halt.text.startswith("step 41 has stood for 60.2 s")
    (halt,) = look(SectionDeadline, [standing(None, for_s=601.0, steps=1000)])
    assert halt.text.startswith("after step 1000, the last, the run has stood for 601.0 s")


@pytest.mark.parametrize(
    ("waiting", "behind", "shown"),
    [
        ((True, False), [], True), ((None, False), [], False), ((False, False), [], False),
        ((False, False), [1], True),
    ],
    ids=["outside alone", "one is unknown", "both outside", "recorders name one"],
)  # fmt: skip
def test_recorders_or_every_stack_must_show_a_minority_outside(
    waiting: tuple[bool | None, ...], behind: list[int], shown: bool
) -> None:
    streams = [standing("backward", for_s=20.0, rank=rank) for rank in (0, 1)]
    for row in streams:
        row.section_mono = row.advanced_mono = NOW - 20.0
    observed = {
        COLLECTIVES: Observed(mono=NOW, ts=0.0, payload={"asked_mono": NOW, "behind": behind})
    }
    view = View(
        run=Run(order=order_of({})),
        streams=dict(enumerate(streams)),
        processes=unchanged(*waiting),
        observed=observed,
    )
    assert corroborated(view, streams, NOW, silence=False) is shown


def test_ranks_that_idle_where_pauses_are_usual_have_their_own_limit() -> None:
    row = standing("data", for_s=121.0)
    assert halts(look(SectionDeadline, [row], processes=unchanged(False))) == []


@pytest.mark.parametrize(("step_s", "limit_s"), [(1.0, 120.0), (25.0, 150.0)])
def test_ranks_that_idle_are_halted_after_twice_the_early_limit(
    step_s: float, limit_s: float
) -> None:
    for over_s, limits in ((-0.25, []), (0.25, [limit_s])):
        row = standing("log", for_s=limit_s + over_s, step_s=step_s, steps=40)
        found = look(
            SectionDeadline,
            [row],
            {"section_deadline": {"log": {"halt_s": 400}}},
            processes=unchanged(False),
        )
        assert halts(found) == limits


# D2, D4, D5: the table of patience decides when a run that stands is halted, and by which rule.

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
    (standing("checkpoint", for_s=0.0, section_times=(("checkpoint", 100.0),)),
     "section_deadline", 1000.0),
    (standing("checkpoint", for_s=0.0, saved_s=(200.0,)), "section_deadline", 2000.0),
    (standing(None, for_s=0.0, steps=1000, section_times=(("checkpoint", 100.0),)),
     "section_deadline", 1000.0),
    (standing("eval", for_s=0.0), "section_deadline", 1800.0),
    (standing("log", for_s=0.0), "section_deadline", 60.0),
    (standing(None, for_s=0.0), "section_deadline", 60.0),
    (standing(None, for_s=0.0, steps=1000), "section_deadline", 600.0),
    (standing("boot", for_s=0.0, steps=0, started_mono=None), "no_first_heartbeat", 300.0),
    (standing("forward", for_s=0.0, steps=0), "no_first_heartbeat", 900.0),
    (standing(None, for_s=0.0, labelled=False), "stall", 1800.0),
    (standing(None, for_s=0.0, labelled=False, steps=0, top_step=7),
     "no_first_heartbeat", 3600.0),
],
)  # fmt: skip
def test_a_place_halts_at_its_limit_and_not_before(
    rank: RankStream, detector: str, limit_s: float
) -> None:
    for stood_s, expected in ((limit_s, []), (limit_s + 0.25, [limit_s])):
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
    assert suspects(look_all([standing("data", for_s=120.0)], {})) == []


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


def test_a_rank_one_step_ahead_waits_too() -> None:
    behind, ahead = standing("data", for_s=301.0), standing("forward", for_s=1.0, steps=41, rank=1)
    assert look_all([behind, ahead], {}) == []
    ahead = standing("data", for_s=301.0, steps=41, rank=1, advanced_mono=NOW - 1.0)
    assert halts(look_all([behind, ahead], {})) == [300.0]


@pytest.mark.parametrize(("section", "limits"), [("data", [300.0]), (None, [])])
def test_only_without_a_section_an_advancing_step_is_a_move(
    section: str | None, limits: list[float]
) -> None:
    row = standing(section, for_s=301.0, advanced_mono=NOW - 1.0)
    assert halts(look_all([row], {})) == limits


def test_a_rank_after_its_last_step_does_not_hide_one_that_stands_before_it() -> None:
    ended = standing(None, for_s=61.0, steps=1000)
    found = look_all([ended, standing("backward", for_s=61.0, steps=999, rank=1)], {})
    assert halts(found) == [60.0]


def test_ranks_in_every_place_without_pauses_may_idle_for_two_minutes() -> None:
    few = standing("forward", for_s=121.0, completed_steps=3)
    others = [
        standing(section, for_s=121.0, rank=rank)
        for rank, section in enumerate(("forward", "log", None), start=1)
    ]
    found = look_all([few, *others], {}, processes=unchanged(True, True, True, True))
    assert halts(found) == [120.0]


@pytest.mark.parametrize(
    ("heard_ago_s", "halted"), [(90.0, []), (100.0, []), (110.0, ["section_deadline"])]
)
def test_a_silent_nodes_ranks_count_until_the_others_end_a_step(
    heard_ago_s: float, halted: list[str]
) -> None:
    """The silent rank may still save; once the others have ended a step, it has saved."""
    near = standing(None, for_s=100.0)
    far = standing("checkpoint", for_s=300.0, rank=1)
    far.heard_mono = NOW - heard_ago_s
    order = order_of({}, steps=1000, world_size=2, nodes=2)
    found = look_all([near, far], order=order)
    assert [row.detector for row in found if row.severity is Severity.HALT] == halted


@pytest.mark.parametrize("steps", [999, 1000])
def test_only_after_its_last_step_a_rank_may_go_from_section_to_section(steps: int) -> None:
    row = standing("log", for_s=1.0, steps=steps, advanced_mono=NOW - 60_000.0)
    assert len(halts(look(SectionDeadline, [row]))) == (steps < 1000)


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


@pytest.mark.parametrize(
    ("rank", "renewed_s", "pid", "place"),
    [
        (standing("backward", for_s=100.0, pid=7), 0.0, 8, Place.COMPUTE),
        (standing("backward", for_s=100.0, pid=7), 1.0, 7, Place.COMPUTE),
        (standing("backward", for_s=100.0, pid=7), 1.0, 8, Place.START),
        (standing("boot", for_s=1.0, steps=0), 0.0, 7, Place.FIRST_STEP),
        (standing("forward", for_s=1.0, steps=0, started_mono=None), 0.0, 7, Place.FIRST_STEP),
    ],
    ids=["another heard since", "the same", "another", "started in boot", "not started"],
)
def test_where_a_rank_is_after_a_start(
    rank: RankStream, renewed_s: float, pid: int, place: Place
) -> None:
    process = Process(state=ProcessState.ALIVE, pid=pid, renewed_mono=NOW + renewed_s)
    view = View(
        run=Run(order=order_of({})), streams={0: rank}, processes=Processes(ranks={0: process})
    )
    assert place_of(view, rank) is place


# A made-up run: lines, ticks and probes.


def test_a_rank_that_never_sends_a_line_is_named() -> None:
    world = World(order_of({}), alive_every_s=5.0)
    world.ranks[1].stopped = True
    world.boot()
    world.ranks[0].spend(400.0)
    (halt,) = watch(world, interval_s=1.0).halts
    assert (halt.detector, halt.rank, halt.threshold) == ("no_first_heartbeat", 1, 120.0)


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
