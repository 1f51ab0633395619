"""What the ticks and the record of a watch say: each check of the chain, at its edge."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.facts import ProcessExit
from gonogo.contract.records import (
    AgentProbe,
    FileSeal,
    ProcessState,
    RankProbe,
    Tick,
)
from gonogo.rundir import save_json
from gonogo.watch.offline_fold import (
    AWAY_S,
    HOLE_S,
    MOST_PROBLEMS,
    Heard,
    WatchRecord,
    refold,
    tick_digest,
    tick_line,
)
from tests.watch.streams import EPOCH, T0, Watched, World, order_of, watch

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
        (HOLE_S, 0.0, None), (HOLE_S + 1, 0.0, 16), (HOLE_S + 1, 1.0, None), (AWAY_S, AWAY_S, None),
        (AWAY_S + 1, AWAY_S + 1, 301),
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


# What recorded ticks amount to: what was sealed, heard, lost and added, as the record says it.


ONE, OTHER = FileSeal(bytes=1, sha256="1" * 64), FileSeal(bytes=2, sha256="2" * 64)


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


@pytest.mark.parametrize(("old_s", "told"), [(HOLE_S, False), (HOLE_S + 1.0, True)])
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


def test_a_process_is_heard_from_its_first_tick_to_its_last(
    tmp_path: Path,
) -> None:
    record = record_of(looked(alone(seconds=4.0), 0.25, 1.0, 4.5).save(tmp_path))
    assert record.heard == {0: Heard(T0 + 0.25, T0 + 4.5, 4.25)}
