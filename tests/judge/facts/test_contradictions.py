"""Each rule compares two witnesses: one doubt where they differ, and none where they agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gonogo.contract.facts import ProcessExit
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.contract.records import (
    Check,
    CheckOutcome,
    ExitRecord,
    NodeExit,
    PartSeals,
    Preflight,
    RankExit,
    Refusal,
    Written,
)
from gonogo.judge.facts.contradictions import find_contradictions
from gonogo.judge.facts.record import RunRecord
from gonogo.judge.gate.rules import build_rules
from gonogo.timeline.lines import LineRecord
from gonogo.timeline.rank_steps import RankSteps
from gonogo.watch.offline_fold import Heard
from tests.data.make_runs import STEPS
from tests.judge.facts.beats import ORDER, beat, seen, told
from tests.judge.runs import SEAL, exit_record, watch_of

CLEAN = ProcessExit(code=0)
DIED = ProcessExit(code=None, signal=9)
TWO_NODES = ORDER.model_copy(update={"nodes": 2})


def exits(reason: OutcomeCode = OutcomeCode.COMPLETED, **fields: Any) -> ExitRecord:
    return exit_record(reason, by=Actor.OPERATOR).model_copy(update=fields)


def test_records_that_agree_raise_no_doubt() -> None:
    lines = {0: [beat(1), beat(2, 9.0)], 1: [beat(1, pid=2), beat(2, 9.0, pid=2)]}
    watch = replace(watch_of(ORDER), heard=dict.fromkeys((0, 1), Heard(0.0, 9.0, 9.0)), agent=CLEAN)
    ended = exits(agent=RankExit(code=0, at=1.0))
    assert told(lines, exit=ended, watch=watch, probed={0: CLEAN, 1: CLEAN}) == []


def written(lines: int = 2) -> dict[str, Written]:
    return {"heartbeat_rank5.jsonl": Written(bytes=9, lines=lines, sha256="5" * 64)}


@pytest.mark.parametrize(
    ("fields", "rank"),
    [
        ({"ranks": {5: [beat(1, rank=5)]}}, 5), ({"strays": (5,)}, 5), ({"probed": {5: CLEAN}}, 5),
        ({"exit": exits(ranks={"5": RankExit(code=0, at=1.0)})}, 5),
        ({"exit": exits(heartbeats=written())}, 5),
    ],
)  # fmt: skip
def test_a_record_of_a_rank_that_was_never_ordered(
    fields: dict[str, Any], rank: int | None
) -> None:
    found = told(**{"ranks": {}, **fields})
    assert seen(found) == [("not_ordered", rank)]
    assert "not_ordered" not in dict(seen(told(**{"ranks": {}, **fields}, order=None)))
    assert len(told({}, strays=tuple(range(2, 40)))) == 20, "so many are listed"


def test_one_process_writes_for_one_rank() -> None:
    assert seen(told({0: [beat(1, pid=7), beat(2, pid=3)]})) == [("two_writers", 0)]
    both = {0: [beat(1, pid=7)], 1: [beat(1, pid=7)]}
    (found,) = told(both)
    assert (found.rank, found.name, found.found) == (1, "a process of rank 0", 7)
    command = ORDER.model_copy(update={"command": ["torchrun"], "entry": None})
    assert told(both, command) == [], "one reader writes for all ranks of a command"
    elsewhere = {**both, 1: [beat(1, pid=7, rank=1, boot="c")]}
    assert told(elsewhere, TWO_NODES) == [], "two hosts give the same process ids"


@pytest.mark.parametrize(("began", "count"), [(99.0, 0), (98.9, 1)])
def test_two_processes_of_a_rank_may_overlap_by_a_last_breath(began: float, count: int) -> None:
    again = [beat(1, began, boot="c", pid=2), beat(2, 120.0, boot="c", pid=2)]
    found = told({0: [beat(1, 0.0), beat(2, 100.0), *again]})
    assert seen(found) == [("two_writers", 0)] * count


def test_lines_of_a_second_writer_are_counted() -> None:
    lines = {0: LineRecord(), 1: LineRecord(conflicts=2)}
    assert [(row.rank, row.found) for row in told({}, lines=lines)] == [(1, 2)]


@pytest.mark.parametrize(
    ("boots", "found"),
    [
        ([{}], None),
        ([{"run": ORDER.run, "attempt": ORDER.attempt}], None),
        ([{"run": "run_x"}], "run run_x, attempt None"),
        ([{"attempt": 9}], "run None, attempt 9"),
        ([{"run": ORDER.run}, {"run": "run_x"}, {"run": ORDER.run}], "run run_x, attempt None"),
        ([], "no run"),
    ],
)
def test_steps_come_from_processes_of_this_run(
    boots: list[dict[str, Any]], found: str | None
) -> None:
    first = [beat(seq, msg="boot", step=0, **row) for seq, row in enumerate(boots, 1)]
    step = beat(9, 1.0, "progress", loss=1.0)
    assert [row.found for row in told({0: [*first, step]})] == [found] * (found is not None)
    assert told({0: [*first, beat(9, 1.0)]}) == [], "it reports no step"


def process(boot: str, began: int, ended: int, done: int | None) -> list[Heartbeat]:
    """One process of rank 0: it resumes after a step, ends some, and perhaps reports `done`."""
    own = {"boot": boot, "pid": ord(boot)}
    start = 1000.0 * ord(boot)
    said = {"run": ORDER.run, "attempt": ORDER.attempt}
    lines = [beat(1, start, msg="boot", step=began, **own, **said)]
    for step in range(began + 1, ended + 1):
        lines.append(beat(len(lines) + 1, start + step, msg="step_end", step=step, **own))
    if done is None:
        return lines
    return [*lines, beat(len(lines) + 1, start + ended, msg="done", step=done, **own)]


@pytest.mark.parametrize(
    ("processes", "ended"),
    [
        ([("a", 0, STEPS, STEPS)], None),
        ([("a", 0, STEPS, None), ("b", STEPS, STEPS, STEPS)], None),
        ([("a", 0, STEPS, None), ("b", 6, 8, 8)], None),
        ([("a", 0, STEPS, None), ("b", 6, 8, STEPS)], 8),
        ([("a", 6, STEPS, STEPS), ("b", 0, 6, STEPS)], 6),
    ],
)
def test_a_rank_is_done_at_the_step_that_its_last_process_came_to(
    processes: list[tuple[str, int, int, int | None]], ended: int | None
) -> None:
    found = told({0: [line for row in processes for line in process(*row)]})
    wanted = [] if ended is None else [(f"step {STEPS}", f"step {ended}")]
    assert [(row.expected, row.found) for row in found] == wanted


@pytest.mark.parametrize(("lines", "count"), [(["error", "done"], 1), (["done", "error"], 0)])
def test_a_process_is_not_done_after_an_error(lines: list[str], count: int) -> None:
    found = told({0: [beat(seq, msg=msg) for seq, msg in enumerate(lines)]})
    assert seen(found) == [("exit_differs", 0)] * count


HALTS = {"marks": (".HALT",), "exit": exits(requests=[".HALT"])}


@pytest.mark.parametrize(
    ("fields", "done", "names"),
    [
        ({"marks": (".HALT",), "exit": exits(requests=[".kill"])}, 0, [".HALT", ".kill"]),
        ({"marks": (".HALT",), "exit": exits(OutcomeCode.HALTED)}, 0, []),
        ({"marks": (".HALT",)}, 0, []),
        (HALTS, STEPS, []),
        (HALTS, STEPS - 1, [".HALT"]),
        ({"exit": exits(requests=[".HALT"])}, STEPS, [".HALT"]),
    ],
)
def test_a_run_that_was_asked_to_end_did_not_complete(
    fields: dict[str, Any], done: int, names: list[str]
) -> None:
    lines = {rank: [beat(1, pid=rank, rank=rank, step=done, msg="done")] for rank in (0, 1)}
    found = told(lines if done else {}, **fields)
    assert [row.name for row in found if row.kind == "exit_differs"] == names


def part(number: int, **said: Any) -> NodeExit:
    known = {"node": number, "host": "h", "boot_id": "b", "ended_at": 1.0}
    return NodeExit(**{**known, "run": ORDER.run, "agent": RankExit(code=0, at=1.0), **said})


@pytest.mark.parametrize(
    ("said", "ended", "names"),
    [
        ({}, {}, []),
        ({"agent": RankExit(code=1, at=1.0)}, {}, ["node 1"]),
        ({"refused": Refusal(reason="x", ended_by="infra", text="")}, {}, ["node 1"]),
        ({"node": 0}, {}, ["exit_node1.json"]),
        ({"run": "run_9"}, {}, ["exit_node1.json"]),
        ({"ranks": {"1": RankExit(code=1, at=1.0)}}, {}, ["exit_node1.json"]),
        ({}, {"nodes": {"0": PartSeals(exit=SEAL, watch=SEAL)}}, ["node 1"]),
        ({"run": "run_9"}, {"nodes": None}, []),
    ],
)
def test_exit_json_agrees_with_each_node(
    said: dict[str, Any], ended: dict[str, Any], names: list[str]
) -> None:
    nodes = dict.fromkeys(("0", "1"), PartSeals(exit=SEAL, watch=SEAL))
    record = exits(**{"nodes": nodes, **ended})
    found = told({}, TWO_NODES, exit=record, parts={0: part(0), 1: part(1, **said)})
    assert [row.name for row in found] == names
    assert told({}, TWO_NODES, parts={1: part(0, run="run_9")}) == [], "without exit.json"


FAILED = OutcomeCode.NONZERO_EXIT


@pytest.mark.parametrize(
    ("reason", "said", "watched", "found"),
    [
        (OutcomeCode.COMPLETED, None, None, []), (OutcomeCode.COMPLETED, {"code": 0}, CLEAN, []),
        (OutcomeCode.COMPLETED, None, DIED, [("completed", "signal 9")]),
        (FAILED, {"signal": 9}, DIED, []), (FAILED, {"code": 3}, DIED, [("code 3", "signal 9")]),
    ],
)  # fmt: skip
def test_how_torchrun_ended(
    reason: OutcomeCode,
    said: dict[str, int] | None,
    watched: ProcessExit | None,
    found: list[tuple[str, str]],
) -> None:
    ended = exits(reason, agent=None if said is None else RankExit(at=1.0, **said))
    doubts = told({}, exit=ended, watch=replace(watch_of(ORDER), agent=watched))
    assert [(row.expected, row.found) for row in doubts] == found


def test_how_a_rank_ended() -> None:
    own = {0: RankExit(code=0, at=9.0), 1: RankExit(code=4, at=1.0)}
    found = told({}, exit=exit_record(), rank_exits=own, probed={0: DIED})
    assert [(row.rank, row.expected, row.found) for row in found] == [
        (0, "code 0", "signal 9"),
        (1, "code 0", "code 4"),
    ]
    assert told({}, rank_exits=own, probed={0: DIED}) == []


@pytest.mark.parametrize(
    ("said", "changes"),
    [
        ([("b", 1, 100), ("b", 5, 7)], [(100, 7)]),
        ([("b", 1, 7), ("b", 5, 9), ("b", 8, 7)], [(7, 9), (9, 7)]),
        ([("b", 1, 100), ("c", 21, 7)], [(100, 7)]),
        ([("b", 1, 100), ("b", 5, None), ("c", 21, 100)], []),
        ([("b", 1, 100), ("b", 2, 7)], []),
        ([("b", 1, 100), ("d", 31, 7), ("c", 41, 100)], []),
    ],
)
def test_a_rank_trains_as_one_identity(
    said: list[tuple[str, int, int | None]], changes: list[tuple[int, int]]
) -> None:
    boots = [
        beat(seq, float(seq), msg="boot", boot=boot, step=0, params=params)
        for boot, seq, params in said
    ]
    ends = [(4, "b", 1), (7, "b", 2), (9, "b", 3), (23, "c", 4), (43, "c", 5)]
    names = {boot for boot, _, _ in said}
    lines = [
        beat(seq, float(seq), msg="step_end", boot=boot, step=step)
        for seq, boot, step in ends
        if boot in names
    ]
    record = RunRecord(order=ORDER, ranks={0: RankSteps([*lines, *reversed(boots)])})
    rules = build_rules(ORDER)
    found = [row for row in find_contradictions(record, rules) if row.kind == "identity_changed"]
    assert [(row.expected, row.found) for row in found] == changes
    drifting = rules.model_copy(update={"allow_drift": ["params"]})
    assert "identity_changed" not in dict(seen(find_contradictions(record, drifting)))


@pytest.mark.parametrize(
    ("lines", "step"),
    [
        ([("step_end", STEPS), ("progress", STEPS + 1)], None),
        ([("step_end", STEPS), ("step_end", STEPS + 1), ("step_end", STEPS + 9)], STEPS + 1),
        ([("eval", STEPS)], None),
        ([("eval", 1), ("eval", STEPS + 2)], STEPS + 2),
    ],
)
def test_steps_and_evaluations_were_ordered(lines: list[tuple[str, int]], step: int | None) -> None:
    more = {"eval": {"val_loss": 1.0}}
    beats = [beat(n, msg=msg, step=at, **more.get(msg, {})) for n, (msg, at) in enumerate(lines, 1)]
    found = told({0: [beat(0, msg="boot", step=0), *beats]})
    assert [row.step for row in found] == [step] * (step is not None)
    unknown = ORDER.model_copy(update={"steps": None, "train": {}})
    assert told({0: beats}, None) == told({0: [beat(0, msg="boot", step=0), *beats]}, unknown) == []


@pytest.mark.parametrize(
    ("says", "name"),
    [
        ({"msg": "progress", "flash_share": 1.0, "comm_mb": 0.0, "grad_norm": 0.0}, None),
        ({"msg": "progress", "flash_share": 1.01}, "flash_share"),
        ({"msg": "progress", "flash_share": -0.5}, "flash_share"),
        ({"msg": "progress", "grad_norm": -0.1}, "grad_norm"),
        ({"msg": "eval", "val_loss": 2.0, "dt": 0.0}, None),
        ({"msg": "eval", "val_loss": 2.0, "dt": -9.0}, "dt"),
    ],
)
def test_numbers_lie_in_their_range(says: dict[str, Any], name: str | None) -> None:
    lines = [beat(0, msg="boot", step=0), *(beat(n, step=n, **says) for n in (1, 2))]
    assert [(row.name, row.found) for row in told({0: lines})] == [(name, 2)] * (name is not None)


@pytest.mark.parametrize(
    ("start_s", "own_s", "heard_s", "differ"),
    [
        (0.0, 10.0, 15.0, False), (0.0, 10.0, 15.1, True), (0.0, 100.0, 125.0, False),
        (0.0, 100.0, 125.5, True), (40.0, 60.0, 12.0, False), (40.0, 60.0, 7.0, True),
    ],
)  # fmt: skip
def test_a_ranks_own_clock_goes_as_the_watchers(
    start_s: float, own_s: float, heard_s: float, differ: bool
) -> None:
    watch = replace(watch_of(ORDER), heard={0: Heard(50.0, 50.0 + heard_s, heard_s)})
    ends = beat(2, 7.0 + own_s, msg="step_end")
    began = [beat(0, 7.0), beat(1, 7.0 + start_s, msg="step_start")]
    lines = {0: [*began, ends], 1: [beat(1, 0.0, pid=2)]}
    assert (("clocks_differ", 0) in seen(told(lines, watch=watch))) is differ


def test_errors_of_a_device_that_the_preflight_found_fit_contradict_it() -> None:
    watch = replace(watch_of(ORDER), device_errors={(0, "GPU-0"): 2, (1, "GPU-1"): 0})
    fit = Preflight(passed=True, checks=[Check(id="devices", outcome=CheckOutcome.PASS, text="")])
    (doubt,) = told({}, watch=watch, preflight=fit)
    assert (doubt.kind, doubt.rank, doubt.name, doubt.found) == ("devices_differ", 0, "GPU-0", 2)
    assert (
        find_contradictions(RunRecord(order=None, ranks={}, watch=watch), build_rules(None)) == []
    )


@pytest.mark.parametrize(("said", "count"), [(STEPS, 0), (None, 0), (STEPS + 1, 1)])
def test_an_order_and_its_configuration_ask_for_as_many_steps(said: int | None, count: int) -> None:
    order = ORDER.model_copy(update={"train": {**ORDER.train, "steps": said}})
    assert seen(told({}, order)) == [("not_ordered", None)] * count


@pytest.mark.parametrize(("own_s", "differ"), [(70.0, False), (120.0, True)])
def test_a_printed_program_may_start_a_minute_before_its_watcher(
    own_s: float, differ: bool
) -> None:
    watch = replace(watch_of(ORDER), heard={0: Heard(0.0, 8.0, 8.0)})
    lines = [beat(1, 0.0, msg="progress"), beat(2, own_s, msg="progress", step=2)]
    assert ("clocks_differ" in dict(seen(told({0: lines}, watch=watch)))) is differ


@pytest.mark.parametrize(
    ("heard_s", "least_s", "count"), [(60.0, 20.0, 0), (14.9, 14.9, 1), (60.0, 25.1, 1)]
)
def test_time_between_two_processes_belongs_to_neither(
    heard_s: float, least_s: float, count: int
) -> None:
    ends = beat(2, 50.0, boot="c", pid=2, msg="step_end")
    again = [beat(1, 40.0, boot="c", pid=2), ends]
    watch = replace(watch_of(ORDER), heard={0: Heard(0.0, heard_s, least_s)})
    found = seen(told({0: [beat(1, 0.0), beat(2, 10.0), *again]}, watch=watch))
    assert found.count(("clocks_differ", 0)) == count
