"""Offline: the same findings from the files, with a watcher's ticks and without."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.canonical import wire_value
from gonogo.contract.errors import Corrupt, NotFound
from gonogo.contract.facts import ProcessExit
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import MAX_LINE_BYTES
from gonogo.contract.order import Order
from gonogo.contract.records import (
    AgentProbe,
    FileSeal,
    NodeProbe,
    NodeState,
    ProcessState,
    RankProbe,
    Tick,
)
from gonogo.rundir import RunDir, save_json
from gonogo.timeline.step import Steps
from gonogo.timeline.timeline import Unreadable
from gonogo.watch.fold import WatchState, dump_state, fold, load_state, start
from gonogo.watch.offline_fold import (
    MOST_PROBLEMS,
    BroughtLines,
    Heard,
    WatchRecord,
    not_observed,
    refold,
    tick_digest,
    tick_line,
    watch_on,
)
from gonogo.watch.registry import detector_names
from gonogo.watch.view import Observed, View
from tests.watch.standing import standing
from tests.watch.streams import EPOCH, T0, Watched, World, order_of, watch
from tests.watch.test_fold import faulty, healthy, noisy

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
    assert again.state.streams[0].heard_mono == live.ticks[-1].mono


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


@pytest.mark.parametrize(
    "world",
    [healthy(7), World(order_of()).boot().steps(40), World(order_of()).boot().steps(30).finish()],
    ids=["done", "after its last step", "done before its last step"],
)
def test_without_a_watcher_a_healthy_run_is_silent_and_says_what_it_did_not_see(
    world: World, tmp_path: Path
) -> None:
    again = refold(unwatched(world, tmp_path), now=EPOCH + 10**6)
    assert again.findings == []
    assert "process_death" in [row.name for row in again.not_observed]
    assert not_observed(again.state) == again.not_observed


@pytest.mark.parametrize(
    ("now_s", "ended_s", "halts"),
    [(None, None, 0), (3.0, None, 0), (100.0, None, 1), (10.0**6, 2.0, 0)],
)
def test_without_a_watcher_time_passes_until_the_end_or_until_the_directory_is_looked_at(
    now_s: float | None, ended_s: float | None, halts: int, tmp_path: Path
) -> None:
    world = World(order_of()).boot().steps(19)
    world.open_step()
    world.hang(1, "backward", 1.2)
    folder, last = unwatched(world, tmp_path), EPOCH + world.mono - T0
    if ended_s is not None:
        save_end(folder, ended_at=last + ended_s, ended_by="infra", reason="keeper_lost")
    found = refold(folder, now=None if now_s is None else last + now_s).findings
    stalls = [f for f in found if f.severity is Severity.HALT]
    assert [(f.detector, f.rank) for f in stalls] == [("stall", 1)] * halts
    if halts:
        assert stalls[0].value == pytest.approx(5.0, abs=0.5)


@pytest.mark.parametrize(
    ("stood_s", "passed_s", "found_s"),
    [(299.875, 0.2, []), (299.875, 0.25, [0.25]), (299.875, 0.6, [0.25]), (1.0, 299.5, [299.25])],
)
def test_what_is_due_without_lines_is_found_at_its_quarter_of_a_second(
    stood_s: float, passed_s: float, found_s: list[float]
) -> None:
    state = start(order_of({}, steps=1000, world_size=1), watched=False)
    state.view.streams = {0: standing("data", for_s=stood_s, heard_ts=EPOCH)}
    found = watch_on(state, now=EPOCH + passed_s)
    assert [row.at - EPOCH for row in found if row.severity is Severity.HALT] == found_s


def test_a_watch_without_a_tick_shows_nothing(tmp_path: Path) -> None:
    folder = unwatched(World(order_of()).boot().steps(3), tmp_path)
    (folder / "watch.jsonl").touch()
    record = record_of(folder)
    assert [(row.name, row.found) for row in record.problems] == [("the file holds no tick", 1)]
    assert not record.reaches


def test_without_a_watcher_a_rank_without_a_file_is_not_observed(tmp_path: Path) -> None:
    world = World(order_of({}, steps=400)).boot().steps(400)
    folder = unwatched(world, tmp_path)
    (folder / "heartbeat_rank1.jsonl").unlink()
    again = refold(folder)
    assert again.findings == []
    assert ("rank_silent", 1) in [(row.kind, row.rank) for row in again.not_observed]


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


def test_what_no_tick_brought_is_read_behind_a_line_beyond_all_bounds(tmp_path: Path) -> None:
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


# What the ticks say by themselves: each check of the chain, at its edge.

ONE, OTHER = FileSeal(bytes=1, sha256="1" * 64), FileSeal(bytes=1, sha256="2" * 64)


def chain_of(*rows: dict[str, Any], sealed: int | None = None) -> WatchRecord:
    """The chain of these ticks, a second apart where they say nothing else.

    Args:
        rows: fields of each tick.
        sealed: how many of them exit.json seals; None: all.
    """
    chain, previous = WatchRecord(), None
    for number, row in enumerate(rows, start=1):
        tick = Tick.model_validate(
            {"n": number, "mono": float(number), "ts": 1e9 + number, "prev": previous} | row
        )
        line = tick_line(tick)
        chain.take(tick, line, number, beyond=sealed is not None and number > sealed)
        previous = tick_digest(line)
    return chain


def dead(**end: int) -> RankProbe:
    return RankProbe(rank=0, state=ProcessState.DEAD, **end)


ALIVE = RankProbe(rank=0, state=ProcessState.ALIVE)


def test_ticks_that_follow_each_other_are_one_chain() -> None:
    chain = chain_of({}, {}, {"mono": 2.0})
    assert (chain.ticks, chain.chained, chain.problems) == (3, True, [])


def test_a_tick_that_names_another_before_it_breaks_the_chain() -> None:
    chain = chain_of({}, {"prev": "0" * 64})
    assert not chain.chained
    assert (chain.problems[0].kind, chain.problems[0].found) == ("watch_broken", 2)


def test_a_clock_that_runs_backwards_breaks_the_chain() -> None:
    chain = chain_of({"mono": 5.0}, {"mono": 4.0})
    assert not chain.chained
    assert "clock" in str(chain.problems[0].name)


@pytest.mark.parametrize(
    ("gap_s", "late_s", "gap"),
    [
        (15.0, 0.0, None), (16.0, 0.0, 16), (16.0, 1.0, None), (300.0, 300.0, None),
        (301.0, 301.0, 301), (300.0, 250.0, 50),
    ],
)  # fmt: skip
def test_a_hole_is_one_beyond_its_limit(gap_s: float, late_s: float, gap: int | None) -> None:
    problems = chain_of({}, {"mono": 1.0 + gap_s, "late_s": late_s}).problems
    assert [row.found for row in problems] == [gap] * (gap is not None)


@pytest.mark.parametrize(
    ("name", "after_end", "sealed", "told"),
    [
        ("model.json", False, None, False), ("model.json", False, 1, True),
        ("exit_rank0.json", False, None, False), ("exit_rank0.json", True, None, True),
        ("model.json", True, None, True), ("exit_rank0.json", False, 1, True),
    ],
)  # fmt: skip
def test_a_file_is_sealed_again_until_the_end_and_no_longer(
    name: str, after_end: bool, sealed: int | None, told: bool
) -> None:
    first = {name: ONE} | ({"exit.json": ONE} if after_end else {})
    chain = chain_of({"files": first}, {"files": {name: OTHER}}, {}, sealed=sealed)
    assert [f"seals {name} again" in str(row.name) for row in chain.problems] == (
        [True] if told else []
    )
    assert chain.files[name] == OTHER


def test_how_ranks_and_torchrun_ended_is_kept_and_who_was_looked_at() -> None:
    unknown = RankProbe(rank=1)
    chain = chain_of(
        {"ranks": [ALIVE, unknown], "agent": AgentProbe(state=ProcessState.ALIVE)},
        {"ranks": [dead(signal=9), unknown], "agent": AgentProbe(signal=9)},
        {"agent": AgentProbe(state=ProcessState.DEAD)},
    )
    assert chain.probes == {0: ProcessExit(signal=9)}
    assert chain.looked == {0}
    assert chain.agent is not None
    assert (chain.agent.code, chain.agent.signal) == (None, 9)
    assert chain_of({"agent": AgentProbe(code=0)}).agent is not None
    assert chain_of({"agent": AgentProbe()}).agent is None


def test_the_ticks_are_known_by_the_digest_of_the_last() -> None:
    chain = chain_of({}, {})
    assert chain.last is not None
    assert chain.digest == tick_digest(tick_line(chain.last))
    assert WatchRecord().digest == hashlib.sha256(b"").hexdigest()
    assert tick_line(Tick(n=1, mono=2.0, ts=3.0)) == b'{"v":1,"n":1,"mono":2.0,"ts":3.0}\n'


def test_how_long_nothing_came_from_a_node_is_kept() -> None:
    silent, heard = (
        {"nodes": [NodeProbe(node=1, state=state)]} for state in (NodeState.SILENT, NodeState.HEARD)
    )
    assert chain_of(heard, silent, {}, silent, heard, {}, silent, {}).silent_s == {1: 4.0}


def record_of(folder: Path) -> WatchRecord:
    record = refold(folder).watch
    assert record is not None
    return record


def save_end(folder: Path, **said: Any) -> None:
    """Write an exit record that says this."""
    record = {"ended_at": EPOCH + 100.0, "ended_by": "trainer", "reason": "completed"}
    save_json(folder / "exit.json", {**record, **said})


def alone(*, seconds: float = 2.0) -> World:
    """One rank, which ends its first step so long after its boot."""
    world = World(order_of(world_size=1), alive_every_s=99.0).boot(boot_s=0.0, load_s=0.0)
    return world.steps(1, step_s=seconds - world.mono + T0, data_s=0.0).finish()


def looked(world: World, *clocks: float) -> Watched:
    """The watch of a world by ticks that come so long after its begin."""
    return watch(world, ticking=lambda end: [(T0 + clock, 0.0) for clock in clocks])


@pytest.mark.parametrize(("before", "told"), [(2, []), (1, [2])], ids=["within", "behind"])
def test_what_exit_json_seals_reaches_to_the_last_byte_of_its_last_tick(
    before: int, told: list[int], tmp_path: Path
) -> None:
    """Up to there model.json may be written again, and no further."""
    first = Tick(n=0, mono=1.0, ts=1.0, files={"model.json": ONE})
    files = {"model.json": OTHER}
    ticks = [first, Tick(n=1, mono=2.0, ts=2.0, files=files, prev=tick_digest(tick_line(first)))]
    lines = [tick_line(row) for row in ticks]
    save_json(tmp_path / "order.json", order_of().document())
    (tmp_path / "watch.jsonl").write_bytes(b"".join(lines))
    save_end(tmp_path, watch={"bytes": len(b"".join(lines[:before])), "sha256": "0" * 64})
    assert [row.found for row in record_of(tmp_path).problems] == told


def test_a_changed_line_is_told_at_the_first_tick_that_had_read_it(tmp_path: Path) -> None:
    folder = looked(alone(), 1.0, 3.0, 5.0).save(tmp_path)
    file = folder / "heartbeat_rank0.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"step_start"', b'"alive"'))
    record = record_of(folder)
    (doubt,) = record.problems
    assert (doubt.kind, doubt.rank, doubt.found) == ("lines_changed", 0, 1)
    assert not record.agrees


@pytest.mark.parametrize(
    ("told", "added"),
    [
        (lambda count: {"heartbeat_rank0.jsonl": {"bytes": 1, "lines": count}}, None),
        (lambda count: {"heartbeat_rank0.jsonl": {"bytes": 1, "lines": count - 1}}, 1),
        (lambda count: {}, -1),
    ],
    ids=["as many", "one more", "all of them"],
)
def test_lines_that_exit_json_has_not_counted_were_added_after_the_end(
    told: Callable[[int], dict[str, Any]], added: int | None, tmp_path: Path
) -> None:
    live = looked(alone(), 5.0)
    count = live.files[0].count(b"\n")
    save_end(live.save(tmp_path), heartbeats=told(count))
    expected = [] if added is None else [count if added < 0 else added]
    assert [row.found for row in record_of(tmp_path).problems] == expected


@pytest.mark.parametrize(("old_s", "told"), [(15.0, False), (16.0, True)])
def test_what_a_tick_tells_of_devices_is_not_from_long_before_the_last_one(
    old_s: float, told: bool
) -> None:
    def sample(mono: float) -> dict[str, Any]:
        return {"mono": mono, "ts": 1e9, "uuid": "GPU-0", "rank": 0, "util": 90.0}

    first = {"mono": 100.0, "observations": {"devices": [sample(50.0)]}}
    later = {"mono": 101.0, "observations": {"devices": [sample(100.5), sample(100.0 - old_s)]}}
    chain = chain_of(first, later)
    assert ["device samples" in str(row.name) for row in chain.problems] == [True] * told
    assert [row.mono for row in chain.device_rows] == [50.0, 100.0 - old_s, 100.5]


@pytest.mark.parametrize(
    ("after", "told"), [([dead(code=0)], True), ([dead()], False), ([ALIVE, dead(code=0)], True)]
)
def test_beyond_the_end_no_tick_takes_back_how_a_rank_ended(
    after: list[RankProbe], told: bool
) -> None:
    rows = [{"ranks": [probe]} for probe in (dead(code=1), *after)]
    chain = chain_of(*rows, sealed=1)
    assert any("another exit" in str(row.name) for row in chain.problems) is told
    assert not any("another exit" in str(row.name) for row in chain_of(*rows).problems)


def test_the_first_of_many_problems_are_kept() -> None:
    chain = WatchRecord()
    for number in range(1, MOST_PROBLEMS + 5):
        chain.miss(number)
    assert len(chain.problems) == MOST_PROBLEMS


def test_the_first_error_count_of_a_device_is_kept() -> None:
    rows = [(0, "a", None), (0, "a", 2), (0, "a", 3), (None, "b", 1), (1, "b", 0)]
    samples = [
        {"ts": 0.0, "mono": 50.0 + number, "uuid": uuid, "rank": rank, "ecc_uncorrected": errors}
        for number, (rank, uuid, errors) in enumerate(rows)
    ]
    chain = chain_of({"mono": 100.0, "observations": {"devices": samples}})
    assert chain.device_errors == {(0, "a"): 2, (1, "b"): 0}


def test_a_process_is_heard_from_its_first_tick_to_its_last(tmp_path: Path) -> None:
    record = record_of(looked(alone(seconds=4.0), 0.25, 1.0, 4.5).save(tmp_path))
    assert record.reaches
    assert record.heard == {0: Heard(T0 + 0.25, T0 + 4.5, 4.25)}
