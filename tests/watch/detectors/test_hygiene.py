"""D18: lost, repeated, outdated and unreadable lines; clocks; steps that run backwards."""

from typing import Any

import pytest

from gonogo.contract.finding import Severity, Source
from gonogo.contract.heartbeat import Heartbeat, Identity
from gonogo.contract.records import Tick
from gonogo.timeline.lines import DIGEST_BYTES, Arrival, BootLines, LineRecord
from gonogo.timeline.timeline import Unreadable
from gonogo.watch.detectors.hygiene import Hygiene, Skews
from gonogo.watch.fold import identity_ok
from gonogo.watch.view import Beat, Run, View
from tests.watch.detectors.host import host_order
from tests.watch.standing import NOW, look, standing
from tests.watch.streams import EPOCH, IDENTITY, T0, Said, Watched, World, order_of, watch


def booted(told: dict[str, Any] | None = None, **order: Any) -> Watched:
    return watch(World(order_of(**order)).boot(**(told or {})))


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


def test_ranks_wait_until_the_environment_was_read() -> None:
    world = World(order_of()).boot()
    for row in world.probes[-1][1]["ranks"]:
        row["env"] = None
    assert identity_ok(watch(world).state) is None


def test_a_long_value_is_cut_at_four_hundred_characters() -> None:
    identity = IDENTITY.model_copy(update={"dataset": "a"})
    (halt,) = booted({"dataset": "b" * 500}, identity=identity).halts
    assert f"dataset {'b' * 400}, " in halt.text


@pytest.mark.parametrize(("silent_s", "told"), [(119.75, []), (120.0, [120.0])])
def test_a_person_is_paged_at_the_limit_of_a_nodes_silence(
    silent_s: float, told: list[float]
) -> None:
    world = World(host_order(nodes=2)).boot().steps(400)
    for after_s, state in ((0.0, "silent"), (silent_s + 0.25, "heard")):
        probe = {"node": 1, "state": state, "host": "node2"}
        world.probes.append((T0 + 20.0 + after_s, {"nodes": [probe]}))
    found = [row for row in watch(world).of(Severity.WARN) if row.detector == "watcher"]
    assert [row.value for row in found] == told


@pytest.mark.parametrize(
    ("count", "for_s", "opened", "warns"),
    [
        (2, 9.0, True, False), (3, 1.75, True, False), (3, 2.0, True, True),
        (1, 1.75, False, False), (1, 2.0, False, True),
    ],
)  # fmt: skip
def test_unreadable_lines_are_named_after_two_seconds(
    count: int, for_s: float, opened: bool, warns: bool
) -> None:
    unreadable = {0: Unreadable(count=count, first="x", since_mono=NOW - for_s)}
    streams = [standing("forward", for_s=1.0)] if opened else []
    found = look(Hygiene, streams, order=order_of({}), unreadable=unreadable)
    assert [row.severity for row in found] == [Severity.WARN if warns else Severity.INFO]


def test_a_difference_has_its_own_name_and_digests_are_cut() -> None:
    (halt,) = booted({"config_digest": "d" * 64, "dim": 128}).halts
    assert halt.text.index("dim 128") < halt.text.index("config_digest dddddddddddd…")
    assert halt.source is Source.PLAN
    warnings = booted({"params": None}).of(Severity.WARN)
    assert [(warn.rank, warn.source) for warn in warnings] == [
        (0, Source.DEFAULT),
        (1, Source.DEFAULT),
    ]


@pytest.mark.parametrize(
    ("late_s", "arrival", "watched", "right_every", "warnings"),
    [
        (5.0, Arrival.NEW, True, 99, 21), (5.25, Arrival.NEW, True, 99, 0),
        (0.0, Arrival.LATE, True, 99, 0), (0.0, Arrival.NEW, False, 99, 0),
        (0.0, Arrival.NEW, True, 20, 0),
    ],
)  # fmt: skip
def test_only_a_watcher_in_time_says_that_a_wall_clock_is_wrong(
    late_s: float, arrival: Arrival, watched: bool, right_every: int, warnings: int
) -> None:
    view, own, found = View(run=Run(order=order_of({}, world_size=1)), watched=watched), Skews(), 0
    for seq in range(1, 41):
        tick = Tick(n=seq, mono=NOW + seq, ts=EPOCH + seq, late_s=late_s)
        line = Heartbeat(
            ts=EPOCH + seq + 9.0 * bool(seq % right_every), mono=NOW + seq, pid=1, rank=0,
            boot="b", seq=seq, step=seq, msg="alive",
        )  # fmt: skip
        beat = Beat(line=line, arrival=arrival, tick=tick)
        own, findings = Hygiene(view.run).observe_line(own, beat, view)
        found += len(findings)
    assert found == warnings


def test_a_rank_whose_lines_are_all_refused_lost_none() -> None:
    view = View(run=Run(order=order_of({})), lines={0: LineRecord()})
    tick = Tick(n=1, mono=NOW, ts=EPOCH)
    assert Hygiene(view.run).observe_tick(Skews(), tick, view)[1] == []


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


def test_peers_must_have_equal_parameter_counts() -> None:
    world = World(order_of(identity=Identity(params=1_000_000)))
    for rank, params in zip(world.ranks, (1_000_000, 1_000_001), strict=True):
        rank.say("boot", params=params)
    (halt,) = watch(world).halts
    assert "rank 1 runs params 1000001, rank 0 says 1000000" in halt.text


def test_lines_of_a_replaced_boot_are_refused() -> None:
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
