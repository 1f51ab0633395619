"""D3: silence of one rank, and of all."""

from typing import Any

import pytest

from gonogo.contract.finding import Severity
from gonogo.contract.outcome import Detector
from gonogo.contract.tick import ProcessState
from gonogo.watch import armed, not_observed, start
from gonogo.watch.detectors.alive_lost import AliveLost, limit_of_silence
from gonogo.watch.processes import Process, Processes
from gonogo.watch.view import Run, View
from tests.watch.standing import NOW, halts, look, standing, suspects
from tests.watch.streams import EPOCH, T0, Said, World, order_of, watch


def frozen(order_watch: dict[str, object] | None = None, *, ranks: tuple[int, ...] = (0,)) -> World:
    world = World(order_of(order_watch), alive_every_s=0.5).boot().steps(8)
    world.open_step()
    for rank in ranks:
        world.ranks[rank].stopped = True
    return world


def test_a_held_rank_halts_at_the_limit() -> None:
    world = frozen()
    world.probe(0, "stopped")
    at = world.mono
    world.hang(0, "data", 20.0)
    found = watch(world)
    assert found.halted() == [("alive_lost", 0, "data")]
    (halt,) = found.halts
    assert 5.0 < halt.at - (EPOCH + at - T0) <= 7.0
    assert halt.since is not None
    assert halt.at - halt.since <= 7.0
    assert "alive_lost" in found.named(Severity.SUSPECT)


def mute_in(section: str, order_watch: dict[str, object] | None = None) -> World:
    """Rank 0 tells that it is in a section, and falls silent there."""
    world = World(order_of(order_watch), alive_every_s=0.5).boot().steps(8)
    world.open_step()
    for name in ("forward", "backward", "optimizer"):
        world.ranks[0].enter(name)
        if name == section:
            break
    world.ranks[0].spend(1.2)
    world.ranks[0].stopped = True
    world.ranks[1].enter("forward")
    return world


def test_a_silent_rank_halts_when_its_peers_live() -> None:
    world = mute_in("forward", {"alive_lost": {"suspect_s": 2, "halt_s": 5}})
    world.ranks[1].spend(20.0)
    (finding,) = watch(world).halts
    assert (finding.detector, finding.rank) == ("alive_lost", 0)
    assert "peers" in finding.text


def test_defaults_suspect_at_half_a_minute_and_halt_at_one() -> None:
    world = mute_in("forward", {})
    world.ranks[1].spend(90.0)
    found = watch(world, interval_s=1.0)
    (halt,) = found.halts
    (suspect,) = [f for f in found.of(Severity.SUSPECT) if f.detector == "alive_lost"]
    assert 30.0 < (suspect.value or 0) <= 31.5
    assert 60.0 < (halt.value or 0) <= 61.5


def test_all_ranks_silent_at_once_is_unknown() -> None:
    world = frozen(ranks=(0, 1))
    for rank in world.ranks:
        rank.mono += 600.0
    found = watch(world)
    assert found.halts == []
    assert found.named(Severity.SUSPECT) == {"alive_lost", "section_deadline"}


def test_all_ranks_silent_halts_when_a_probe_shows_one_stopped() -> None:
    world = frozen(ranks=(0, 1))
    world.ranks[0].mono += 8.0
    world.probe(1, "stopped")
    world.ranks[0].mono += 2.0
    assert watch(world).halted()[0] == ("alive_lost", 1, "data")


def test_a_rank_that_speaks_again_is_forgiven_and_may_be_suspected_again() -> None:
    world = World(order_of()).boot().steps(8)
    for _ in range(2):
        world.ranks[0].mono += 3.0
        world.ranks[1].spend(3.0)
        world.meet()
        world.steps(4)
    found = watch(world)
    assert found.halts == []
    suspects = [f for f in found.of(Severity.SUSPECT) if f.detector == "alive_lost"]
    assert len(suspects) == len({f.key for f in suspects}) == 2


def test_a_rank_that_is_done_may_be_silent() -> None:
    world = World(order_of(steps=8)).boot().steps(8)
    world.ranks[0].say("done")
    world.ranks[0].stopped = True
    world.ranks[1].spend(8.0)
    assert watch(world).halts == []


def test_one_rank_alone_needs_a_probe() -> None:
    world = World(order_of(world_size=1)).boot().steps(8)
    world.open_step()
    world.ranks[0].stopped = True
    world.ranks[0].mono += 60.0
    assert watch(world).halts == []
    world.probe(0, "stopped")
    world.ranks[0].mono += 2.0
    assert watch(world).halted()[0] == ("alive_lost", 0, "data")


def test_a_rank_that_obeys_a_halt_may_be_silent() -> None:
    world = World(order_of()).boot().steps(8)
    world.ranks[0].say("halt_seen")
    world.ranks[0].stopped = True
    world.ranks[1].spend(8.0)
    assert watch(world).named(Severity.HALT) == set()


def test_a_rank_that_names_no_sections_promises_no_alive_lines() -> None:
    world = World(order_of()).boot().steps(8)
    for rank in world.ranks:
        rank.section, rank.section_seq = None, 0
        rank.boot, rank.seq = f"plain{rank.rank}", 0
        rank.say("boot", **world.order.identity.model_dump(exclude_none=True))
    world.ranks[0].mono += 8.0
    world.ranks[1].stopped = False
    for _ in range(16):
        world.ranks[1].mono += 0.5
        world.ranks[1].say("beat")
    assert "alive_lost" not in watch(world).named(Severity.HALT) | watch(world).named(
        Severity.SUSPECT
    )


def test_it_is_armed_by_a_rank_that_speaks() -> None:
    speaking = watch(World(order_of()).boot()).state
    assert armed(speaking)[Detector.ALIVE_LOST]
    assert not armed(start(order_of()))[Detector.ALIVE_LOST]
    assert not armed(watch(World(order_of(steps=3)).boot().steps(3).finish()).state)[
        Detector.ALIVE_LOST
    ]


def silent_between_steps(section: str, seconds: float, *, state: str | None = None) -> World:
    """Rank 0 cannot speak in a section between steps, while rank 1 goes on speaking."""
    world = World(order_of({}, steps=100), alive_every_s=5.0).boot().steps(40)
    first, other = world.ranks
    for rank in world.ranks:
        rank.enter(section)
    if state is not None:
        world.probe(0, state)
    first.mono += seconds
    other.spend(seconds)
    for rank in world.ranks:
        rank.say(section, dt=seconds)
        rank.enter(None)
    return world.steps(3)


@pytest.mark.parametrize(
    ("section", "seconds"), [("data", 290.0), ("checkpoint", 480.0), ("eval", 1200.0)]
)
def test_silence_that_a_section_allows_halts_nobody(section: str, seconds: float) -> None:
    found = watch(silent_between_steps(section, seconds), interval_s=1.0)
    assert found.halts == []
    assert "alive_lost" in found.named(Severity.SUSPECT)


@pytest.mark.parametrize(
    ("section", "seconds"), [("data", 310.0), ("checkpoint", 620.0), ("eval", 1820.0)]
)
def test_silence_beyond_the_deadline_of_its_section_halts(section: str, seconds: float) -> None:
    (halt, *_) = watch(silent_between_steps(section, seconds), interval_s=1.0).halts
    assert halt.detector in ("alive_lost", "section_deadline")
    assert (halt.rank, halt.section) == (0, section)
    assert halt.value == pytest.approx(seconds - 10.0, abs=15.0)


@pytest.mark.parametrize(("seconds", "lost"), [(290.0, False), (310.0, True)])
def test_who_has_only_said_that_a_step_begins_may_fetch_its_batch(
    seconds: float, lost: bool
) -> None:
    """A loader holds the interpreter, and no thread comes to say in which section it is."""
    world = World(order_of({}, steps=100), alive_every_s=5.0).boot().steps(40)
    first, other = world.ranks
    for rank in world.ranks:
        rank.step += 1
        rank.in_step = True
        rank.say("step_start")
    first.mono += seconds
    other.enter("backward")
    other.spend(seconds)
    world.compute()
    world.close_step()
    found = watch(world.steps(3), interval_s=1.0)
    assert {halt.rank for halt in found.halts} == ({0} if lost else set())
    assert "alive_lost" in found.named(Severity.SUSPECT)


@pytest.mark.parametrize(("msg", "found"), [("step_start", []), ("step_end", [60.0])])
def test_between_two_steps_silence_has_its_own_limit(msg: str, found: list[float]) -> None:
    silent = standing(None, for_s=70.0, heard_mono=NOW - 70.0, msg=msg)
    peer = standing("backward", for_s=70.0, rank=1)
    order = order_of({}, steps=1000, world_size=2)
    assert halts(look(AliveLost, [silent, peer], order=order)) == found


@pytest.mark.parametrize("section", ["data", "checkpoint", "eval"])
def test_a_rank_that_waits_for_a_disk_has_the_time_of_its_section(section: str) -> None:
    world = silent_between_steps(section, 290.0, state="uninterruptible")
    assert watch(world, interval_s=1.0).halts == []


@pytest.mark.parametrize(
    ("state", "held_s", "found"),
    [
        ("stopped", 4.75, []),
        ("stopped", 5.0, [60.0]),
        ("uninterruptible", 599.75, []),
        ("uninterruptible", 600.0, [60.0]),
        ("dead", 0.0, [60.0]),
    ],
)
def test_a_lone_silent_rank_halts_once_it_has_been_held_for_a_while(
    state: str, held_s: float, found: list[float]
) -> None:
    """A disk that hangs holds it and its lines: then it has the time of a checkpoint."""
    heard_mono = NOW - max(60.25, held_s)
    rank = standing("forward", for_s=700.0, heard_mono=heard_mono)
    held = Processes(ranks={0: Process(state=ProcessState(state), held_mono=NOW - held_s)})
    order = order_of({}, steps=1000, world_size=1)
    view = View(run=Run(order=order), streams={0: rank}, processes=held)
    assert view.held(0, NOW) is bool(found)
    if state != "dead":
        assert halts(look(AliveLost, [rank], order=order, processes=held)) == found


@pytest.mark.parametrize(
    ("state", "heard_s", "peer", "found"),
    [
        ("uninterruptible", 70.0, "alive", []),
        ("uninterruptible", 30.25, "alive", []),
        ("uninterruptible", 30.0, "alive", [60.0]),
        ("uninterruptible", 70.0, "uninterruptible", []),
        ("uninterruptible", 70.0, "unknown", []),
        ("stopped", 70.0, "alive", [60.0]),
    ],
)
def test_who_waits_for_a_disk_is_not_held_where_nobody_is_heard(
    state: str, heard_s: float, peer: str, found: list[float]
) -> None:
    """The lines of its peers do not come either: they may wait for the same disk."""
    ranks = [
        standing("forward", for_s=70.0, heard_mono=NOW - 60.25),
        standing("forward", for_s=70.0, heard_mono=NOW - heard_s, rank=1),
    ]
    states = {0: state, 1: peer}
    held = Processes(
        ranks={
            rank: Process(
                state=ProcessState(name), held_mono=None if name == "alive" else NOW - 50.0
            )
            for rank, name in states.items()
        }
    )
    order = order_of({}, steps=1000)
    assert halts(look(AliveLost, ranks, order=order, processes=held)) == found
    view = View(run=Run(order=order), streams=dict(enumerate(ranks)), processes=held)
    assert view.held(0, NOW) is bool(found)
    assert view.held(0, NOW + 550.0) is True  # a checkpoint has had its time by then


def test_a_held_rank_has_a_minute_whatever_its_section() -> None:
    found = watch(silent_between_steps("checkpoint", 300.0, state="stopped"), interval_s=1.0)
    (halt,) = found.halts
    assert (halt.detector, halt.rank, halt.section) == ("alive_lost", 0, "checkpoint")
    assert 60.0 < (halt.value or 0) <= 62.0


def silent_first_step(seconds: float) -> World:
    """Rank 0 compiles its first step and cannot speak; rank 1 is done and waits."""
    world = World(order_of({}, steps=100), alive_every_s=5.0).boot()
    world.open_step()
    for rank in world.ranks:
        rank.enter("forward")
        rank.spend(2.0)
    world.ranks[0].mono += seconds
    world.ranks[1].enter("backward")
    world.ranks[1].spend(seconds)
    for rank in world.ranks:
        rank.enter("log")
    world.close_step()
    return world.steps(3)


def test_a_rank_that_compiles_in_silence_has_the_deadline_of_the_first_step() -> None:
    assert watch(silent_first_step(600.0), interval_s=1.0).halts == []
    (halt, *_) = watch(silent_first_step(1000.0), interval_s=1.0).halts
    assert halt.detector in ("alive_lost", "no_first_heartbeat")
    assert halt.rank == 0


@pytest.mark.parametrize(
    ("seconds", "stopped", "halts"),
    [(600.0, False, set()), (600.0, True, {0}), (1000.0, False, {0})],
)
def test_so_has_one_that_tells_only_the_ends_of_its_steps(
    seconds: float, stopped: bool, halts: set[int]
) -> None:
    """It stands in no section and in no step meanwhile; a stopped process has a minute there."""
    world = World(order_of({}, steps=100), alive_every_s=5.0).boot()
    if stopped:
        world.probe(0, "stopped")
    world.ranks[0].mono += seconds
    world.ranks[1].spend(seconds)
    for rank in world.ranks:
        rank.step = 1
        rank.say("step_end")
    assert {halt.rank for halt in watch(world, interval_s=1.0).halts} == halts


@pytest.mark.parametrize(("waits_s", "halts"), [(8.0, False), (400.0, True)])
def test_a_rank_whose_peer_was_restarted_first_has_the_time_of_a_start(
    waits_s: float, halts: bool
) -> None:
    world = World(order_of({"alive_lost": {"suspect_s": 2, "halt_s": 5}})).boot().steps(20)
    first, second = world.ranks
    first.mono += 7.0  # both are gone for seven seconds
    second.mono += 7.0 + waits_s
    first.boot, first.seq, first.step = "again", 0, 10
    first.say("boot", **world.order.identity.model_dump(exclude_none=True))
    first.spend(waits_s)
    second.boot, second.seq, second.step = "again too", 0, 10
    second.say("boot", **world.order.identity.model_dump(exclude_none=True))
    found = watch(world, stop_at_halt=False)
    assert ("alive_lost" in {finding.detector for finding in found.halts}) is halts


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_rank_that_is_read_later_than_its_peer_after_a_restart_is_not_lost(
    comes_back: bool,
) -> None:
    """Both are gone for 70 s; the peer's first step is read before the other's boot."""
    world = World(order_of({}, steps=200), alive_every_s=5.0).boot().steps(40)
    gone, late = world.mono, world.ranks[1]
    for rank in world.ranks:
        rank.mono += 70.0
        rank.boot, rank.seq, rank.section, rank.section_seq = f"again{rank.rank}", 0, "boot", 0
        rank.say("boot", **world.order.identity.model_dump(mode="json", exclude_none=True))
        rank.enter(None)
    back = world.mono
    world.steps(150)
    moved = [Said(said.mono + 20.0 * (said.mono > gone), said.raw) for said in late.lines]
    late.lines = [said for said in moved if comes_back or said.mono <= gone]
    halts = watch(world, interval_s=1.0).halts
    assert [halt.rank for halt in halts[:1]] == ([] if comes_back else [1])
    assert all(halt.at - EPOCH + T0 > back + 59.0 for halt in halts)


@pytest.mark.parametrize(
    ("section", "told", "limit_s"),
    [
        ("forward", {}, 60.0),
        ("forward", {"steps": 0}, 900.0),
        ("boot", {"steps": 0, "started_mono": None}, 300.0),
        ("boot", {}, 60.0),
        (None, {}, 60.0),
        (None, {"msg": "step_start"}, 300.0),
        (None, {"msg": "alive"}, 60.0),
        (None, {"steps": 100}, 600.0),
        (None, {"steps": 0, "started_mono": None}, 900.0),
        ("log", {}, 60.0),
        ("data", {}, 300.0),
        ("data", {"steps": 0}, 900.0),
        ("checkpoint", {}, 600.0),
        ("eval", {}, 1800.0),
    ],
)
def test_how_long_a_rank_may_be_silent_where_it_stands(
    section: str | None, told: dict[str, Any], limit_s: float
) -> None:
    rank = standing(section, for_s=0.0, **told)
    run = Run(order=order_of({}, steps=100))
    assert limit_of_silence(View(run=run, streams={0: rank}), rank, NOW).seconds == limit_s
    held = Processes(ranks={0: Process(state=ProcessState.STOPPED)})
    assert (
        limit_of_silence(View(run=run, streams={0: rank}, processes=held), rank, NOW).seconds
        == 60.0
    )


def test_no_section_shortens_what_the_plan_allows() -> None:
    rank = standing("data", for_s=0.0)
    run = Run(order=order_of({"alive_lost": {"halt_s": 500.0}}))
    assert limit_of_silence(View(run=run, streams={0: rank}), rank, NOW).seconds == 500.0


@pytest.mark.parametrize(
    ("began_s", "steps", "limit_s"),
    [(0.25, 0, 300.0), (0.0, 0, 60.0), (0.25, 1, 60.25), (90.0, 1, 150.0), (290.0, 0, 350.0)],
)
def test_a_peer_that_began_after_the_last_line_has_restarted_and_silence_counts_since_then(
    began_s: float, steps: int, limit_s: float
) -> None:
    rank = standing("forward", for_s=0.0)
    peer = standing("boot", for_s=0.0, rank=1, steps=steps, first_mono=NOW + began_s)
    view = View(run=Run(order=order_of({})), streams={0: rank, 1: peer})
    assert limit_of_silence(view, rank, NOW).seconds == limit_s


@pytest.mark.parametrize(
    ("silent_s", "suspect", "halt"),
    [
        (30.0, [], []),
        (30.25, [30.0], []),
        (60.0, [30.0], []),
        (60.25, [30.0], [60.0]),
    ],
)
def test_each_limit_has_to_be_passed(
    silent_s: float, suspect: list[float], halt: list[float]
) -> None:
    ranks = [
        standing("forward", for_s=1.0, heard_mono=NOW - silent_s),
        standing("forward", for_s=1.0, rank=1),
    ]
    found = look(AliveLost, ranks)
    assert (suspects(found), halts(found)) == (suspect, halt)
    assert {finding.rank for finding in found} <= {0}


def test_a_rank_at_the_limit_is_not_silent_with_another_that_is() -> None:
    ranks = [
        standing("forward", for_s=1.0, rank=rank, heard_mono=NOW - silent_s)
        for rank, silent_s in enumerate((30.0, 30.25))
    ]
    assert [finding.rank for finding in look(AliveLost, ranks)] == [1]


def test_without_a_peer_that_speaks_only_a_held_rank_halts() -> None:
    ranks = [
        standing("forward", for_s=1.0, rank=rank, heard_mono=NOW - 60.25) for rank in (0, 1, 2)
    ]
    assert halts(look(AliveLost, ranks)) == []
    held = Processes(ranks={1: Process(state=ProcessState.STOPPED)})
    (halt,) = [row for row in look(AliveLost, ranks, processes=held) if row.severity == "halt"]
    assert halt.rank == 1


@pytest.mark.parametrize("told", [{"halt_seen": True}, {"labelled": False}, {"done": True}])
def test_a_rank_that_owes_no_line_is_not_silent(told: dict[str, Any]) -> None:
    ranks = [
        standing("forward", for_s=1.0, **{"heard_mono": NOW - 1e4, **told}),
        standing("forward", for_s=1.0, rank=1),
    ]
    assert look(AliveLost, ranks) == []


@pytest.mark.parametrize("steps", [0, 1, 40])
@pytest.mark.parametrize(
    ("state", "held_s", "found"),
    [
        (ProcessState.STOPPED, 60.0, []),
        (ProcessState.STOPPED, 60.25, [60.0]),
        (ProcessState.UNINTERRUPTIBLE, 1e3, []),
        (ProcessState.ALIVE, 1e3, []),
    ],
)
def test_a_rank_that_names_no_sections_is_lost_once_it_has_been_stopped_for_a_minute(
    state: ProcessState, held_s: float, found: list[float], steps: int
) -> None:
    ranks = [
        standing(None, for_s=1e4, steps=steps, rank=0, labelled=False, heard_mono=NOW - 1e4),
        standing(None, for_s=1.0, steps=steps, rank=1, labelled=False),
    ]
    processes = Processes(ranks={0: Process(state=state, held_mono=NOW - held_s)})
    told = look(AliveLost, ranks, processes=processes)
    assert halts(told) == found
    assert {finding.rank for finding in told} <= {0}


def test_without_a_watcher_it_is_said_to_see_nothing() -> None:
    (processes, *_) = not_observed(start(order_of(), watched=False))
    assert "alive_lost" in processes


@pytest.mark.parametrize(("late_s", "found"), [(0.75, 1), (1.0, 0)])
def test_a_late_tick_misses_no_deadline(late_s: float, found: int) -> None:
    world = frozen({})
    world.probe(0, "stopped")
    world.hang(0, "data", 70.0)
    ticks = [(T0, 0.0), (world.mono - 70.0, 0.0), (world.mono - 1.0, late_s)]
    assert len(watch(world, ticking=lambda end: ticks).halts) == found
