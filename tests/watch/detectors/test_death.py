"""Processes that end, and attempts that fail one after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.order import Order
from gonogo.contract.outcome import Detector
from gonogo.contract.records import Tick
from gonogo.contract.watch import RestartStorm as Settings
from gonogo.watch.detectors.death import Start, is_storm
from gonogo.watch.fold import dump_state, fold, load_state, start
from tests.watch.streams import EPOCH, T0, Rank, World, every, order_of, watch


def without_steps(order: Order) -> Order:
    """The order of a program of which nobody says how many steps it takes."""
    return order.model_copy(update={"steps": None})


# D1: the first death is named, a normal end is silent.


def running(steps: int = 7) -> World:
    world = World(order_of()).boot().steps(steps)
    world.open_step()
    return world


@pytest.mark.parametrize(
    ("probe", "says"), [({"signal": 9}, "SIGKILL"), ({"code": 3}, "exit code 3")]
)
def test_a_death_is_found_on_the_tick_that_sees_it(probe: dict[str, int], says: str) -> None:
    world = running()
    died = world.mono
    world.probe(1, "dead", exit_at=EPOCH + died - T0, **probe)
    found = watch(world)
    (finding,) = found.halts
    assert (finding.detector, finding.rank, finding.step) == (Detector.PROCESS_DEATH, 1, 8)
    assert says in finding.text
    assert finding.at - (EPOCH + died - T0) <= 0.5


def test_the_rank_that_died_first_is_named_not_the_one_that_died_of_it() -> None:
    world = running()
    world.probe(0, "dead", code=1, exit_at=EPOCH + 10.2)
    world.probe(1, "dead", code=7, exit_at=EPOCH + 10.1)
    assert watch(world).halted() == [("process_death", 1, "data")]


@pytest.mark.parametrize("later_s", [0.0, 0.2, 5.0])
def test_a_rank_that_ended_too_early_is_named_not_the_one_that_failed_without_it(
    later_s: float,
) -> None:
    """Its last lines may be still to be read when the other's end is certain already."""
    world = running()
    world.probe(1, "dead", code=0, exit_at=EPOCH + 10.0)
    world.ranks[0].spend(later_s)
    world.probe(0, "dead", code=1, exit_at=EPOCH + 10.1 + later_s)
    for rank in world.ranks:
        rank.spend(2.0)
    assert [finding.rank for finding in watch(world).halts] == [1]


def test_a_rank_that_someone_terminated_is_named_when_no_other_cause_comes() -> None:
    world = running()
    world.probe(0, "dead", signal=15, exit_at=EPOCH + 1)
    for rank in world.ranks:
        rank.spend(2.0)
    assert watch(world).halted() == [("process_death", 0, "data")]


def test_exit_zero_before_the_last_step_ended_early() -> None:
    world = running()
    world.probe(0, "dead", code=0)
    died = world.mono
    for rank in world.ranks:
        rank.spend(2.0)
    (finding,) = watch(world).halts
    assert finding.rank == 0
    assert "early" in finding.text
    assert 0.5 <= finding.at - (EPOCH + died - T0) <= 1.0


def test_a_normal_end_that_races_with_a_tick_is_silent() -> None:
    world = World(order_of(steps=5)).boot().steps(5)
    world.probe(1, "dead", code=0)  # probed before its last lines were read
    for rank in world.ranks:
        rank.mono += 0.3
        rank.say("done")
    world.probe(0, "dead", code=0)
    world.ranks[0].mono += 2.0
    assert watch(world).findings == []


def test_the_last_step_and_exit_zero_without_done_is_a_normal_end() -> None:
    world = World(order_of(steps=5)).boot().steps(5)
    for rank in (0, 1):
        world.probe(rank, "dead", code=0)
    world.ranks[0].mono += 2.0
    assert watch(world).findings == []


def test_a_rank_that_failed_after_done_is_no_finding() -> None:
    world = World(order_of(steps=5)).boot().steps(5).finish()
    world.probe(1, "dead", signal=6)
    world.probes.append((world.mono, {"agent": {"pid": 99, "state": "dead", "code": 1}}))
    world.ranks[0].mono += 2.0
    assert watch(world).findings == []


def agent_ends(world: World, **probe: int) -> World:
    """The launcher is gone, and two seconds pass."""
    world.probes.append((world.mono, {"agent": {"pid": 99, "state": "dead", **probe}}))
    world.ranks[0].mono += 2.0
    return world


def said(world: World, msg: str, step: int, *ranks: int) -> World:
    for rank in ranks:
        world.ranks[rank].step = step
        world.ranks[rank].say(msg)
    return world


@pytest.mark.parametrize(
    ("world", "ended_well"),
    [
        (lambda: World(order_of(steps=5)).boot().steps(5), True),
        (lambda: World(order_of(steps=5)).boot().steps(4), False),
        (lambda: said(World(order_of(steps=5)).boot().steps(4), "done", 5, 0, 1), True),
        (lambda: said(World(order_of(steps=5)).boot().steps(4), "halt_seen", 4, 0, 1), True),
        (lambda: said(World(order_of(steps=5)).boot().steps(4), "halt_seen", 4, 0), False),
    ],
    ids=["the last step", "not the last", "done", "halted", "one was not halted"],
)
@pytest.mark.parametrize("code", [0, 1])
def test_an_agent_ends_well_when_every_rank_did(
    world: Callable[[], World], ended_well: bool, code: int
) -> None:
    found = watch(agent_ends(world(), code=code))
    assert found.halted() == ([] if ended_well else [("process_death", None, None)])


@pytest.mark.parametrize(("code", "halts"), [(0, 0), (1, 1)])
def test_a_command_that_is_only_read_ends_well_with_zero(code: int, halts: int) -> None:
    order = order_of().model_copy(update={"patterns": ["x"], "command": ["x"]})
    found = watch(agent_ends(World(order), code=code), ticking=lambda end: every(0.25)(end + 5.0))
    assert len(found.halts) == halts


def commanded(world_size: int, steps: int = 7) -> World:
    order = order_of().model_copy(update={"command": ["x"], "world_size": world_size})
    world = World(order).boot().steps(steps)
    world.open_step()
    return world


def test_a_command_that_is_its_only_rank_is_no_agent_of_itself() -> None:
    world = commanded(1)
    world.probes.append((world.mono, {"agent": {"pid": 99, "state": "dead", "signal": 9}}))
    (finding,) = watch(world).halts
    assert (finding.rank, finding.value) == (0, -9.0)
    assert finding.text.startswith("the command was ended by SIGKILL at step 8")
    world = commanded(1)
    world.probe(0, "dead", code=7, exit_at=EPOCH)
    (finding,) = watch(world).halts
    assert finding.text.startswith("the command ended with exit code 7")


@pytest.mark.parametrize(("at", "named"), [(10.0, 1), (10.6, 0)], ids=["before", "after"])
@pytest.mark.parametrize("end", [{"signal": 15}, {"code": 143}], ids=["signal", "code"])
def test_who_was_asked_to_end_before_its_peers_missed_it_is_the_cause(
    end: dict[str, int], at: float, named: int
) -> None:
    """An operator's `kill`, a daemon that frees memory; torchrun asks only after one has failed."""
    world = running()
    world.probe(0, "dead", code=1, exit_at=EPOCH + 10.3, lost_peer=True)
    world.probe(1, "dead", exit_at=EPOCH + at, **end)
    world.ranks[0].mono += 2.0
    assert watch(world).halted() == [("process_death", named, "data")]


# D25: attempts that fail one after the other without getting further.


NOW = 100_000.0


def starts_at(*steps: int, every_s: float = 10_000.0) -> list[Start]:
    last = len(steps) - 1
    return [
        Start(at=NOW - (last - at) * every_s, durable_step=step) for at, step in enumerate(steps)
    ]


@pytest.mark.parametrize(
    ("steps", "before", "storm"),
    [
        ((0, 0), 0, False), ((0, 0, 0), 0, True), ((20, 20, 20), 20, True),
        ((20, 20, 21), 20, False), ((21, 20, 20), 20, False), ((10, 10, 10), 20, True),
        ((5, 10, 10, 10), 0, False), ((5, 10, 10, 10, 10), 0, True), ((20, 5, 10, 15), 0, True),
        ((5, 10, 15, 15), 0, False), ((), 0, False),
    ],
)  # fmt: skip
def test_three_attempts_without_a_higher_durable_step(
    steps: tuple[int, ...], before: int, storm: bool
) -> None:
    assert is_storm(starts_at(*steps), before_step=before, now=NOW, settings=Settings()) is storm


@pytest.mark.parametrize(
    ("every_s", "storm"), [(449.0, True), (450.0, True), (451.0, False)], ids=str
)
def test_five_starts_within_half_an_hour(every_s: float, storm: bool) -> None:
    rows = starts_at(1, 2, 3, 4, 5, every_s=every_s)
    assert is_storm(rows, before_step=0, now=NOW, settings=Settings()) is storm


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(0, 50), st.integers(1, 4))
def test_attempts_that_always_get_further_and_take_their_time_are_no_storm(
    gains: list[int], before: int, attempts: int
) -> None:
    steps, step = [], before
    for gain in gains:
        step += gain + 1
        steps.append(step)
    settings = Settings(attempts=attempts)
    assert not is_storm(starts_at(*steps), before_step=before, now=NOW, settings=settings)


def boots(ended: list[int], *, done: bool = False, resumed: int = 0) -> list[Finding]:
    """Boot after boot of one rank, each of which ended steps up to so many; those that halted."""
    order = order_of({}, world_size=1, detectors=["restart_storm"])
    state, findings = start(order), list[Finding]()
    for number, steps in enumerate(ended):
        rank = Rank(0, mono=T0 + 1000.0 * number, alive_every_s=5.0)
        rank.boot = f"boot{number}"
        rank.step = resumed
        rank.say("boot")
        for step in range(resumed + 1, steps + 1):
            rank.step = step
            rank.say("step_start")
            rank.say("step_end")
        if done:
            rank.say("done")
        tick = Tick(n=number, mono=rank.mono, ts=0.0)
        state, found = fold(state, tick, {0: [line.raw for line in rank.lines]})
        findings += found
        state = load_state(order, dump_state(state))
    return findings


@pytest.mark.parametrize(
    ("ended", "halts"),
    [
        ([9, 9, 9, 9, 9, 9], 0), ([9, 9, 9, 9, 9, 9, 9], 1), ([9, 5, 3, 0, 8, 2, 9, 9], 1),
        ([9, 9, 9, 9, 9, 10, 10, 10, 10, 10], 0), ([0, 0, 0, 0, 0], 0), ([0, 0, 0, 0, 0, 0], 1),
        ([3, 6, 9, 12, 15, 18, 21, 24], 0),
    ],
)  # fmt: skip
def test_five_starts_in_place_that_get_no_further_halt(ended: list[int], halts: int) -> None:
    found = boots(ended)
    assert [(row.severity, row.threshold) for row in found] == [(Severity.HALT, 5.0)] * halts


def test_trainings_that_follow_each_other_are_no_storm() -> None:
    assert boots([9] * 10, done=True) == []


def test_a_process_that_vanished_without_a_stamp_is_found_when_it_has_settled() -> None:
    world = running()
    world.probe(1, "dead")
    for rank in world.ranks:
        rank.spend(1.0)
    (finding,) = watch(world).halts
    assert finding.rank == 1
    assert finding.value is None


@pytest.mark.parametrize(
    ("ends", "blamed"),
    [
        ({0: {"signal": 15}, 1: {"code": 1}}, 1),
        ({0: {}, 1: {"signal": 11}}, 1),
        ({0: {}, 1: {}}, None),
    ],
    ids=["both were seen", "one was seen", "none was seen"],
)
def test_the_rank_whose_end_was_seen_is_blamed(
    ends: dict[int, dict[str, int]], blamed: int | None
) -> None:
    world = commanded(2)
    world.probes.clear()
    for rank, probe in ends.items():
        world.probe(rank, "dead", exit_at=EPOCH + rank, **probe)
    found = watch(agent_ends(world, code=1), ticking=lambda end: every(0.25)(end + 5.0))
    assert [row.rank for row in found.halts] == [blamed]


def test_without_stamps_a_signal_is_the_cause_of_an_exception() -> None:
    world = running()
    world.probe(0, "dead", code=1)
    world.probe(1, "dead", signal=9)
    assert watch(world).halted() == [("process_death", 1, "data")]


def test_without_a_last_step_done_is_a_normal_end() -> None:
    world = World(without_steps(order_of())).boot()
    said(world, "done", 0, 0, 1)
    for rank in (0, 1):
        world.probe(rank, "dead", code=0)
    assert watch(agent_ends(world, code=1)).findings == []


def test_without_a_last_step_the_text_names_none() -> None:
    world = World(without_steps(order_of())).boot().steps(3)
    world.probe(1, "dead", signal=11)
    (finding,) = watch(world).halts
    assert finding.text == "rank 1 was ended by SIGSEGV at step 3"


@pytest.mark.parametrize("commands", [True, False])
def test_a_launcher_ended_by_a_signal_ended_its_ranks(commands: bool) -> None:
    world = commanded(2) if commands else running()
    world.probe(0, "dead", signal=9)
    world.probe(1, "dead", signal=9)
    world.probes.append((world.mono, {"agent": {"pid": 99, "state": "dead", "signal": 9}}))
    (finding,) = watch(world).halts
    who = "the command" if commands else "the torchrun agent"
    assert (finding.rank, f"{who} was ended" in finding.text) == (None, True)


@pytest.mark.parametrize(("signal", "settles"), [(15, True), (9, False)])
def test_an_agent_that_was_asked_to_end_has_to_settle(signal: int, settles: bool) -> None:
    world = running()
    died = EPOCH + world.mono - T0
    found = watch(agent_ends(world, signal=signal))
    (finding,) = found.halts
    seen = next(tick.ts for tick in found.ticks if tick.ts >= died)
    assert finding.at - seen == pytest.approx(0.5 if settles else 0.0)
    assert finding.key.endswith("/agent")


@pytest.mark.parametrize(
    ("end", "after_s"), [({"code": 0}, 5.0), ({"code": 1}, 0.0), ({"signal": 15}, 0.5)]
)
def test_only_an_end_without_an_error_waits_for_last_lines_from_another_host(
    end: dict[str, int], after_s: float
) -> None:
    world = World(order_of({}, nodes=2)).boot().steps(7)
    world.open_step()
    died = world.mono
    world.probe(0, "dead", **end)
    for rank in world.ranks:
        rank.spend(8.0)
    (finding,) = watch(world).halts
    assert (finding.detector, finding.rank) == ("process_death", 0)
    assert after_s <= finding.at - (EPOCH + died - T0) <= after_s + 0.5
