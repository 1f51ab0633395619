"""Offline: the same findings from the files, with a watcher's ticks and without."""

from __future__ import annotations

import json
from collections.abc import Callable, Container
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.canonical import wire_value
from gonogo.contract.errors import Corrupt, NotFound
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import MAX_LINE_BYTES
from gonogo.contract.order import Order
from gonogo.contract.records import Tick
from gonogo.rundir import RunDir, save_json
from gonogo.timeline.step import Steps
from gonogo.timeline.timeline import Unreadable
from gonogo.watch.fold import WatchState, dump_state, fold, load_state, start
from gonogo.watch.offline_fold import BroughtLines, not_observed, refold
from gonogo.watch.registry import detector_names
from gonogo.watch.view import Observed, View
from tests.watch.streams import EPOCH, T0, World, order_of, watch
from tests.watch.test_fold import faulty, healthy, noisy

# Offline: the same findings from the files, with a watcher's ticks and without.


KINDS = ["hang", "freeze", "slow", "nan", "identity", "death"]


def wired(findings: list[Finding]) -> list[dict[str, object]]:
    """Findings as they are written; a NaN equals itself there."""
    return [wire_value(finding.wire()) for finding in findings]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on", [True, False], ids=["until the halt", "to the end"])
def test_the_recorded_directory_gives_the_live_findings(
    kind: str, on: bool, tmp_path: Path
) -> None:
    live = watch(faulty(kind), stop_at_halt=on)
    assert live.halts
    assert wired(refold(live.save(tmp_path)).findings) == wired(live.findings)


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_noise_is_replayed_as_it_was_seen(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    live = watch(noisy(healthy(seed), seed), interval_s=0.5)
    again = refold(live.save(tmp_path_factory.mktemp("run")))
    assert again.findings == live.findings
    assert dump_state(again.state) == dump_state(live.state)
    assert again.not_observed == []


def test_lines_that_no_tick_brought_are_folded_and_said_to_be_unwatched(tmp_path: Path) -> None:
    live = watch(faulty("nan"))
    live.ticks = live.ticks[: len(live.ticks) // 2]
    again = refold(live.save(tmp_path))
    assert [finding.detector for finding in again.findings] == ["non_finite"]
    assert again.watch is not None
    assert not again.watch.reaches


def test_an_unreadable_tick_is_left_out_and_said(tmp_path: Path) -> None:
    folder = watch(faulty("nan")).save(tmp_path)
    path = folder / "watch.jsonl"
    path.write_bytes(b"{torn\n" + path.read_bytes())
    again = refold(folder)
    assert [finding.detector for finding in again.findings] == ["non_finite"]
    assert again.watch is not None
    assert not again.watch.chained
    assert (again.watch.problems[0].kind, again.watch.problems[0].found) == ("watch_broken", 1)


def unwatched(world: World, folder: Path) -> Path:
    """The directory of a trainer that nobody watched."""
    save_json(folder / "order.json", world.order.document())
    for rank in world.ranks:
        data = b"".join(line.raw + b"\n" for line in rank.lines)
        (folder / f"heartbeat_rank{rank.rank}.jsonl").write_bytes(data)
    return folder


@pytest.mark.parametrize("kind", ["hang", "slow", "nan", "identity"])
def test_without_a_watcher_the_lines_own_clocks_tell_the_same(kind: str, tmp_path: Path) -> None:
    found = refold(unwatched(faulty(kind), tmp_path)).findings
    halts = [f for f in found if f.severity is Severity.HALT]
    (live,) = watch(faulty(kind)).halts
    assert (halts[0].detector, halts[0].rank, halts[0].section, halts[0].step) == (
        live.detector, live.rank, live.section, live.step,
    )  # fmt: skip
    assert halts[0].at == pytest.approx(live.at, abs=1.0)


def test_without_a_watcher_a_healthy_run_is_silent_and_says_what_it_did_not_see(
    tmp_path: Path,
) -> None:
    again = refold(unwatched(healthy(7), tmp_path), now=EPOCH + 10**6)
    assert again.findings == []
    assert "process_death" in [row.name for row in again.not_observed]
    assert not_observed(again.state) == again.not_observed


@pytest.mark.parametrize(("now_s", "halts"), [(None, 0), (3.0, 0), (100.0, 1)])
def test_without_a_watcher_time_passes_until_the_directory_is_looked_at(
    now_s: float | None, halts: int, tmp_path: Path
) -> None:
    world = World(order_of()).boot().steps(19)
    world.open_step()
    world.hang(1, "backward", 1.2)
    now = None if now_s is None else EPOCH + world.mono - T0 + now_s
    found = refold(unwatched(world, tmp_path), now=now).findings
    stalls = [f for f in found if f.severity is Severity.HALT]
    assert [(f.detector, f.rank) for f in stalls] == [("stall", 1)] * halts
    if halts:
        assert stalls[0].value == pytest.approx(5.0, abs=0.5)


def test_without_a_watcher_a_rank_without_a_file_is_not_observed(tmp_path: Path) -> None:
    world = World(order_of({}, steps=400)).boot().steps(400)
    folder = unwatched(world, tmp_path)
    (folder / "heartbeat_rank1.jsonl").unlink()
    again = refold(folder)
    assert again.findings == []
    assert ("rank_silent", 1) in [(row.kind, row.rank) for row in again.not_observed]


def test_an_exit_record_stops_the_clock(tmp_path: Path) -> None:
    world = World(order_of()).boot().steps(19)
    world.open_step()
    world.hang(1, "backward", 1.2)
    folder = unwatched(world, tmp_path)
    record = {"ended_at": EPOCH + world.mono - T0 + 2.0, "ended_by": "infra"}
    save_json(folder / "exit.json", {**record, "reason": "keeper_lost"})
    found = refold(folder, now=EPOCH + 10**6).findings
    assert [f for f in found if f.severity is Severity.HALT] == []


def test_a_directory_without_an_order_needs_one(tmp_path: Path) -> None:
    world = World(order_of()).boot().steps(3)
    folder = unwatched(world, tmp_path)
    (folder / "order.json").unlink()
    with pytest.raises(NotFound, match="no order"):
        refold(folder)
    assert refold(folder, order=world.order).findings == []


def restarted(rank: int) -> World:
    """A run whose process is restarted in the middle."""
    world = World(order_of()).boot().steps(12)
    again = world.ranks[rank]
    again.boot, again.seq, again.section_seq, again.collective_seq = f"again{rank}", 0, 0, 0
    again.say("boot", **world.order.identity.model_dump(mode="json", exclude_none=True))
    return world.steps(12)


def in_parts(
    order: Order, rows: list[tuple[Tick, dict[int, list[bytes]]]], cuts: Container[int]
) -> tuple[WatchState, list[Finding]]:
    """The fold of all rows, put down and taken up again before each of the cuts."""
    state, findings = start(order), []
    for number, (tick, beats) in enumerate(rows):
        if number in cuts:
            saved = json.loads(json.dumps(dump_state(state)))
            state = load_state(order, saved)
            assert dump_state(state) == saved
        state, found = fold(state, tick, beats)
        findings += found
    return state, findings


RUNS: dict[str, Callable[[], World]] = {
    "healthy": lambda: noisy(healthy(5), 5),
    "four healthy ranks": lambda: noisy(healthy(6, world_size=4, steps=20), 6),
    "one healthy rank": lambda: healthy(7, world_size=1, steps=20),
    "started anew": lambda: restarted(1),
    **{kind: partial(faulty, kind) for kind in KINDS},
    "noise and a hang": lambda: noisy(faulty("hang"), 8),
}


@pytest.mark.parametrize("name", RUNS)
def test_snapshots_and_the_rest_are_the_whole_fold(name: str) -> None:
    """With a snapshot before every seventh tick, and before the seven that follow the first halt.

    A detector keeps more of what is wrong than of what is well.
    """
    live = watch(RUNS[name](), interval_s=0.5, stop_at_halt=False)
    order = live.state.run.order.model_copy(update={"detectors": detector_names()})
    offsets, rows = dict.fromkeys(live.files, 0), []
    for tick in live.ticks:
        beats = {}
        for rank, end in ((int(name), end) for name, end in tick.upto.items()):
            beats[rank] = bytes(live.files[rank][offsets[rank] : end]).splitlines()
            offsets[rank] = end
        rows.append((tick, beats))
    whole, findings = in_parts(order, rows, ())
    halts = [row for row in findings if row.severity is Severity.HALT]
    first = next((n for n, (tick, _) in enumerate(rows) if halts and tick.ts >= halts[0].at), 0)
    again, found = in_parts(order, rows, {*range(0, len(rows), 7), *range(first, first + 7)})
    assert dump_state(again) == dump_state(whole)
    assert wired(found) == wired(findings)
    assert [row.key for row in filter(None, [again.latched])] == [row.key for row in halts[:1]]
    assert bool(halts) is (name in KINDS or name == "noise and a hang")


def with_every_part() -> WatchState:
    """A state of which each part holds something."""
    state = watch(faulty("nan"), stop_at_halt=False).state
    view, steps = state.view, state.view.steps
    view.hosts = {1: "other"}
    view.clock.away_s = 20.0
    view.skipped_s, view.skipped_at = 6.0, 40.5
    view.clock.ranks[0].pending = ((40.5, 20.0),)
    view.unreadable = {0: Unreadable(count=2, first="x", since_mono=1.5)}
    view.observed = {"disk": Observed(mono=1.0, ts=2.0, payload={"free_mb": 5.0})}
    ended = watch(behind()).state.view.steps.waiting
    steps.waiting = ended
    state.leave_out({"of_another_package": "it failed"})
    return state


def behind() -> World:
    """A run whose rank 0 has ended a step that rank 1 has not."""
    world = World(order_of()).boot().steps(4)
    del world.ranks[1].lines[-3:]
    return world


def test_each_part_of_a_state_is_put_down_and_taken_up_again() -> None:
    state = with_every_part()
    saved = json.loads(json.dumps(dump_state(state)))
    assert dump_state(load_state(state.run.order, saved)) == saved
    nothing = dump_state(start(state.run.order))
    assert [part for part in saved if part != "of" and saved[part] == nothing[part]] == []
    held = {row.name for kind in (View, Steps) for row in fields(kind)}
    named = saved.keys() | saved["steps"].keys()
    assert held - named == {"run", "watched", "at_end"}, "ordered, compared, and of no watcher"


@pytest.mark.parametrize("what", ["sources", "run", "attempt", "watched", "detectors"])
def test_a_snapshot_says_of_what_it_is(what: str) -> None:
    """With any other of these it continues differently from the whole fold."""
    document = dump_state(watch(healthy(1)).state)
    del document["of"][what]
    with pytest.raises(Corrupt):
        load_state(order_of(), document)


# Which lines belong to a recorded tick, by the bytes that it had read.


MORE = b"x" * (2**20 + 9)
"""More bytes without a tick than are read at once."""


def brought(folder: Path, written: bytes, *ends: int) -> list[list[bytes]]:
    """Return the lines of rank 0's file by tick, and those of no tick."""
    run_dir = RunDir(folder)
    run_dir.heartbeat(0).write_bytes(written)
    files = BroughtLines(run_dir)
    found = [files.lines_of(Tick.model_construct(upto={"0": end}))[0] for end in ends]
    return [*found, *(rows[0] for rows in files.rest())]


@pytest.mark.parametrize(
    ("ends", "lines"),
    [
        ((2, 4), [[b"a"], [b"b"]]), ((1, 3, 4), [[], [b"a"], [b"b"]]),
        ((3, 3, 4), [[b"a"], [], [b"b"]]), ((4, 4), [[b"a", b"b"], []]),
        ((2, 99), [[b"a"], [b"b"]]), ((2,), [[b"a"], [b"b"]]),
    ],
    ids=["whole", "parts", "twice", "no more", "beyond the end", "the rest"],
)  # fmt: skip
def test_a_tick_brings_whole_lines_and_a_part_waits_for_its_rest(
    ends: tuple[int, ...], lines: list[list[bytes]], tmp_path: Path
) -> None:
    assert brought(tmp_path, b"a\nb\n", *ends) == lines


def test_what_no_tick_brought_is_read_behind_a_line_that_outgrew_all_bounds(
    tmp_path: Path,
) -> None:
    lines = [line for part in brought(tmp_path, MORE + b"\nb\n") for line in part]
    assert (b"".join(lines), lines[-1]) == (MORE + b"b", b"b")


LONG = b"x" * (MAX_LINE_BYTES + 1)


def test_an_overlong_line_and_its_rest_count_once(tmp_path: Path) -> None:
    written = LONG + b"y\nb\n"
    assert brought(tmp_path, written, len(LONG), len(written)) == [[LONG], [b"y", b"b"]]
    assert brought(tmp_path, b"a\n" + LONG, 2 + len(LONG)) == [[b"a"]]
    assert brought(tmp_path, b"a\n" + LONG, 2 + len(LONG), 99 * len(LONG)) == [[b"a"], []]
    longest = LONG[1:]
    written = longest + b"\nb\n"
    assert brought(tmp_path, written, len(longest), len(written)) == [[], [longest, b"b"]]
