"""The silence of one rank, of all, and on a disk that takes no lines."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.finding import Severity
from gonogo.contract.records import ProcessState, StackProbe
from gonogo.timeline.rank import RankStream
from gonogo.watch.detectors.culprit import COLLECTIVES
from gonogo.watch.detectors.deadlines import AliveLost, SectionDeadline, Stall, corroborated
from gonogo.watch.fold import armed, start
from gonogo.watch.offline_fold import not_observed
from gonogo.watch.view import Observed, Process, Processes, Run, Stack, View
from tests.watch.detectors.host import disk, tell
from tests.watch.standing import NOW, halts, look, standing, suspects
from tests.watch.streams import World, order_of, watch

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
        ("forward", {}, 60.0),
        ("log", {}, 60.0),
        (None, {}, 60.0),
        ("data", {}, 300.0),
        ("checkpoint", {}, 600.0),
        ("eval", {}, 1800.0),
        ("boot", {"steps": 0, "started_mono": None}, 300.0),
        ("forward", {"steps": 0}, 900.0),
        (None, {"steps": 1000}, 600.0),
    ],
)
def test_a_silent_rank_halts_at_the_limit_of_its_place_when_its_peers_live(
    section: str | None, fields: dict[str, Any], limit_s: float
) -> None:
    assert halts(look(AliveLost, [silent(section, limit_s - 0.25, **fields), peer()], {})) == []
    found = look(AliveLost, [silent(section, limit_s + 0.25, **fields), peer()], {})
    (halt,) = [finding for finding in found if finding.severity is Severity.HALT]
    assert (halt.detector, halt.rank, halt.section) == ("alive_lost", 0, section)
    assert halt.text.endswith(", and other ranks speak")
    assert [row.text.endswith("process is unknown") for row in found] == [True, False]


@pytest.mark.parametrize(
    ("state", "held_s", "expected"),
    [
        (ProcessState.STOPPED, 61.0, [60.0]),
        (ProcessState.STOPPED, 2.0, []),
        (ProcessState.DEAD, 1.0, []),
        (ProcessState.ALIVE, 61.0, []),
        (ProcessState.UNINTERRUPTIBLE, 61.0, []),
        (ProcessState.UNKNOWN, 61.0, []),
    ],
)
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
    assert look(AliveLost, ranks, {}, processes=process(ProcessState.STOPPED, 59.0)) == []


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


@pytest.mark.parametrize(
    ("waiting", "behind", "shown"),
    [
        ((True, False), [], True),
        ((None, False), [], False),
        ((False, False), [], False),
        ((False, False), [1], True),
    ],
    ids=["outside alone", "one is unknown", "both outside", "recorders name one"],
)
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
