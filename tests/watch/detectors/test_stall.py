"""D4: a step that does not end while the rank behind computes."""

from typing import Any

import pytest

from gonogo.contract.finding import Finding, Severity, Source
from gonogo.contract.outcome import Detector
from gonogo.contract.tick import ProcessState, StackProbe
from gonogo.watch import armed
from gonogo.watch.detectors.stall import Stall, corroborated, limits
from gonogo.watch.processes import Process, Processes, Stack
from gonogo.watch.stream import RankStream
from gonogo.watch.view import Run, View
from tests.watch.standing import NOW, halts, look, standing, suspects
from tests.watch.streams import DEMO, EPOCH, T0, Rank, Said, World, order_of, watch


def hung(
    order_watch: dict[str, Any] | None = None,
    *,
    steps: int = 11,
    step_s: float = 0.5,
    section: str = "backward",
    culprit: int = 1,
    for_s: float = 20.0,
    alive_every_s: float = 0.5,
) -> World:
    world = World(order_of(order_watch, steps=200), alive_every_s=alive_every_s)
    world.boot().steps(steps, step_s=step_s)
    world.open_step()
    world.hang(culprit, section, for_s)
    return world


@pytest.mark.parametrize("section", ["forward", "backward"])
@pytest.mark.parametrize("culprit", [0, 1])
def test_a_hang_names_rank_and_section_within_the_bound(section: str, culprit: int) -> None:
    found = watch(hung(section=section, culprit=culprit))
    assert found.halted() == [("stall", culprit, section)]
    (halt,) = found.halts
    assert halt.step == 12
    assert halt.since is not None
    assert 5.0 < halt.at - halt.since <= 7.0
    assert (halt.threshold, halt.source) == (5.0, Source.PLAN)
    assert f"rank {culprit} stands in {section}" in halt.text


def test_a_hang_in_the_optimizer_is_not_blamed_on_the_rank_that_waits_in_log() -> None:
    world = World(order_of()).boot().steps(11)
    world.open_step()
    for rank in world.ranks:
        rank.enter("forward")
        rank.spend(0.1)
        rank.enter("optimizer")
    world.ranks[0].enter("log")
    for rank in world.ranks:
        rank.spend(20.0)
    assert watch(world).halted() == [("stall", 1, "optimizer")]


def test_it_is_suspect_before_it_halts() -> None:
    found = watch(hung())
    suspect, halt = found.findings
    assert (suspect.severity, suspect.threshold) == (Severity.SUSPECT, 2.0)
    assert suspect.at < halt.at


def test_a_run_that_has_become_slow_is_suspect_once_not_at_every_step() -> None:
    world = World(order_of()).boot().steps(15).steps(4, step_s=3.0)
    found = watch(world)
    assert [(f.severity, f.step) for f in found.findings] == [(Severity.SUSPECT, 16)]


@pytest.mark.parametrize("named", [True, False], ids=["names its computing", "names its loader"])
@pytest.mark.parametrize(("again_s", "limit_s"), [(90.0, None), (200.0, 180.0)])
@pytest.mark.parametrize("away", [False, True], ids=["watched", "the watcher away at first"])
def test_a_step_may_compile_anew_for_as_long_as_the_first_one_did(
    named: bool, again_s: float, limit_s: float | None, away: bool
) -> None:
    world = World(order_of({}, steps=200), alive_every_s=5.0).boot()
    world.pause("checkpoint", 0.1).pause("eval", 0.1)
    for compiled_s in (120.0, *[0.0] * 40, again_s, 0.0):
        world.open_step()
        for rank in world.ranks:
            rank.enter("forward" if named else None)
            rank.spend(0.5 + compiled_s)
        world.close_step()

    def ticking(end: float) -> list[tuple[float, float]]:
        seconds = [s for s in range(int(end - T0) + 2) if not (away and 10 < s < 110)]
        return [(T0 + s, 99.0 if away and s == 110 else 0.0) for s in seconds]

    halts = watch(world, ticking=ticking).halts
    due = [] if limit_s is None else [pytest.approx(limit_s, abs=3.0)]
    assert [halt.threshold for halt in halts] == due
    assert {halt.detector for halt in halts} <= {"stall" if named else "section_deadline"}


@pytest.mark.parametrize(("second_s", "limit_s"), [(450.0, None), (1000.0, 900.0)])
@pytest.mark.parametrize("named", [True, False], ids=["names its computing", "names its loader"])
def test_a_second_step_of_minutes_may_take_longer_than_the_first(
    named: bool, second_s: float, limit_s: float | None
) -> None:
    """Answers that are generated in it are longer, for instance."""
    world = World(order_of({}, steps=200), alive_every_s=5.0).boot()
    for took_s in (190.0, second_s, 200.0):
        world.open_step()
        for rank in world.ranks:
            rank.enter("data")
            rank.enter("forward" if named else None)
            rank.spend(took_s)
        world.close_step()
    halts = watch(world, interval_s=1.0).halts
    assert [halt.threshold for halt in halts] == ([] if limit_s is None else [limit_s])


def test_slow_steps_have_a_limit_that_follows_them() -> None:
    (halt,) = watch(hung({}, steps=40, step_s=20.0, for_s=200.0), interval_s=1.0).halts
    assert halt.source is Source.ADAPTIVE
    assert halt.threshold == pytest.approx(8 * 20.01, rel=0.01)


def test_defaults_halt_at_a_minute() -> None:
    (halt,) = watch(hung({}, steps=40, for_s=80.0)).halts
    assert (halt.threshold, halt.source) == (60.0, Source.DEFAULT)
    assert 60.0 < (halt.value or 0) < 61.0


def test_before_there_are_enough_steps_the_early_limit_holds() -> None:
    found = watch(hung({}, steps=5, for_s=290.0, alive_every_s=5), interval_s=1.0)
    assert found.halts == []
    (halt,) = watch(hung({}, steps=5, for_s=310.0, alive_every_s=5), interval_s=1.0).halts
    assert halt.threshold == 300.0


def test_the_early_limit_follows_the_profiles_floor() -> None:
    slow = {"slow": {"floor_tok_s": 20.48}}  # 100 s a step
    assert watch(hung(slow, steps=5, for_s=900.0, alive_every_s=5), interval_s=5.0).halts == []
    (halt,) = watch(hung(slow, steps=5, for_s=1100.0, alive_every_s=5), interval_s=5.0).halts
    assert halt.threshold == pytest.approx(1000.0)


def test_a_peer_that_waits_for_a_slow_loader_stalls_nobody() -> None:
    world = World(order_of({}), alive_every_s=5).boot().steps(35)
    world.open_step()
    world.hang(0, "data", 100.0)
    for rank in world.ranks:
        rank.collective_seq = 100
    world.compute()
    world.close_step()
    world.steps(3)
    assert watch(world).findings == []


@pytest.mark.parametrize(
    ("section", "seconds"), [("checkpoint", 480.0), ("eval", 1200.0), ("data", 100.0)]
)
def test_long_pauses_between_steps_are_silent(section: str, seconds: float) -> None:
    world = World(order_of({}, steps=100), alive_every_s=5).boot().steps(40)
    world.pause(section, seconds).steps(20)
    assert watch(world, interval_s=1.0).findings == []


def test_steps_of_very_different_length_are_silent() -> None:
    world = World(order_of({}), alive_every_s=5).boot().steps(35, step_s=2.0)
    for step_s in (30.0, 2.0, 50.0, 2.0, 9.0):
        world.steps(1, step_s=step_s)
    assert watch(world).halts == []


def test_alive_lines_and_stack_dumps_are_no_progress() -> None:
    world = hung(for_s=0.1)
    for _ in range(60):
        for rank in world.ranks:
            rank.mono += 0.2
            rank.say("stackdump" if rank.rank else "alive", section_age_s=1.0)
    assert watch(world).halted() == [("stall", 1, "backward")]


def test_all_ranks_silent_in_backward_is_unknown() -> None:
    world = hung(for_s=0.5)
    for rank in world.ranks:
        rank.mono += 300.0
    assert watch(world).halts == []


@pytest.mark.parametrize(("silent_s", "found"), [(880.0, []), (960.0, [("stall", "backward")])])
def test_all_ranks_silent_for_a_quarter_of_an_hour_while_they_live_is_a_stall(
    silent_s: float, found: list[tuple[str, str]]
) -> None:
    """A native call that holds the interpreter for ever, and no stack can be read."""
    world = hung(for_s=0.5)
    for rank in world.ranks:
        rank.mono += silent_s
    halted = watch(world, interval_s=1.0).halted()
    assert [(detector, section) for detector, _, section in halted] == found


@pytest.mark.parametrize(("known", "found"), [(True, [60.0]), (False, [])])
def test_silence_of_all_is_their_own_only_where_their_processes_are_seen(
    known: bool, found: list[float]
) -> None:
    rank = standing("backward", for_s=1000.0, heard_mono=NOW - 900.25)
    state = ProcessState.ALIVE if known else ProcessState.UNKNOWN
    alive = Processes(ranks={0: Process(state=state)})
    order = order_of({}, steps=1000, world_size=1)
    assert halts(look(Stall, [rank], order=order, processes=alive)) == found


@pytest.mark.parametrize(("silent_s", "found"), [(3600.0, []), (3600.25, [1800.0])])
def test_a_program_that_names_nothing_may_be_silent_for_an_hour(
    silent_s: float, found: list[float]
) -> None:
    rank = standing(None, for_s=100.0, labelled=False, heard_mono=NOW - silent_s)
    alive = Processes(ranks={0: Process(state=ProcessState.ALIVE)})
    order = order_of({}, steps=1000, world_size=1)
    assert halts(look(Stall, [rank], order=order, processes=alive)) == found


@pytest.mark.parametrize(
    ("state", "held_s", "found"),
    [
        (ProcessState.UNINTERRUPTIBLE, 599.75, []),
        (ProcessState.UNINTERRUPTIBLE, 600.0, [15.0]),
        (ProcessState.STOPPED, 5.0, [15.0]),
    ],
)
def test_who_names_no_sections_may_write_a_checkpoint_in_uninterruptible_sleep(
    state: ProcessState, held_s: float, found: list[float]
) -> None:
    rank = standing(None, for_s=700.0, labelled=False)
    held = Processes(ranks={0: Process(state=state, held_mono=NOW - held_s)})
    order = order_of({}, steps=1000, world_size=1)
    assert halts(look(Stall, [rank], order=order, processes=held)) == found


@pytest.mark.parametrize("spoke", [True, False])
def test_uninterruptible_sleep_lasts_no_less_than_suspect_silence(spoke: bool) -> None:
    """Whatever a checkpoint has; nor more where nobody knows whether the rank names sections."""
    run = Run(
        order=order_of({"section_deadline": {"checkpoint": {"halt_s": 20.0}}} if spoke else {})
    )
    streams = {0: standing(None, for_s=70.0, labelled=False)} if spoke else {}
    for held_s, held in ((29.75, False), (30.0, True)):
        sleeps = Process(state=ProcessState.UNINTERRUPTIBLE, held_mono=NOW - held_s)
        view = View(run=run, streams=streams, processes=Processes(ranks={0: sleeps}))
        assert view.held(0, NOW) is held


def held_in_a_step(state: str, free_s: float, held_s: float) -> World:
    world = World(order_of({}, steps=200), alive_every_s=5.0).boot().steps(40)
    world.open_step()
    for rank in world.ranks:
        rank.enter("backward")
        rank.spend(free_s)
    world.probe(1, state)
    for rank in world.ranks:
        rank.spend(held_s)
    world.probe(1, "alive")
    for rank in world.ranks:
        rank.spend(1.0)
        rank.enter("log")
    world.close_step()
    return world.steps(3)


@pytest.mark.parametrize(
    ("state", "free_s", "held_s"),
    [("stopped", 15.5, 0.6), ("uninterruptible", 15.5, 0.6), ("uninterruptible", 1.0, 29.0)],
)
def test_a_step_in_which_a_process_is_held_for_a_while_goes_on(
    state: str, free_s: float, held_s: float
) -> None:
    assert watch(held_in_a_step(state, free_s, held_s)).halts == []


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("section", "halts"), [("checkpoint", 0), ("eval", 0), ("data", 0), ("optimizer", 1)]
)
def test_a_step_that_has_computed_for_long_may_save_in_uninterruptible_sleep(
    section: str, halts: int, ranks: int
) -> None:
    """The sleep is the section's way, and the time of that is its own."""
    world = World(order_of({}, steps=200, world_size=ranks), alive_every_s=5.0).boot().steps(40)
    world.open_step()
    for rank in world.ranks:
        rank.enter("backward")
        rank.spend(20.0 if section != "optimizer" else 1.0)
        rank.enter(section if rank.rank == 0 else None)
        rank.spend(1.1)
    world.probe(0, "uninterruptible")
    for rank in world.ranks:
        rank.spend(55.0)
    world.probe(0, "alive")
    world.close_step()
    found = watch(world.steps(3)).halted()
    assert [row[:2] for row in found] == [("stall", 0)] * halts


@pytest.mark.parametrize(("state", "limit_s"), [("stopped", 15.0), ("uninterruptible", 30.0)])
def test_a_process_that_stays_held_in_a_step_is_its_culprit(state: str, limit_s: float) -> None:
    (halt,) = watch(held_in_a_step(state, 0.0, 50.0)).halts
    assert (halt.detector, halt.rank, halt.section) == ("stall", 1, "backward")
    assert limit_s <= (halt.value or 0.0) < limit_s + 1.0


def test_all_ranks_silent_halts_when_every_stack_stands_still() -> None:
    world = hung(for_s=1.5)
    for after_s in (10.0, 16.0):
        for rank in world.ranks:
            rank.mono += after_s
        rows = [{"rank": rank, "digest": "same", "waiting": True} for rank in (0, 1)]
        world.probes.append((world.mono, {"stacks": rows}))
    world.ranks[0].mono += 2.0
    assert watch(world).halted() == [("stall", 1, "backward")]


@pytest.mark.parametrize(
    ("first_s", "later_s", "found"),
    [(28.0, 40.0, ["stall"]), (6.0, 80.0, []), (6.0, 900.0, ["stall"])],
)
def test_stacks_that_stood_once_do_not_testify_for_lines_that_come_no_more(
    first_s: float, later_s: float, found: list[str]
) -> None:
    """Of a step of half a minute whose lines are held up, and that had paused before."""
    world = World(order_of({}, steps=60)).boot().steps(40, step_s=1.5)
    for rank in world.ranks:
        rank.step += 1
        rank.say("step_start")
        rank.enter("backward")
        rank.spend(1.5)
    for after_s in (first_s, 6.0):
        for rank in world.ranks:
            rank.mono += after_s
        rows = [{"rank": rank, "digest": "same", "waiting": True} for rank in (0, 1)]
        world.probes.append((world.mono, {"stacks": rows}))
    for rank in world.ranks:
        rank.mono += later_s
    assert [row.detector for row in watch(world).halts] == found


def heard_last_in_backward() -> tuple[World, Rank]:
    """A run of one rank whose lines come no more."""
    world = World(order_of({}, steps=60, world_size=1)).boot().steps(40, step_s=1.5)
    (rank,) = world.ranks
    rank.step += 1
    rank.say("step_start")
    rank.enter("backward")
    rank.spend(1.5)
    return world, rank


@pytest.mark.parametrize(
    ("owns_gil", "cpu_s", "found"),
    [
        (False, 20.0, []),
        (None, 20.0, ["stall"]),
        (True, 20.0, ["stall"]),
        (False, 0.1, []),
        (True, 0.1, ["stall"]),
    ],
    ids=["busy", "of an earlier release", "spins in a call", "idle", "sleeps in a call"],
)
def test_who_leaves_the_interpreter_to_others_would_speak_and_its_lines_are_lost(
    owns_gil: bool | None, cpu_s: float, found: list[str]
) -> None:
    """Two readings fall on `loss.backward()`, in which most of a healthy step is spent."""
    world, rank = heard_last_in_backward()
    for after_s, used_s in ((30.0, 0.0), (22.0, cpu_s)):
        rank.mono += after_s
        row = {"rank": 0, "digest": "same", "cpu_s": used_s, "owns_gil": owns_gil}
        world.probes.append((world.mono, {"stacks": [row]}))
    rank.mono += 10.0
    assert [row.detector for row in watch(world).halts] == found


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ({"digest": "elsewhere", "owns_gil": True}, []),
        ({"digest": "same", "owns_gil": False}, []),
        ({"digest": "same", "owns_gil": True}, ["stall"]),
    ],
    ids=["elsewhere", "left the interpreter to others", "held it there"],
)
def test_who_was_seen_to_move_since_it_was_heard_last_has_not_stood_since(
    before: dict[str, Any], found: list[str]
) -> None:
    """It saves while its lines are held up: half a minute of that halted a run (seed 74)."""
    world, rank = heard_last_in_backward()
    for after_s, seen in ((30.0, before), (10.0, {}), (12.0, {})):
        rank.mono += after_s
        row = {"rank": 0, "digest": "same", "cpu_s": 0.0, "owns_gil": True, **seen}
        world.probes.append((world.mono, {"stacks": [row]}))
    rank.mono += 10.0
    assert [row.detector for row in watch(world).halts] == found


def stacks(world: World, seconds: float, **of: tuple[str, bool, float]) -> None:
    """Two readings of every stack: digest, waiting and CPU seconds used in between, by rank."""
    for number in (0, 1):
        for rank in world.ranks:
            rank.spend(seconds)
        rows = [
            {"rank": int(rank[1:]), "round": number + 1, "digest": digest, "waiting": waiting,
             "cpu_s": 5.0 + number * cpu_s}
            for rank, (digest, waiting, cpu_s) in of.items()
        ]  # fmt: skip
        world.probes.append((world.mono, {"stacks": rows}))
    for rank in world.ranks:
        rank.spend(100.0)


SAME, MOVING = ("a", True, 0.0), ("b", False, 0.01)


@pytest.mark.parametrize(
    ("r0", "r1", "seconds", "early"),
    [
        (SAME, MOVING, 8.0, True),
        (SAME, ("b", False, 4.0), 8.0, False),
        (SAME, SAME, 8.0, False),
        (MOVING, MOVING, 8.0, False),
        (SAME, MOVING, 2.0, False),
    ],
    ids=["idle minority", "busy minority", "all wait", "none waits", "too soon"],
)
def test_stacks_corroborate_only_an_idle_minority_outside_the_collective(
    r0: tuple[str, bool, float], r1: tuple[str, bool, float], seconds: float, early: bool
) -> None:
    world = hung({}, steps=40, for_s=1.5)
    stacks(world, seconds, r0=r0, r1=r1)
    (halt,) = watch(world).halts
    assert halt.threshold == (15.0 if early else 60.0)


def test_stacks_that_changed_corroborate_nothing() -> None:
    world = hung({}, steps=40, for_s=1.5)
    stacks(world, 8.0, r0=SAME, r1=MOVING)
    first = world.probes[-2][1]["stacks"]
    first[1]["digest"] = "other"
    (halt,) = watch(world).halts
    assert halt.threshold == 60.0


def test_a_held_rank_corroborates() -> None:
    world = hung({}, steps=40, for_s=3.0)
    world.probe(1, "stopped")
    for rank in world.ranks:
        rank.spend(100.0)
    (halt,) = watch(world).halts
    assert (halt.threshold, halt.rank) == (15.0, 1)


def test_a_rank_whose_alive_line_is_lost_corroborates() -> None:
    world = hung({"alive_lost": {"suspect_s": 5, "halt_s": 500}}, steps=40, for_s=3.0)
    world.ranks[1].stopped = True
    for rank in world.ranks:
        rank.spend(100.0)
    (halt,) = watch(world).halts
    assert (halt.detector, halt.threshold, halt.rank) == ("stall", 15.0, 1)


@pytest.mark.parametrize(("ranks", "step_s"), [(2, 0.5), (2, 8.0), (4, 2.0)])
def test_lines_of_one_rank_that_come_late_are_no_stall_of_a_run_that_takes_steps(
    ranks: int, step_s: float
) -> None:
    """A disk that others share tells of them every minute or so."""
    world = World(order_of({}, steps=2000, world_size=ranks), alive_every_s=5.0).boot()
    world.steps(40, step_s=step_s)
    since = world.mono + 0.5 * step_s
    world.steps(int(80.0 / step_s), step_s=step_s)
    rank = world.ranks[1]
    late = [since + 55.0 if since < s.mono < since + 55.0 else s.mono for s in rank.lines]
    rank.lines = [Said(mono, s.raw) for mono, s in zip(late, rank.lines, strict=True)]
    assert watch(world, interval_s=1.0).halted() == []


@pytest.mark.parametrize("section", ["checkpoint", "eval"])
def test_lines_that_come_late_are_no_stall_while_another_rank_acts_for_all(section: str) -> None:
    world = World(order_of({}, steps=2000), alive_every_s=5.0).boot().steps(40, step_s=2.0)
    since = world.mono + 1.2
    world.steps(1, step_s=2.0)
    acting, late = world.ranks
    acting.enter(section)
    acting.spend(120.0)
    acting.enter(None)
    world.meet()
    world.steps(5, step_s=2.0)
    late.lines = [
        Said(max(s.mono, since + 55.0), s.raw) if s.mono > since else s for s in late.lines
    ]
    assert watch(world, interval_s=1.0).halted() == []


def waited_for(what: str, *, step_s: float = 0.5) -> World:
    """Rank 0 is fed, evaluates or saves for 84 s; rank 1 has opened its step, and waits for it."""
    world = World(order_of({}, steps=2000), alive_every_s=5.0).boot().steps(40, step_s=step_s)
    acting = world.ranks[0]
    if what == "data":
        world.open_step(data_s=[84.0, 0.01])
        return world
    acting.enter(what)
    acting.spend(84.0)
    acting.enter(None)
    world.open_step()
    return world


@pytest.mark.parametrize("what", ["data", "eval", "checkpoint"])
@pytest.mark.parametrize(("step_s", "later_s"), [(0.5, 2.0), (5.0, 12.0)])
def test_whose_lines_come_late_has_not_stood_while_it_waited_for_a_peer_that_is_ahead_since(
    what: str, step_s: float, later_s: float
) -> None:
    """Those of another node are heard a moment later, when the peer is two steps further."""
    world = waited_for(what, step_s=step_s)
    world.compute(step_s=step_s)
    world.close_step()
    world.steps(8, step_s=step_s)
    world.ranks[1].lines = [Said(s.mono + later_s, s.raw) for s in world.ranks[1].lines]
    assert watch(world).halts == []


@pytest.mark.parametrize("what", ["data", "eval", "checkpoint"])
def test_who_hangs_has_stood_since_the_peer_came_back_that_went_on_alone(what: str) -> None:
    world = waited_for(what)
    goes_on, hangs = world.ranks
    hangs.enter("backward")
    hangs.spend(200.0)
    while goes_on.mono < hangs.mono:
        goes_on.enter("forward")
        goes_on.spend(2.0)
        goes_on.enter(None)
        goes_on.say("step_end", tokens=512)
        goes_on.step += 1
        goes_on.say("step_start")
    (halt,) = watch(world).halts
    assert (halt.detector, halt.rank, halt.section) == ("stall", 1, "backward")
    assert 60.0 < (halt.value or 0) <= 62.0


@pytest.mark.parametrize(("ahead", "said"), [(0, True), (1, True), (2, False)])
def test_a_silent_rank_corroborates_while_its_peers_are_no_two_steps_ahead(
    ahead: int, said: bool
) -> None:
    silent = standing("backward", for_s=70.0, heard_mono=NOW - 60.0)
    peer = standing("backward", for_s=70.0, rank=1, step=silent.step + ahead)
    view = View(run=Run(order=order_of({})), streams={0: silent, 1: peer})
    assert corroborated(view, [silent, peer], NOW) is said


@pytest.mark.parametrize(("later_s", "said"), [(10.0, False), (10.25, True)])
def test_ranks_that_fell_silent_together_corroborate_nothing(later_s: float, said: bool) -> None:
    heard = NOW - 35.0  # silent for 30 s is suspect, half of that is together
    order = order_of({"alive_lost": {"suspect_s": 20.0}})
    silent = standing("backward", for_s=40.0, heard_mono=heard)
    peer = standing("backward", for_s=40.0, rank=1, heard_mono=heard + later_s)
    view = View(run=Run(order=order), streams={0: silent, 1: peer})
    assert corroborated(view, [silent, peer], heard + later_s + 15.0) is said


def test_a_rank_that_is_never_heard_again_is_lost_while_its_peers_take_steps() -> None:
    world = World(order_of({}, steps=2000), alive_every_s=5.0).boot().steps(40, step_s=8.0)
    since = world.mono + 6.0
    world.steps(12, step_s=8.0)
    world.ranks[1].lines = [said for said in world.ranks[1].lines if said.mono < since]
    (halt,) = watch(world, interval_s=1.0).halts
    assert (halt.detector, halt.rank) == ("alive_lost", 1)
    assert halt.at - EPOCH + T0 - since < 65.0


def test_a_late_tick_raises_no_stall_and_the_next_one_does() -> None:
    world = hung()
    stalled_at = world.ranks[1].mono - 20.0

    def ticking(end: float) -> list[tuple[float, float]]:
        on_time = [(T0 + number / 4, 0.0) for number in range(int(4 * (stalled_at + 4.5 - T0)))]
        return [*on_time, (stalled_at + 5.75, 0.76), (stalled_at + 6.0, 0.0)]

    (halt,) = watch(world, ticking=ticking).halts
    assert halt.at - EPOCH == pytest.approx(stalled_at + 6.0 - T0)


def test_a_tick_late_by_three_intervals_still_counts() -> None:
    world = hung()
    stalled_at = world.ranks[1].mono - 20.0

    def ticking(end: float) -> list[tuple[float, float]]:
        on_time = [(T0 + number / 4, 0.0) for number in range(int(4 * (stalled_at + 4.5 - T0)))]
        return [*on_time, (stalled_at + 5.75, 0.75), (stalled_at + 6.0, 0.0)]

    (halt,) = watch(world, ticking=ticking).halts
    assert halt.at - EPOCH == pytest.approx(stalled_at + 5.75 - T0)


def test_a_watcher_that_slept_starts_all_deadlines_anew() -> None:
    world = hung(for_s=40.0)
    began = world.mono - 40.0

    def ticking(end: float) -> list[tuple[float, float]]:
        on_time = [(T0 + number / 4, 0.0) for number in range(int(4 * (began - T0)))]
        awake = [(began + 30.0 + number / 4, 0.0) for number in range(1, 40)]
        return [*on_time, (began + 30.0, 29.5), *awake]

    (halt,) = watch(world, ticking=ticking).halts
    assert 35.0 < halt.at - EPOCH - (began - T0) <= 35.5


@pytest.mark.parametrize(
    ("stall", "halts_after_s"), [({"halt_s": 60.0}, 320.0), ({}, 1800.0)], ids=["said", "unsaid"]
)
def test_a_rank_that_labels_nothing_is_timed_by_its_lines(
    stall: dict[str, float], halts_after_s: float
) -> None:
    """It may be evaluating: without the plan's word it has half an hour."""
    world = World(order_of({"stall": {"min_steps": 3, **stall}}, steps=400, world_size=1))
    (rank,) = world.ranks
    rank.section = None
    rank.say("boot")
    for step in range(20, 120, 20):  # a line every 20 steps of 2 s
        rank.mono += 40.0
        rank.step = step
        rank.say("progress", loss=5.0)
    rank.mono += halts_after_s - 20.0
    rank.say("beat")
    assert watch(world, interval_s=1.0).halts == []
    rank.mono += 25.0
    rank.say("beat")
    (halt,) = watch(world, interval_s=1.0).halts
    assert halt.detector == Detector.STALL
    assert halt.threshold == pytest.approx(halts_after_s)


def test_nobody_is_blamed_when_no_rank_is_left() -> None:
    world = hung(for_s=0.5)
    for rank in world.ranks:
        world.probe(rank.rank, "dead", signal=9)
        rank.mono += 30.0
    assert watch(world, stop_at_halt=False).named(Severity.HALT) == {"process_death"}


def test_nothing_corroborates_before_there_are_enough_steps() -> None:
    world = hung({}, steps=5, for_s=3.0)
    world.probe(1, "stopped")
    for rank in world.ranks:
        rank.spend(100.0)
    assert watch(world).halts == []


def test_a_rank_that_obeys_a_halt_is_given_its_time() -> None:
    world = hung(for_s=0.5)
    for rank in world.ranks:
        rank.say("halt_seen")
        rank.spend(20.0)
    assert watch(world).halts == []


def test_a_rank_that_labels_nothing_and_reached_the_last_step_is_done() -> None:
    world = World(order_of(steps=100, world_size=1))
    (rank,) = world.ranks
    rank.section = None
    rank.say("boot")
    for step in range(20, 120, 20):
        rank.mono += 40.0
        rank.step = step
        rank.say("progress", loss=5.0)
    for _ in range(500):
        rank.mono += 1.0
        rank.say("beat")
    assert watch(world, interval_s=1.0).halts == []


def test_it_is_armed_once_a_step_has_ended() -> None:
    assert not armed(watch(World(order_of()).boot()).state)[Detector.STALL]
    assert armed(watch(World(order_of()).boot().steps(1)).state)[Detector.STALL]


def test_the_demo_settings_are_those_of_the_plan() -> None:
    assert order_of().watch.stall.halt_s == DEMO["stall"]["halt_s"]


def test_a_run_that_becomes_slow_but_moves_is_no_stall() -> None:
    world = World(order_of({}, steps=10**6), alive_every_s=5.0).boot().steps(300, step_s=2.0)
    for step_s in (4.0, 8.0, 16.0, 40.0, 55.0, 70.0, 100.0, 130.0):  # up to 65 medians
        world.steps(1, step_s=step_s)
    found = watch(world, interval_s=1.0)
    assert found.halts == []


def test_a_slow_run_that_stands_is_a_stall_after_half_as_long_again() -> None:
    world = World(order_of({}, steps=10**6), alive_every_s=5.0).boot().steps(300, step_s=2.0)
    for step_s in (10.0, 40.0, 60.0, 80.0):
        world.steps(1, step_s=step_s)
    world.open_step()
    world.hang(1, "forward", 200.0)
    (halt,) = watch(world, interval_s=1.0).halts
    assert (halt.detector, halt.rank, halt.section) == ("stall", 1, "forward")
    assert halt.value == pytest.approx(1.5 * 80.0, abs=2.0)
    assert halt.source is Source.ADAPTIVE


def test_a_stall_of_ranks_that_nothing_tells_apart_names_none() -> None:
    world = World(order_of(steps=200), alive_every_s=0.5).boot().steps(11)
    world.open_step()
    for rank in world.ranks:
        rank.enter("forward")
        rank.spend(20.0)
    (halt,) = watch(world).halts
    assert (halt.detector, halt.rank, halt.section, halt.step) == ("stall", None, "forward", 12)
    assert "nothing tells apart" in halt.text


def test_waiting_for_a_peers_loader_is_no_stall_when_the_step_goes_on() -> None:
    world = World(order_of({}, steps=10**6), alive_every_s=5.0).boot().steps(40, step_s=4.0)
    world.open_step(data_s=[0.01, 200.0])
    fed, late = world.ranks
    fed.enter("forward")
    fed.spend(1.2)
    fed.enter("backward")
    fed.spend(late.mono - fed.mono)
    late.enter("forward")
    late.spend(1.2)
    late.enter("backward")
    late.spend(2.0)
    fed.spend(3.2)
    for rank in world.ranks:
        rank.collective_seq += 1
        rank.enter("optimizer")
        rank.spend(8.0)
        rank.enter("log")
    world.close_step()
    assert watch(world.steps(3, step_s=4.0), interval_s=1.0).halts == []


def test_a_hang_after_a_peers_loader_came_back_is_still_a_stall() -> None:
    world = World(order_of({}, steps=10**6), alive_every_s=5.0).boot().steps(40, step_s=4.0)
    world.open_step(data_s=[0.01, 100.0])
    fed, late = world.ranks
    fed.enter("forward")
    fed.spend(1.2)
    fed.enter("backward")
    fed.spend(late.mono - fed.mono)
    fed.collective_seq += 1
    late.enter("forward")
    for rank in world.ranks:
        rank.spend(90.0)
    (halt,) = watch(world, interval_s=1.0).halts
    assert (halt.detector, halt.rank, halt.section) == ("stall", 1, "forward")
    assert 60.0 < (halt.value or 0) <= 62.0


def desynchronised(asked_s: float) -> World:
    """Rank 1 stands in a collective of its own; the dumps were asked for `asked_s` into that."""
    world = World(order_of(steps=200), alive_every_s=0.5)
    world.boot().steps(11, step_s=0.5)
    world.open_step()
    began = world.mono
    world.ranks[0].collective_seq -= 1  # the extra one counts: by position rank 0 is behind
    world.hang(1, "backward", 20.0)
    said = {"only": 1, "asked_mono": began + asked_s, "text": "rank 1 alone entered it"}
    world.probes.append((began + 3.0, {"observations": {"collectives": said}}))
    return world


def test_a_rank_in_a_collective_of_its_own_stalls_in_no_section() -> None:
    found = watch(desynchronised(2.5))
    assert found.halted() == [("stall", 1, None)]
    (halt,) = found.halts
    assert halt.since is not None
    assert halt.at - halt.since <= 7.0
    assert halt.text.endswith("rank 1 alone entered it")


def unlabelled_hang(*, told: bool, world_size: int = 2) -> World:
    """Ranks that name no section and count no collective stand still, told apart or not."""
    world = World(
        order_of({"stall": {"min_steps": 3, "halt_s": 60}}, steps=400, world_size=world_size)
    )
    for rank in world.ranks:
        rank.section = None
        rank.say("boot")
    for step in range(1, 12):
        for rank in world.ranks:
            rank.mono += 2.0
            rank.step = step
            rank.say("progress", loss=5.0)
    began = max(rank.mono for rank in world.ranks)
    for _ in range(40):
        for rank in world.ranks:
            rank.mono += 2.0
            rank.say("alive")
    if told:
        said = {"behind": [1], "asked_mono": began + 12.0, "text": "rank 1 did not enter it"}
        world.probes.append((began + 15.0, {"observations": {"collectives": said}}))
    return world


@pytest.mark.parametrize(("told", "rank"), [(False, None), (True, 1)])
def test_a_hang_that_no_line_explains_is_explained_by_the_flight_recorders(
    told: bool, rank: int | None
) -> None:
    (halt,) = watch(unlabelled_hang(told=told), interval_s=1.0).halts
    assert (halt.detector, halt.rank, halt.section) == ("stall", rank, None)
    assert halt.text.endswith("rank 1 did not enter it") is told


def test_collectives_told_before_the_step_began_name_nobody() -> None:
    ((detector, _, section),) = watch(desynchronised(-2.0)).halted()
    assert (detector, section) == ("stall", "backward")


@pytest.mark.parametrize(
    ("for_s", "steps", "suspect", "halt"),
    [
        (10.0, 32, [], []),
        (10.25, 32, [10.0], []),
        (60.0, 32, [10.0], []),
        (60.25, 32, [10.0], [60.0]),
        (150.0, 31, [], []),
        (150.25, 31, [150.0], []),
        (300.0, 31, [150.0], []),
        (300.25, 31, [150.0], [300.0]),
        (300.25, 1, [150.0], [300.0]),
        (9999.0, 0, [], []),
    ],
)
def test_each_limit_has_to_be_passed(
    for_s: float, steps: int, suspect: list[float], halt: list[float]
) -> None:
    found = look(Stall, [standing("forward", for_s=for_s, steps=steps)])
    assert (suspects(found), halts(found)) == (suspect, halt)


@pytest.mark.parametrize(
    ("settings", "told", "m", "suspect_s", "halt_s"),
    [
        ({}, {}, 1.0, 10.0, 60.0),
        ({}, {"step_s": 4.0}, 4.0, 12.0, 60.0),
        ({}, {"step_s": 8.0}, 8.0, 24.0, 64.0),
        ({}, {"step_s": 48.0}, 1.0, 72.0, 72.0),
        ({}, {"labelled": False}, 1.0, 10.0, 1800.0),
        ({"halt_s": 60.0}, {"labelled": False}, 1.0, 10.0, 60.0),
        ({}, {"steps": 3}, None, 150.0, 300.0),
        ({}, {"steps": 3, "labelled": False}, None, 900.0, 1800.0),
        ({}, {"steps": 3, "labelled": False}, 1.0, 150.0, 300.0),
        ({}, {"steps": 3, "labelled": False, "stride": 10}, 1.0, 900.0, 1800.0),
        ({}, {"steps": 3, "stride": 10}, 1.0, 150.0, 300.0),
        ({"early_s": 2.0}, {"steps": 3}, None, 1.0, 2.0),
        ({"early_s": 0.25}, {"steps": 3}, None, 0.125, 0.25),
        ({"early_s": 2.0}, {"steps": 3}, 1.0, 5.0, 10.0),
        ({}, {"steps": 1, "first_s": 20.0}, None, 150.0, 300.0),
        ({}, {"steps": 1, "first_s": 60.0}, None, 300.0, 600.0),
        ({}, {"steps": 1, "first_s": 400.0}, None, 450.0, 900.0),
        ({}, {"steps": 1, "first_s": 800.0}, None, 600.0, 1200.0),
        ({"early_s": 300.0}, {"steps": 1, "first_s": 400.0}, None, 300.0, 600.0),
        ({}, {"steps": 3, "first_s": 400.0}, 1.0, 150.0, 300.0),
        ({}, {"first_s": 40.0}, 1.0, 10.0, 60.0),
        ({}, {"first_s": 120.0}, 1.0, 10.0, 180.0),
        ({}, {"first_s": 120.0, "step_s": 32.0}, 32.0, 96.0, 256.0),
        ({}, {"first_s": 400.0}, 1.0, 10.0, 300.0),
        ({"halt_s": 60.0}, {"first_s": 120.0}, 1.0, 10.0, 60.0),
    ],
    ids=[
        "fixed",
        "suspect follows the median",
        "both follow the median",
        "half as long again as the step before",
        "names nothing",
        "names nothing, and the plan says how long",
        "early",
        "early, names nothing",
        "early, names nothing, but steps are known",
        "early, names nothing, and tells every tenth step",
        "early, tells every tenth step",
        "early as the plan says",
        "early as the plan says, however soon",
        "early follows the median",
        "a short first step is all there is",
        "the first step is all there is",
        "the second may take as long as a first one",
        "the second may take half as long again as the first",
        "the first step is all there is, and the plan says how long",
        "the first step is no sample",
        "the first step took less",
        "the first step took more",
        "the first step took less than eight medians",
        "the first step took more than the early limit",
        "the first step took more, and the plan says how long",
    ],
)
def test_the_limits_of_a_rank(
    settings: dict[str, float],
    told: dict[str, Any],
    m: float | None,
    suspect_s: float,
    halt_s: float,
) -> None:
    stride = told.pop("stride", 1)
    rank = standing("forward", for_s=0.0, **told)
    rank.pace.stride = stride
    found = limits(Run(order=order_of({"stall": settings})), rank, m, 0.0)
    assert [limit.seconds for limit in found] == [suspect_s, halt_s]


@pytest.mark.parametrize(
    ("settings", "told", "halt_s"),
    [
        ({}, {"steps": 3, "labelled": False}, 1800.0),
        ({}, {"steps": 3}, 300.0),
        ({"early_s": 20.0, "halt_s": 20.0}, {"steps": 3, "labelled": False}, 20.0),
        ({"halt_s": 20.0}, {"labelled": False}, 20.0),
    ],
    ids=["each line may be many steps", "it is attached", "the plan says how long", "later"],
)
def test_the_limits_of_a_program_that_is_read(
    settings: dict[str, float], told: dict[str, Any], halt_s: float
) -> None:
    order = order_of({"stall": settings}).model_copy(update={"patterns": ["x"], "command": ["x"]})
    found = limits(Run(order=order), standing("forward", for_s=0.0, **told), 1.0, 0.0)
    assert found[1].seconds == halt_s


def test_of_equal_limits_the_fixed_one_is_told() -> None:
    run = Run(order=order_of({"stall": {"suspect_s": 3.0, "halt_s": 8.0}}))
    found = limits(run, standing("forward", for_s=0.0), 1.0, 0.0)
    assert [(limit.seconds, limit.source) for limit in found] == [
        (3.0, Source.PLAN),
        (8.0, Source.PLAN),
    ]


HELD = Processes(ranks={0: Process(state=ProcessState.STOPPED)})


@pytest.mark.parametrize(
    ("for_s", "settings", "steps", "found"),
    [
        (15.0, {}, (32, 32), []),
        (15.25, {}, (32, 32), [(15.0, Source.DEFAULT)]),
        (15.25, {}, (32, 31), []),
        (16.0, {"corroborate_s": 16.0}, (40, 40), []),
        (16.25, {"corroborate_s": 16.0}, (40, 40), [(16.0, Source.PLAN)]),
        (15.25, {"halt_s": 15.0}, (40, 40), [(15.0, Source.PLAN)]),
        (12.25, {"halt_s": 12.0}, (40, 40), [(12.0, Source.PLAN)]),
    ],
    ids=[
        "at the limit",
        "beyond it",
        "a peer has taken too few steps",
        "at the plan's",
        "beyond the plan's",
        "no earlier than the plain one",
        "later than the plain one",
    ],
)
def test_the_earlier_limit_of_a_corroborated_stall(
    for_s: float,
    settings: dict[str, float],
    steps: tuple[int, int],
    found: list[tuple[float, Source]],
) -> None:
    ranks = [
        standing("backward", for_s=for_s, rank=rank, steps=count, step=41)
        for rank, count in enumerate(steps)
    ]
    seen = look(Stall, ranks, {"stall": settings}, processes=HELD)
    assert [(row.threshold, row.source) for row in seen if row.severity is Severity.HALT] == found


def stacked(waits: list[bool | None], cpu_s: float = 0.0) -> tuple[View, list[RankStream]]:
    """Ranks whose stacks stand still, and whether each waits in a collective."""
    ranks = [standing("backward", for_s=60.0, rank=rank) for rank in range(len(waits))]
    readings = {
        rank: tuple(
            Stack(
                mono=NOW - 10.0 + after_s,
                probe=StackProbe(
                    rank=rank, round=1, digest="same", waiting=waiting, cpu_s=after_s * cpu_s
                ),
            )
            for after_s in (0.0, 8.0)
        )
        for rank, waiting in enumerate(waits)
    }
    order = order_of({}, world_size=len(ranks))
    known = {row.rank: row for row in ranks}
    return View(run=Run(order=order), streams=known, processes=Processes(stacks=readings)), ranks


@pytest.mark.parametrize(
    ("waits", "said"),
    [
        ([True, True], False),
        ([True, False], True),
        ([False, False], False),
        ([True, True, False], True),
        ([True, False, False], False),
        ([True, True, False, False], True),
        ([True, None, False], False),
    ],
)
def test_at_most_half_of_the_ranks_may_stand_elsewhere(
    waits: list[bool | None], said: bool
) -> None:
    assert corroborated(*stacked(waits), NOW) is said


@pytest.mark.parametrize(("later_s", "said"), [(28.0, True), (28.5, False)])
def test_stacks_of_a_while_ago_corroborate_nothing(later_s: float, said: bool) -> None:
    """They stood for a moment; where they are now was not looked at."""
    assert corroborated(*stacked([True, False]), NOW + later_s) is said


def test_a_rank_elsewhere_that_computes_corroborates_nothing() -> None:
    assert not corroborated(*stacked([True, False], cpu_s=1.0), NOW)


@pytest.mark.parametrize(
    ("peer", "value"),
    [
        (standing("backward", for_s=70.0, rank=1, collective_seq=1), 70.0),
        (standing("log", for_s=0.0, rank=1, compute_s=70.0), 70.0),
        (standing("log", for_s=5.0, rank=1, compute_s=70.0), 75.0),
        (standing("log", for_s=15.0, rank=1, compute_s=70.0), 80.0),
        (standing("forward", for_s=70.0, rank=1, steps=41, advanced_mono=NOW - 70.0), 70.0),
        (standing("forward", for_s=5.0, rank=1, labelled=False, collective_seq=1), 80.0),
    ],
    ids=["fed later", "in log just now", "in log", "long in log", "a step ahead", "names nothing"],
)
def test_a_step_has_stood_since_the_last_rank_was_fed(peer: RankStream, value: float) -> None:
    if peer.section == "log":
        peer.section_seq = 1
    (halt,) = [
        row
        for row in look(Stall, [standing("backward", for_s=80.0), peer])
        if row.severity is Severity.HALT
    ]
    assert (halt.rank, halt.value) == (0, value)


@pytest.mark.parametrize(
    ("for_s", "labelled", "step", "found"),
    [
        (2000.0, False, 999, [1800.0]),
        (2000.0, False, 1000, []),
        (14_400.0, False, 1000, []),
        (14_401.0, False, 1000, [14_400.0]),
        (2000.0, True, 999, [60.0]),
        (2000.0, True, 1000, [60.0]),
    ],
)
def test_after_the_last_step_a_rank_that_names_nothing_has_hours_and_no_more(
    for_s: float, labelled: bool, step: int, found: list[float]
) -> None:
    """It may evaluate or save, and says neither; a process that never exits holds its devices."""
    rank = standing("forward", for_s=for_s, step=step, labelled=labelled)
    assert halts(look(Stall, [rank])) == found


def test_after_the_last_step_long_steps_and_long_evaluations_make_the_limit_longer() -> None:
    slow = standing(None, for_s=70_000.0, step=1000, step_s=1000.0, labelled=False)
    assert halts(look(Stall, [slow])) == [64_000.0]
    long = {"section_deadline": {"eval": {"halt_s": 3600}}, "stall": {"halt_s": 100}}
    quick = standing(None, for_s=29_000.0, step=1000, labelled=False)
    assert halts(look(Stall, [quick], long)) == [28_800.0]


def test_half_of_those_hours_are_suspect_and_a_limit_that_the_plan_sets_is_the_plans() -> None:
    def seen(for_s: float) -> list[Finding]:
        rank = standing("forward", for_s=for_s, step=1000, labelled=False)
        return look(Stall, [rank], {"section_deadline": {"eval": {"halt_s": 1800}}})

    assert suspects(seen(7199.0)) == []
    assert suspects(seen(7201.0)) == [7200.0]
    (halt,) = [row for row in seen(14_401.0) if row.severity is Severity.HALT]
    assert halt.source is Source.PLAN


def test_a_rank_that_names_nothing_and_has_taken_its_last_step_is_no_peer_of_one_that_has_not() -> (
    None
):
    behind = standing(None, for_s=2000.0, step=999, labelled=False)
    ended = standing(None, for_s=2000.0, step=1000, rank=1, labelled=False)
    (halt,) = [row for row in look(Stall, [behind, ended]) if row.severity is Severity.HALT]
    assert (halt.rank, halt.threshold) == (0, 1800.0)


def test_of_a_run_with_few_steps_an_early_limit_below_all_others_counts() -> None:
    rank = standing("forward", for_s=5.25, steps=3)
    assert suspects(look(Stall, [rank], {"stall": {"early_s": 10.0}})) == [5.0]


def test_a_run_whose_clock_tells_no_step_time_has_the_early_limit() -> None:
    rank = standing("forward", for_s=300.25, step_s=0.0)
    assert halts(look(Stall, [rank])) == [300.0]


SHORT_S, LONG_S = 5.0, 100.0


def uneven(*long: int, steps: int = 48, named: bool = True, **fields: Any) -> World:
    """Steps of 5 s, of which the `long` ones compute for 100 s: they generate answers."""
    world = World(order_of({}, steps=10**4, **fields), alive_every_s=5.0).boot()
    for step in range(1, steps + 1):
        world.open_step()
        if named:
            world.compute(step_s=LONG_S if step in long else SHORT_S)
        else:
            for rank in world.ranks:
                rank.enter(None)
                rank.spend(LONG_S if step in long else SHORT_S)
        world.close_step()
    return world


@pytest.mark.parametrize("named", [True, False], ids=["names its computing", "names its loader"])
@pytest.mark.parametrize("every", [4, 10, 30])
def test_one_step_of_many_that_is_much_longer_is_neither_halted_nor_suspect(
    every: int, named: bool
) -> None:
    world = uneven(*range(every, 120, every), steps=119, named=named)
    assert [(row.detector, row.text) for row in watch(world, interval_s=1.0).findings] == []


def test_rank_0_generates_for_all_in_one_step_of_four_while_the_others_wait() -> None:
    world = World(order_of({}, steps=10**4), alive_every_s=5.0).boot()
    for step in range(1, 80):
        world.open_step()
        if step % 4 == 0:
            first, *others = world.ranks
            first.enter("forward")
            for rank in others:
                rank.enter("log")
            for rank in world.ranks:
                rank.spend(100.0)
        world.compute(step_s=2.0)
        world.close_step()
    assert watch(world, interval_s=1.0).halts == []


@pytest.mark.parametrize(("long", "limit_s"), [((20,), 150.0), ((), 60.0)])
def test_a_hang_after_a_long_step_is_found_after_half_as_long_again(
    long: tuple[int, ...], limit_s: float
) -> None:
    world = uneven(*long)
    world.open_step()
    (halt,) = watch(world.hang(1, "forward", 400.0), interval_s=1.0).halts
    assert (halt.detector, halt.rank, halt.section) == ("stall", 1, "forward")
    assert halt.threshold == pytest.approx(limit_s, abs=1.0)


def test_the_early_limit_is_the_most_that_a_long_step_gives_and_a_plans_limit_counts() -> None:
    run = Run(order=order_of({}))
    stream = standing("forward", for_s=1.0)
    suspect, halt = limits(run, stream, 1.0, 250.0)
    assert (suspect.seconds, halt.seconds, halt.source) == (300.0, 300.0, Source.ADAPTIVE)
    suspect, halt = limits(Run(order=order_of({"stall": {"halt_s": 60.0}})), stream, 1.0, 250.0)
    assert (suspect.seconds, halt.seconds, halt.source) == (10.0, 60.0, Source.PLAN)
    assert [row.seconds for row in limits(run, stream, 1.0, 30.0)] == [45.0, 60.0]


def test_of_a_long_step_that_lies_more_than_256_steps_back_nothing_is_left() -> None:
    world = uneven(20, steps=300)
    world.open_step()
    (halt,) = watch(world.hang(1, "forward", 400.0), interval_s=1.0).halts
    assert halt.threshold == 60.0


@pytest.mark.parametrize("what", ["data", "eval", "checkpoint", "first step", "restart"])
def test_waiting_saving_and_starting_are_no_long_steps(what: str) -> None:
    """A hang that follows is found as soon as in a run without them."""
    world = World(order_of({}, steps=10**4), alive_every_s=5.0).boot()
    world.steps(1, step_s=30.0 if what == "first step" else 2.0).steps(40, step_s=2.0)
    if what == "data":
        world.open_step(data_s=[110.0, 0.01])
        fed, waits = world.ranks
        waits.enter("backward")
        waits.spend(fed.mono - waits.mono)
        fed.enter("forward")
        for rank in world.ranks:
            rank.spend(2.0)
        world.close_step()
    elif what in ("eval", "checkpoint"):
        world.open_step()
        acting, waits = world.ranks
        acting.enter(what)
        waits.enter("backward")
        for rank in world.ranks:
            rank.spend(110.0)
        world.compute(step_s=2.0)
        world.close_step()
    elif what == "restart":
        for rank in world.ranks:
            rank.boot, rank.seq, rank.step = f"again{rank.rank}", 0, 30
            rank.spend(25.0)
            rank.say("boot", **world.order.identity.model_dump(exclude_none=True))
        world.steps(1, step_s=30.0).steps(40, step_s=2.0)
    world.steps(3, step_s=2.0).open_step()
    (halt,) = watch(world.hang(1, "forward", 400.0), interval_s=1.0).halts
    assert (halt.detector, halt.rank) == ("stall", 1)
    assert halt.threshold == 60.0


def waiting_in_turns(section: str, ranks: int) -> World:
    """Each rank stands in a section once, for 110 s, while the others wait in their backward."""
    world = World(order_of({}, steps=10**4, world_size=ranks), alive_every_s=5.0).boot()
    world.steps(40, step_s=2.0)
    for acting in world.ranks:
        world.open_step()
        for rank in world.ranks:
            rank.enter(section if rank is acting else "backward")
        for rank in world.ranks:
            rank.spend(110.0)
        world.compute(step_s=2.0)
        world.close_step()
        world.steps(5, step_s=2.0)
    return world


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("section", ["data", "eval", "checkpoint"])
def test_what_each_rank_has_waited_for_another_at_another_step_is_no_long_step(
    section: str, ranks: int
) -> None:
    """Of many ranks each waits for some loader now and then; none has computed for so long."""
    world = waiting_in_turns(section, ranks)
    world.open_step()
    (halt,) = watch(world.hang(1, "forward", 400.0), interval_s=1.0).halts
    assert (halt.detector, halt.rank, halt.threshold) == ("stall", 1, 60.0)


def test_a_rank_computes_long_at_the_end_of_a_step_and_the_others_wait_in_the_next() -> None:
    """It generates answers once the others have ended the step."""
    world = World(order_of({}, steps=10**4), alive_every_s=5.0).boot()
    first, other = world.ranks
    for step in range(1, 80):
        world.open_step() if step == 1 else None
        world.compute(step_s=2.0)
        for rank in (other, first):
            if rank is first and step % 20 == 0:
                first.enter("optimizer")
                first.spend(100.0)
            rank.say("progress", loss=world.loss(step), grad_norm=1.0)
            rank.enter(None)
            rank.say("step_end", tokens=2048)
            rank.step, rank.in_step = step + 1, True
            rank.enter("data")
            rank.say("step_start")
            rank.spend(0.01)
            rank.enter("forward")
        world.meet()
    assert watch(world, interval_s=1.0).halts == []
    (halt,) = watch(world.hang(1, "backward", 400.0), interval_s=1.0).halts
    assert (halt.detector, halt.rank) == ("stall", 1)
    assert halt.threshold == pytest.approx(152.0, abs=1.0)


@pytest.mark.parametrize("suspended_s", [34.0, 10_800.0])
@pytest.mark.parametrize("steps", [1, 2, 50])
@pytest.mark.parametrize("section", ["forward", None])
def test_a_suspension_in_a_step_gives_a_hang_in_the_next_one_no_more_time(
    section: str | None, steps: int, suspended_s: float
) -> None:
    """Nor does it as the second or third step of all, of which half is the median."""
    world = World(order_of({}, steps=200), alive_every_s=5.0).boot()
    for step in range(steps + 1):
        for rank in world.ranks:
            rank.step, rank.in_step = rank.step + 1, True
            rank.say("step_start")
            if section is not None:
                rank.enter(section)
            rank.spend(1.0)
        if step == steps:
            world.suspend(suspended_s)
        world.close_step()
    world.open_step()
    for rank in world.ranks:
        rank.enter(section)
        rank.spend(400.0)
    (halt,) = watch(world, interval_s=1.0).halts
    assert halt.detector == ("stall" if section else "section_deadline")
    assert (halt.threshold or 0.0) <= 300.0


def test_a_watcher_that_was_away_alone_takes_nothing_from_the_step_before() -> None:
    """The rank spoke meanwhile."""
    world = World(order_of({}, steps=200), alive_every_s=5.0).boot().steps(40)
    away = (world.mono + 1.0, world.mono + 201.0)
    world.suspended.append(away)
    world.steps(1, step_s=250.0)
    assert watch(world.steps(1, step_s=370.0), interval_s=1.0).halts == []
