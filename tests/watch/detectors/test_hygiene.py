"""D18: lost, repeated, outdated and unreadable lines; clocks; steps that run backwards."""

from typing import Any

import pytest

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.tick import Tick
from gonogo.timeline.lines import DIGEST_BYTES, Arrival, BootLines, LineRecord
from gonogo.timeline.timeline import Unreadable
from gonogo.watch.detectors.hygiene import Hygiene, Skews
from gonogo.watch.view import Beat, Run, View
from tests.watch.standing import NOW, look, standing
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


def test_a_hole_near_the_end_is_told_when_the_rank_is_done() -> None:
    world = run_of(5)
    del world.ranks[1].lines[-3]
    assert told(watch(world)) == {}
    world.finish()
    assert told(watch(world)) == {"lost": 1.0}


def test_a_line_that_comes_late_leaves_no_hole() -> None:
    world = run_of()
    late = world.ranks[0].lines.pop(20)
    world.ranks[0].lines.insert(30, Said(world.ranks[0].lines[30].mono, late.raw))
    found = watch(world)
    assert found.findings == []
    assert found.state.view.lines[0].now.gaps() == 0


def test_duplicates_are_dropped() -> None:
    world = run_of()
    lines = world.ranks[0].lines
    lines[:] = [line for line in lines for _ in (0, 1)]
    found = watch(world)
    assert found.findings == []
    assert found.state.view.lines[0].distinct() == len(lines) // 2
    assert found.state.streams[0].step == 40


def test_lines_of_an_earlier_boot_are_refused() -> None:
    world = run_of()
    stale = world.ranks[0].lines[-1].raw.replace(b'"boot0"', b'"old"').replace(b"5.1", b"NaN")
    world.ranks[0].lines.append(Said(world.mono, stale))
    found = watch(world)
    assert told(found) == {"of an earlier boot": 1.0}
    assert found.halts == []


def test_a_boot_that_was_replaced_stays_out() -> None:
    world = run_of(3)
    first = world.ranks[0]
    old = [line.raw for line in first.lines]
    first.boot, first.seq, first.step = "second", 0, 0
    first.mono += 1.0
    first.say("boot", **world.order.identity.model_dump(exclude_none=True))
    first.lines += [Said(first.mono, raw) for raw in old]
    first.lines.append(Said(first.mono, old[-1].replace(b'"seq": ', b'"seq": 99')))
    found = watch(world)
    assert found.state.streams[0].boot == "second"
    assert found.state.view.lines[0].boots["boot0"].count == len(old) + 1
    assert found.state.view.lines[0].stale == 1
    assert found.halts == []


@pytest.mark.parametrize(
    "raw",
    [
        b"not json",
        b'{"torn": ',
        b"null",
        b"[1]",
        b"\xff\xfe",
        b'{"v": 1, "rank": 0}',
        b'{"v":1,"ts":"NaN","mono":1,"pid":1,"rank":0,"boot":"b","seq":1,"step":1,"msg":"x"}',
        b"x" * 70_000,
    ],
    ids=["text", "torn", "null", "list", "bytes", "fields", "nan clock", "huge"],
)
def test_what_is_no_heartbeat_is_counted_and_ends_nothing(raw: bytes) -> None:
    world = run_of()
    world.ranks[0].lines.insert(30, Said(world.ranks[0].lines[30].mono, raw))
    found = watch(world)
    assert told(found) == {"unreadable": 1.0}
    assert found.halts == []
    assert found.state.view.unreadable[0].count == 1


def test_another_ranks_line_is_unreadable_here() -> None:
    world = run_of()
    world.ranks[0].lines.insert(30, world.ranks[1].lines[30])
    found = watch(world)
    assert told(found) == {"unreadable": 1.0}
    assert found.halts == []


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


def test_a_wall_clock_that_was_set_between_a_line_and_its_tick_says_nothing() -> None:
    world = World(order_of()).boot().steps(20)
    for rank in world.ranks:
        rank.wall_off_s = 3600.0
    world.steps(1)
    for rank in world.ranks:
        rank.wall_off_s = 0.0
    found = watch(world.steps(20).finish())
    assert found.findings == []


def test_a_wall_clock_that_is_a_little_off_is_silent() -> None:
    world = World(order_of())
    world.ranks[1].wall_off_s = 4.5
    assert watch(world.boot().steps(10)).findings == []


def test_lines_that_waited_to_be_read_have_no_wrong_clock() -> None:
    world = run_of(10)

    def ticking(end: float) -> list[tuple[float, float]]:
        return [(5000.0, 0.0), (5009.0, 0.0), (5009.25, 0.0)]

    assert watch(world, ticking=ticking).findings == []


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


def lines_up_to(top: int, **fields: Any) -> dict[int, LineRecord]:
    """Lines of rank 0 up to `top`, of which the tenth is missing."""
    held = BootLines()
    for seq in (seq for seq in range(1, top + 1) if seq != 10):
        held.take(seq, bytes(DIGEST_BYTES))
    return {0: LineRecord(boot="boot", boots={"boot": held}, **fields)}


@pytest.mark.parametrize(("top", "lost"), [(74, []), (75, [1.0])])
@pytest.mark.parametrize("opened", [True, False], ids=["a stream", "no stream yet"])
def test_a_hole_is_lost_beyond_64_lines(top: int, lost: list[float], opened: bool) -> None:
    streams = [standing("forward", for_s=1.0)] if opened else []
    found = look(Hygiene, streams, order=order_of({}), lines=lines_up_to(top))
    assert [(row.value, row.threshold) for row in found] == [(value, 0.0) for value in lost]


@pytest.mark.parametrize(("done", "lost"), [(True, 1), (False, 0)])
def test_a_hole_of_a_rank_that_is_done_is_lost_at_once(done: bool, lost: int) -> None:
    found = look(Hygiene, [standing(None, for_s=1.0, done=done)], lines=lines_up_to(12))
    assert len(found) == lost


def test_what_is_counted_and_what_halts_is_held_against_none() -> None:
    rank = standing("forward", for_s=1.0, backwards=5)
    lines = lines_up_to(80, conflicts=2, stale=3)
    found = look(Hygiene, [rank], lines=lines, unreadable={0: Unreadable(count=4, first="x")})
    said = {(row.key.split("/")[-1], row.severity): (row.value, row.threshold) for row in found}
    assert said == {
        ("backwards", "halt"): (5.0, 41.0),
        ("two_writers", "halt"): (2.0, 0.0),
        ("lost", "info"): (1.0, 0.0),
        ("of_an_earlier_boot", "info"): (3.0, 0.0),
        ("unreadable", "warn"): (4.0, 0.0),
    }


@pytest.mark.parametrize(
    ("count", "for_s", "opened", "warns"),
    [
        (2, 9.0, True, False),
        (3, 1.75, True, False),
        (3, 2.0, True, True),
        (1, 1.75, False, False),
        (1, 2.0, False, True),
    ],
)
def test_a_rank_whose_lines_are_none_is_named_after_two_seconds(
    count: int, for_s: float, opened: bool, warns: bool
) -> None:
    unreadable = {0: Unreadable(count=count, first="x", since_mono=NOW - for_s)}
    streams = [standing("forward", for_s=1.0)] if opened else []
    found = look(Hygiene, streams, order=order_of({}), unreadable=unreadable)
    assert [row.severity for row in found] == [Severity.WARN if warns else Severity.INFO]


def off(lines: list[tuple[float, float]], *, apart_s: float = 0.0, block: int = 1) -> list[Finding]:
    """Return what lines with these wall clocks and waits find, so many in each tick."""
    view, own, found = View(run=Run(order=order_of({}))), Skews(), list[Finding]()
    hygiene = Hygiene(view.run)
    for seq, (wall_s, waited_s) in enumerate(lines, start=1):
        tick = Tick(n=seq // block, mono=NOW + seq, ts=EPOCH + seq)
        line = Heartbeat(
            ts=EPOCH + seq + wall_s, mono=NOW + seq - waited_s + apart_s, pid=1, rank=0, boot="b",
            seq=seq, step=seq, msg="alive",
        )  # fmt: skip
        beat = Beat(line=line, arrival=Arrival.NEW, tick=tick)
        own, findings = hygiene.observe_line(own, beat, view)
        found += findings
    return found


@pytest.mark.parametrize(
    ("wall_s", "waited_s", "lines", "warns"),
    [
        (5.0, 0.0, 40, False),
        (5.25, 0.0, 20, True),
        (-5.25, 0.0, 20, True),
        (5.25, 0.0, 19, False),
        (-60.0, 55.0, 40, False),
        (-60.0, 54.75, 40, True),
    ],
)
def test_a_wall_clock_is_wrong_by_receipt_and_by_the_clock_that_is_shared(
    wall_s: float, waited_s: float, lines: int, warns: bool
) -> None:
    found = off([(wall_s, waited_s)] * lines)
    assert {(row.value, row.threshold) for row in found} == ({(wall_s, 5.0)} if warns else set())


def test_a_line_that_is_right_begins_anew() -> None:
    assert off(([(9.0, 0.0)] * 19 + [(0.0, 0.0)]) * 3) == []
