"""D18: lost, repeated, outdated and unreadable lines; clocks; steps that run backwards."""

import pytest

from gonogo.contract.finding import Severity
from tests.watch.streams import EPOCH, T0, Said, Watched, World, order_of, watch


def told(found: Watched) -> dict[str, float | None]:
    return {f.text.split(") ")[1]: f.value for f in found.of(Severity.INFO)}


def run_of(steps: int = 40) -> World:
    return World(order_of(steps=steps)).boot().steps(steps)


def test_lost_lines_are_told_once_they_cannot_be_late_any_more() -> None:
    world = run_of()
    del world.ranks[1].lines[20:23]
    found = watch(world)
    assert told(found) == {"lost": 3.0}
    assert found.halts == []
    assert found.state.view.lines[1].now.gaps() == 3


def test_a_line_that_comes_late_leaves_no_hole() -> None:
    world = run_of()
    late = world.ranks[0].lines.pop(20)
    world.ranks[0].lines.insert(30, Said(world.ranks[0].lines[30].mono, late.raw))
    found = watch(world)
    assert found.findings == []
    assert found.state.view.lines[0].now.gaps() == 0


def test_lines_of_an_earlier_boot_are_refused() -> None:
    world = run_of()
    stale = world.ranks[0].lines[-1].raw.replace(b'"boot0"', b'"old"').replace(b"5.1", b"NaN")
    world.ranks[0].lines.append(Said(world.mono, stale))
    found = watch(world)
    assert told(found) == {"of an earlier boot": 1.0}
    assert found.halts == []


@pytest.mark.parametrize(
    "raw",
    [
        b"not json",
        b'{"torn": ',
        b"\xff\xfe",
        b'{"v":1,"ts":"NaN","mono":1,"pid":1,"rank":0,"boot":"b","seq":1,"step":1,"msg":"x"}',
        b"x" * 70_000,
    ],
    ids=["text", "torn", "bytes", "nan clock", "huge"],
)
def test_what_is_no_heartbeat_is_counted_and_ends_nothing(raw: bytes) -> None:
    world = run_of()
    world.ranks[0].lines.insert(30, Said(world.ranks[0].lines[30].mono, raw))
    found = watch(world)
    assert told(found) == {"unreadable": 1.0}
    assert found.halts == []
    assert found.state.view.unreadable[0].count == 1


def test_an_unreadable_line_is_no_first_heartbeat() -> None:
    world = World(order_of())
    world.ranks[0].lines.append(Said(world.mono, b"hello"))
    found = watch(world)
    assert found.state.streams == {}
    assert told(found) == {"unreadable": 1.0}


def test_a_step_that_runs_backwards_without_a_restart_halts() -> None:
    world = run_of(10)
    for rank in world.ranks:
        rank.step = 4
    world.steps(1)
    (first, _) = watch(world).halts
    assert (first.detector, first.rank, first.value) == ("hygiene", 0, 5.0)


def test_a_restart_may_begin_at_an_earlier_step() -> None:
    world = run_of(10)
    for rank in world.ranks:
        rank.boot, rank.seq, rank.step = f"again{rank.rank}", 0, 4
        rank.say("boot", **world.order.identity.model_dump(exclude_none=True))
    world.steps(3)
    assert watch(world).halts == []


@pytest.mark.parametrize("off_s", [3600.0, -3600.0, 6.0])
def test_a_wall_clock_that_is_off_warns_and_moves_no_deadline(off_s: float) -> None:
    world = World(order_of())
    world.ranks[1].wall_off_s = off_s
    world.boot().steps(40).finish()
    found = watch(world)
    assert [(f.detector, f.rank) for f in found.findings] == [("hygiene", 1)]
    assert found.named(Severity.WARN) == {"hygiene"}


def test_a_wall_clock_that_is_a_little_off_is_silent() -> None:
    world = World(order_of())
    world.ranks[1].wall_off_s = 4.5
    assert watch(world.boot().steps(10)).findings == []


def test_a_rank_whose_lines_are_no_json_is_named_with_their_count_and_the_first() -> None:
    world = World(order_of()).boot().steps(2)
    rank = world.ranks[1]
    since = world.mono
    rank.lines += [Said(since + 0.1 * n, b"epoch %d loss 0.5" % n) for n in range(30)]
    world.ranks[0].spend(6.0)
    rank.mono += 6.0
    (warning,) = [f for f in watch(world, stop_at_halt=False).findings if f.severity == "warn"]
    assert (warning.detector, warning.rank) == ("hygiene", 1)
    assert warning.value == pytest.approx(20, abs=4)
    assert "epoch 0 loss 0.5" in warning.text
    assert warning.at - EPOCH - (since - T0) <= 5.0


def test_two_lines_of_one_place_that_differ_are_two_writers() -> None:
    world = run_of()
    other = world.ranks[1].lines[-2]
    world.ranks[1].lines.append(Said(other.mono, other.raw.replace(b'"mono": ', b'"mono": 1')))
    (halt,) = watch(world).halts
    assert (halt.detector, halt.rank) == ("hygiene", 1)
    assert "two processes" in halt.text


def test_an_alive_line_may_lag_by_one_step() -> None:
    world = run_of(10)
    world.ranks[0].step = 9
    world.ranks[0].say("alive", section_age_s=0.1)
    world.ranks[0].step = 10
    world.steps(3)
    assert watch(world).halts == []
