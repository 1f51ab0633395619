"""Each rule compares two witnesses: one sentence where they differ, and none where they agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gonogo.contract.facts import ProcessExit
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.node import NodeExit, Refusal
from gonogo.contract.order import Order
from gonogo.contract.outcome import Actor, Detector, OutcomeCode
from gonogo.contract.records import ExitRecord, ModelRecord, PartSeals, RankExit, Written
from gonogo.judge.facts.contradictions import find_contradictions
from gonogo.judge.facts.record import RunRecord
from gonogo.judge.facts.steps import RankSteps, build_rank_steps
from gonogo.judge.gate.rules import build_rules
from tests.data.make_runs import STEPS
from tests.judge.facts.beats import ORDER, beat, told
from tests.judge.runs import (
    SEAL,
    exit_record,
    finding,
    watch_of,
)

GONE = ProcessExit(code=0)
DIED = ProcessExit(code=None, signal=9)


def test_records_that_agree_are_not_told_of() -> None:
    lines = {0: [beat(1), beat(2, 9.0)], 1: [beat(1, pid=2), beat(2, 9.0, pid=2)]}
    watch = replace(watch_of(ORDER), heard={0: (0.0, 9.0), 1: (0.0, 9.0)}, agent=GONE)
    exits = exit_record().model_copy(update={"agent": RankExit(code=0, at=1.0)})
    assert told(lines, exit=exits, watch=watch, probed={0: GONE, 1: GONE}) == []


@pytest.mark.parametrize(
    ("fields", "sentences"),
    [
        ({"ranks": {5: [beat(1, rank=5)]}}, ["rank 5 was never ordered"]),
        ({"strays": (5,)}, ["rank 5 was never ordered"]),
        ({"probed": {5: GONE}}, ["rank 5 was never ordered"]),
        ({"probed": {1: GONE}}, []),
        (
            {"exit": exit_record().model_copy(update={"ranks": {"5": RankExit(code=0, at=1.0)}})},
            ["rank 5 was never ordered"],
        ),
        (
            {"exit": exit_record().model_copy(update={"ranks": {"x" * 20: RankExit(at=1.0)}})},
            [f"exit.json: {'x' * 16!r} is no rank"],
        ),
    ],
)
def test_a_rank_that_was_never_ordered_left_no_record(
    fields: dict[str, Any], sentences: list[str]
) -> None:
    found = told(**{"ranks": {}, **fields})
    assert [text.partition(", and")[0] for text in found] == sentences
    assert not any("never ordered" in text for text in told(**{"ranks": {}, **fields}, order=None))


@pytest.mark.parametrize(
    ("name", "lines", "sealed", "kept", "unreadable", "named"),
    [
        ("heartbeat_rank5.jsonl", 2, True, False, 0, True),
        ("heartbeat_rank5.jsonl", 2, True, False, 2, True),
        ("heartbeat_rank5.jsonl", 2, True, True, 0, False),
        ("heartbeat_rank5.jsonl", 0, True, False, 0, False),
        ("heartbeat_rank1.jsonl", 2, True, False, 0, False),
        ("more.jsonl", 2, True, False, 0, False),
        ("heartbeat_rank5.jsonl", 1, False, False, 0, True),
        ("heartbeat_rank5.jsonl", 2, False, False, 1, True),
        ("heartbeat_rank5.jsonl", 2, False, False, 2, False),
        ("heartbeat_rank5.jsonl", 2, False, True, 0, False),
    ],
    ids=[
        "gone", "another stands there", "as it was sealed", "empty", "ordered", "no rank's",
        "one line, of before", "one may be none", "all may be none", "kept, of before",
    ],
)  # fmt: skip
def test_lines_that_exit_json_counted_of_a_rank_that_was_never_ordered_are_a_record(
    name: str, lines: int, sealed: bool, kept: bool, unreadable: int, named: bool
) -> None:
    written = Written(bytes=9, lines=lines, sha256="5" * 64 if sealed else None)
    exits = exit_record().model_copy(update={"heartbeats": {name: written}})
    found = told(
        {},
        exit=exits,
        kept=frozenset({5} if kept else ()),
        unreadable_lines={5: unreadable} if unreadable else {},
    )
    assert found == ["rank 5 was never ordered, and there is a record of it"] * named


def test_a_rank_without_a_line_is_no_record() -> None:
    record = RunRecord(order=ORDER, ranks={5: RankSteps()})
    assert find_contradictions(record, build_rules(ORDER)) == []


def test_one_process_writes_for_one_rank() -> None:
    assert told({0: [beat(1, pid=7), beat(2, pid=3)]}) == [
        "rank 0: one boot has the process ids 3, 7"
    ]
    both = {0: [beat(1, pid=7)], 1: [beat(1, pid=7)]}
    assert told(both) == ["process 7 wrote as rank 0 and as rank 1"]
    command = ORDER.model_copy(update={"command": ["torchrun"], "entry": None})
    assert told(both, command) == [], "one reader tells of all ranks of a command"
    elsewhere = {**both, 1: [beat(1, pid=7, rank=1, boot="c")]}
    assert told(elsewhere, TWO_NODES) == [], "two hosts give the same process ids"


@pytest.mark.parametrize("count", [1])
def test_one_process_writes_for_one_rank_whatever_its_node(count: int) -> None:
    ranks = {rank: build_rank_steps([beat(1, pid=7, rank=rank)]) for rank in (0, 1)}
    rules = build_rules(TWO_NODES)
    found = find_contradictions(RunRecord(order=TWO_NODES, ranks=ranks), rules)
    assert found == ["process 7 wrote as rank 0 and as rank 1"] * count


@pytest.mark.parametrize(("began", "count"), [(99.0, 0), (98.9, 1)])
def test_two_processes_of_a_rank_may_overlap_by_a_last_breath(began: float, count: int) -> None:
    lines = [
        beat(1, 0.0),
        beat(2, 100.0),
        beat(1, began, boot="c", pid=2),
        beat(2, 120.0, boot="c", pid=2),
    ]
    found = told({0: lines})
    assert found == ["rank 0: two processes wrote at the same time"] * count


@pytest.mark.parametrize(
    ("boot", "sentences"),
    [
        ({}, []),
        ({"run": ORDER.run, "attempt": ORDER.attempt}, []),
        ({"run": "run_x"}, ["rank 0: a process of run run_x, attempt None tells of steps"]),
        ({"attempt": 9}, ["rank 0: a process of run None, attempt 9 tells of steps"]),
        (
            {"run": ORDER.run, "attempt": 9},
            [f"rank 0: a process of run {ORDER.run}, attempt 9 tells of steps"],
        ),
        (None, ["rank 0: a process that never said boot tells of steps"]),
    ],
)
def test_steps_are_told_by_processes_of_this_run(
    boot: dict[str, Any] | None, sentences: list[str]
) -> None:
    step = beat(2, 1.0, "progress", loss=1.0)
    first = [] if boot is None else [beat(1, msg="boot", step=0, **boot)]
    assert told({0: [*first, step]}) == sentences
    assert told({0: [*first, step]}, ORDER.model_copy(update={"run": ""})) == []
    assert told({0: [*first, beat(2, 1.0)]}) == [], "it tells of no step"


def test_each_boot_line_of_a_process_is_of_this_run() -> None:
    own: dict[str, Any] = {"msg": "boot", "run": ORDER.run, "attempt": ORDER.attempt}
    another = beat(2, **{**own, "run": "run_x"})
    lines = [beat(1, step=0, **own), another, beat(3, **own), beat(4, 1.0, "progress", loss=1.0)]
    sentence = f"rank 0: a process of run run_x, attempt {ORDER.attempt} tells of steps"
    assert told({0: lines}) == [sentence]
    assert told({0: [lines[0], lines[3]]}) == []


def test_lines_of_a_second_writer_are_counted() -> None:
    assert told({}, conflicts={0: 0, 1: 2}) == [
        "rank 1: 2 lines differ from another one of the same boot and seq"
    ]


@pytest.mark.parametrize(
    ("lines", "count"),
    [(["error", "done"], 1), (["done", "error"], 0), (["error"], 0), (["done"], 0)],
)
def test_what_said_error_is_not_done_afterwards(lines: list[str], count: int) -> None:
    found = told({0: [beat(seq, msg=msg) for seq, msg in enumerate(lines)]})
    assert found == ["rank 0 said error before it said done"] * count


def process(boot: str, began: int, ended: int, done: int | None) -> list[Heartbeat]:
    """One process of rank 0: it goes on after a step, ends some, and perhaps says `done`."""
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
        ([("a", 0, STEPS, None), ("b", 6, STEPS, STEPS)], None),
        ([("a", 0, STEPS, None), ("b", STEPS, STEPS, STEPS)], None),
        ([("a", 0, STEPS, STEPS + 1)], None),
        ([("a", 0, STEPS, None), ("b", 6, 8, 8)], None),
        ([("a", 0, STEPS, None), ("b", 6, 8, None)], None),
        ([("a", 0, STEPS, None), ("b", 6, 8, STEPS)], 8),
        ([("a", 6, STEPS, STEPS), ("b", 0, 6, STEPS)], 6),
    ],
    ids=[
        *("one process", "made again", "all was done", "beyond", "says so", "never done"),
        *("gone back", "halves in turn"),
    ],
)
def test_a_rank_is_done_at_the_step_that_its_process_came_to(
    processes: list[tuple[str, int, int, int | None]], ended: int | None
) -> None:
    lines = [line for row in processes for line in process(*row)]
    sentence = (
        f"rank 0 said that it was done at step {STEPS},"
        f" and the last step that its process ended is {ended}"
    )
    assert told({0: lines}) == ([] if ended is None else [sentence])


@pytest.mark.parametrize("count", [1])
def test_a_release_that_believed_any_done_is_replayed_as_it_judged(count: int) -> None:
    lines = [*process("a", 0, STEPS, None), *process("b", 6, 8, STEPS)]
    record = RunRecord(order=ORDER, ranks={0: build_rank_steps(lines)})
    rules = build_rules(ORDER)
    assert len(find_contradictions(record, rules)) == count


@pytest.mark.parametrize(
    ("reason", "count"), [(OutcomeCode.COMPLETED, 2), (OutcomeCode.HALTED, 0), (None, 0)]
)
def test_a_run_that_was_asked_to_end_did_not_complete(
    reason: OutcomeCode | None, count: int
) -> None:
    exits = None if reason is None else exit_record(reason, by=Actor.OPERATOR)
    if exits is not None:
        exits = exits.model_copy(update={"requests": [".kill", ".HALT"]})
    found = told({}, marks=(".HALT",), exit=exits)
    names = [".HALT", ".kill"][:count]
    assert found == [
        f"{name} asks the run to end, and exit.json says that it completed" for name in names
    ]


@pytest.mark.parametrize(
    ("ranks", "step", "marks", "requests", "named"),
    [
        ((0, 1), STEPS, [".HALT"], [".HALT"], []),
        ((0, 1), STEPS - 1, [".HALT"], [".HALT"], [".HALT"]),
        ((0,), STEPS, [".HALT"], [".HALT"], [".HALT"]),
        ((0, 1), STEPS, [".HALT"], [], [".HALT"]),
        ((0, 1), STEPS, [], [".HALT"], [".HALT"]),
        ((0, 1), STEPS, [".HALT", ".kill"], [".HALT", ".kill"], [".kill"]),
    ],
)
def test_who_came_to_the_last_step_before_he_could_leave_has_completed(
    ranks: tuple[int, ...], step: int, marks: list[str], requests: list[str], named: list[str]
) -> None:
    lines = {rank: [beat(1, pid=rank, rank=rank, step=step, msg="done")] for rank in ranks}
    exits = exit_record().model_copy(update={"requests": requests})
    found = told(lines, marks=tuple(marks), exit=exits)
    asks = [row for row in found if "asks the run to end" in row]
    assert [row.partition(" ")[0] for row in asks] == named


@pytest.mark.parametrize(
    ("reason", "count"), [(OutcomeCode.COMPLETED, 2), (OutcomeCode.STALLED, 0)]
)
def test_a_run_of_which_a_node_never_said_how_it_ended_did_not_complete(
    reason: OutcomeCode, count: int
) -> None:
    found = told({}, exit=exit_record(reason).model_copy(update={"unheard": [1, 2]}))
    nodes = [1, 2][:count]
    assert found == [
        f"node {node} never said how it ended, and exit.json says that the run completed"
        for node in nodes
    ]


TWO_NODES = ORDER.model_copy(update={"nodes": 2})
SEALED = PartSeals(exit=SEAL, watch=SEAL)
BADLY = "node 1 ended badly by exit_node1.json, and exit.json says that the run completed"


def part(number: int, **said: Any) -> NodeExit:
    known = {"node": number, "host": "h", "boot_id": "b", "ended_at": 1.0}
    ends = {"run": ORDER.run, "agent": RankExit(code=0, at=1.0)}
    return NodeExit(**{**known, **ends, **said})


def of_parts(
    *,
    reason: OutcomeCode = OutcomeCode.COMPLETED,
    nodes: tuple[str, ...] | None = ("0", "1"),
    unheard: tuple[int, ...] = (),
    order: Order | None = TWO_NODES,
    **said: Any,
) -> list[str]:
    """What is said of a run of which node 1 said this of its part."""
    sealed = None if nodes is None else dict.fromkeys(nodes, SEALED)
    known = exit_record(reason).model_copy(update={"nodes": sealed, "unheard": list(unheard)})
    return told({}, order, exit=known, parts={0: part(0), 1: part(1, **said)})


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({}, []),
        ({"agent": None}, []),
        ({"agent": RankExit(code=1, at=1.0)}, [BADLY]),
        ({"agent": RankExit(signal=9, at=1.0)}, [BADLY]),
        ({"refused": Refusal(reason="x", ended_by="infra", text="")}, [BADLY]),
        ({"reason": OutcomeCode.STALLED, "agent": RankExit(code=1, at=1.0)}, []),
        ({"node": 0}, [f"exit_node1.json is of node 0 of run {ORDER.run}"]),
        ({"run": "run_9"}, ["exit_node1.json is of node 1 of run run_9"]),
        (
            {"ranks": {"1": RankExit(code=1, at=1.0), "x": RankExit(code=1, at=1.0)}},
            ["rank 1 ended with code 0 by exit.json, with code 1 by exit_node1.json"],
        ),
        ({"nodes": ("0",)}, ["exit.json says nothing of how node 1 ended"]),
        ({"nodes": ("0",), "unheard": (1,), "reason": OutcomeCode.STALLED}, []),
        ({"nodes": None, "run": "run_9"}, []),
        ({"order": None, "run": "run_9"}, []),
    ],
)
def test_a_part_ends_as_exit_json_says_that_the_run_did(
    said: dict[str, Any], found: list[str]
) -> None:
    assert of_parts(**said) == found


def test_without_exit_json_no_part_contradicts_it() -> None:
    assert told({}, TWO_NODES, parts={1: part(0, run="run_9")}) == []


def ended(reason: OutcomeCode, agent: dict[str, int] | None) -> ExitRecord:
    said = None if agent is None else RankExit(at=1.0, **agent)
    return exit_record(reason).model_copy(update={"agent": said})


COMPLETED, FAILED = OutcomeCode.COMPLETED, OutcomeCode.NONZERO_EXIT


@pytest.mark.parametrize(
    ("exits", "seen", "sentences"),
    [
        (ended(COMPLETED, None), None, []),
        (ended(COMPLETED, {"code": 0}), None, []),
        (ended(COMPLETED, {"code": 0}), GONE, []),
        (ended(COMPLETED, None), GONE, []),
        (
            ended(COMPLETED, None),
            DIED,
            ["torchrun ended with signal 9 by the watcher, and exit.json says that it completed"],
        ),
        (ended(FAILED, None), DIED, []),
        (ended(FAILED, {"signal": 9}), DIED, []),
        (
            ended(FAILED, {"code": 3}),
            DIED,
            ["torchrun ended with code 3 by exit.json, with signal 9 by the watcher"],
        ),
        (
            ended(FAILED, {"code": 3}),
            GONE,
            ["torchrun ended with code 3 by exit.json, with code 0 by the watcher"],
        ),
    ],
)
def test_how_torchrun_ended_is_told_alike(
    exits: ExitRecord, seen: ProcessExit | None, sentences: list[str]
) -> None:
    watch = replace(watch_of(ORDER), agent=seen)
    assert told({}, exit=exits, watch=watch) == sentences
    assert told({}, exit=exits) == told({}, watch=watch) == []


@pytest.mark.parametrize(
    ("said", "sentences"),
    [
        ([("b", 1, 100), ("b", 5, 7)], ["rank 0 trained as params 100, then as 7"]),
        (
            [("b", 1, 7), ("b", 5, 9), ("b", 8, 7)],
            ["rank 0 trained as params 7, then as 9", "rank 0 trained as params 9, then as 7"],
        ),
        ([("b", 1, 100), ("c", 21, 7)], ["rank 0 trained as params 100, then as 7"]),
        ([("b", 1, 100), ("b", 5, 100), ("c", 21, 100)], []),
        ([("b", 1, 100), ("b", 5, None), ("b", 6, 100)], []),
        ([("b", 1, 100), ("b", 2, 7)], []),
        ([("b", 1, 100), ("d", 31, 7), ("c", 41, 100)], []),
    ],
)
def test_a_rank_trains_as_one_thing(
    said: list[tuple[str, int, int | None]], sentences: list[str]
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
    record = RunRecord(order=ORDER, ranks={0: build_rank_steps([*lines, *reversed(boots)])})
    rules = build_rules(ORDER)
    found = find_contradictions(record, rules)
    assert [text for text in found if "trained as" in text] == sentences
    drifting = rules.model_copy(update={"allow_drift": ["params"]})
    assert not any("trained as" in text for text in find_contradictions(record, drifting))


def test_how_a_rank_ended_is_told_alike_by_its_record_and_the_watcher() -> None:
    own = {0: RankExit(code=0, at=9.0), 1: RankExit(code=4, at=1.0)}
    assert told({}, exit=exit_record(), rank_exits=own, probed={0: DIED}) == [
        "rank 0 ended with code 0 by exit.json, with signal 9 by the watcher",
        "rank 1 ended with code 0 by exit.json, with code 4 by its own record",
    ]
    assert told({}, rank_exits=own, probed={0: DIED}) == []


@pytest.mark.parametrize(
    ("steps", "msg", "count"),
    [
        ([1, STEPS], "step_end", 0),
        ([STEPS, STEPS + 1, STEPS + 9], "step_end", 1),
        ([STEPS + 1], "progress", 0),
    ],
)
def test_no_step_ends_that_was_not_ordered(steps: list[int], msg: str, count: int) -> None:
    lines = {0: [beat(0, msg="boot", step=0), *(beat(n, msg=msg, step=n) for n in steps)]}
    text = f"rank 0 ended step {STEPS + 1}, which was not ordered"
    assert told(lines) == [text] * count
    assert told(lines, None) == []
    assert (
        told(lines, ORDER.model_copy(update={"steps": None, "train": {}})) == []
    )  # nobody said how many


@pytest.mark.parametrize(("step", "count"), [(STEPS, 0), (STEPS + 1, 1)])
def test_no_evaluation_is_of_a_step_that_was_not_ordered(step: int, count: int) -> None:
    good, last = (
        beat(2, msg="eval", step=1, val_loss=1.0),
        beat(3, msg="eval", step=step, val_loss=9.0),
    )
    steps = build_rank_steps([beat(0, msg="boot", step=0), good, last])
    record = RunRecord(order=ORDER, ranks={0: steps})
    rules = build_rules(ORDER)
    text = f"rank 0 tells an evaluation of step {step}, which was not ordered"
    assert find_contradictions(record, rules) == [text] * count
    nobody_said = rules.model_copy(update={"steps": None})
    assert text not in find_contradictions(record, nobody_said)


@pytest.mark.parametrize(("said", "count"), [(STEPS, 0), (None, 0), (STEPS + 1, 1), ("absent", 0)])
def test_an_order_and_its_training_configuration_ask_for_as_many_steps(
    said: object, count: int
) -> None:
    train = {name: value for name, value in ORDER.train.items() if name != "steps"}
    order = ORDER.model_copy(
        update={"train": train if said == "absent" else {**train, "steps": said}}
    )
    text = f"the order asks for {STEPS} steps, its training configuration for {said}"
    assert told({}, order) == [text] * count


def test_what_is_never_negative_is_not() -> None:
    def lines(*norms: float) -> list[Heartbeat]:
        rows = enumerate(norms, start=1)
        return [beat(0, msg="boot", step=0)] + [
            beat(step, msg="progress", step=step, grad_norm=norm) for step, norm in rows
        ]

    assert told({0: lines(0.0, 1.0)}) == []
    assert told({0: lines(-0.1, 1.0, -2.0)}) == ["rank 0: grad_norm is negative at 2 steps"]


@pytest.mark.parametrize(
    ("told_of", "texts"),
    [
        ({"msg": "progress", "flash_share": 1.0, "comm_mb": 0.0}, []),
        ({"msg": "progress", "flash_share": 45.0}, ["flash_share is above 1 at 2 steps"]),
        ({"msg": "progress", "flash_share": 1.5}, ["flash_share is above 1 at 2 steps"]),
        ({"msg": "progress", "flash_share": -0.5}, ["flash_share is negative at 2 steps"]),
        ({"msg": "progress", "comm_mb": -1.0}, ["comm_mb is negative at 2 steps"]),
        ({"msg": "eval", "val_loss": 2.0, "dt": 0.0}, []),
        ({"msg": "eval", "val_loss": 2.0, "dt": 0.5}, []),
        (
            {"msg": "eval", "val_loss": 2.0, "dt": -9.0},
            ["the seconds (dt) of 2 evaluations are negative"],
        ),
    ],
)
def test_numbers_of_another_unit_or_sign_are_none_and_pass_no_gate(
    told_of: dict[str, Any], texts: list[str]
) -> None:
    lines = [beat(0, msg="boot", step=0), *(beat(n, step=n, **told_of) for n in (1, 2))]
    assert told({0: lines}) == [f"rank 0: {text}" for text in texts]


def test_of_several_evaluations_of_one_step_each_took_its_time() -> None:
    lines = [
        beat(0, msg="boot", step=0),
        *(beat(n, msg="eval", step=1, val_loss=2.0, dt=dt) for n, dt in ((1, -9.0), (2, 5.0))),
    ]
    assert told({0: lines}) == ["rank 0: the seconds (dt) of 1 evaluations are negative"]


@pytest.mark.parametrize(
    ("own_s", "heard_s", "differ"),
    [
        (10.0, 15.0, False),  # 5 s are a tick or two
        (10.0, 15.1, True),
        (15.1, 10.0, True),
        (100.0, 125.0, False),  # a fifth of the longer one
        (100.0, 125.5, True),
        (125.5, 100.0, True),
        (0.0, 5.0, False),
        (0.0, 5.2, True),
    ],
)
def test_a_ranks_own_clock_goes_as_the_watchers(own_s: float, heard_s: float, differ: bool) -> None:
    watch = replace(watch_of(ORDER), heard={0: (50.0, 50.0 + heard_s)})
    lines = {0: [beat(1, 7.0), beat(2, 7.0 + own_s)], 1: [beat(1, 0.0, pid=2)]}
    text = f"rank 0 ran for {own_s:.0f} s by its own clock, and was heard for {heard_s:.0f} s"
    assert told(lines, watch=watch) == [text] * differ
    assert told(lines) == []


@pytest.mark.parametrize(
    ("start_s", "heard_s", "differ"),
    [
        (0.0, 8.0, True),
        (4.9, 8.0, True),
        (5.1, 8.0, False),
        (10.0, 8.0, False),
        (10.0, 24.0, True),
        (18.0, 8.0, False),
    ],
)
def test_a_start_that_a_late_watcher_did_not_hear_contradicts_nothing(
    start_s: float, heard_s: float, differ: bool
) -> None:
    lines = [
        beat(1, 7.0, msg="boot", step=0),
        beat(2, 7.0 + start_s, msg="step_start", step=1),
        beat(3, 7.0 + 18.0, msg="step_end", step=1),
    ]
    watch = replace(watch_of(ORDER), heard={0: (50.0, 50.0 + heard_s)})
    text = f"rank 0 ran for 18 s by its own clock, and was heard for {heard_s:.0f} s"
    assert (text in told({0: lines}, watch=watch)) is differ


@pytest.mark.parametrize(
    ("found", "own_s", "said", "differ"),
    [
        (13.0, 18.0, "progress", False),
        (8.1, 18.0, "progress", False),
        (7.9, 18.0, "progress", True),
        (13.0, 18.0, "step_end", True),
        (60.0, 70.0, "progress", False),
        (90.0, 100.0, "progress", True),
        (None, 18.0, "progress", True),
    ],
)
def test_first_lines_that_a_late_watcher_found_contradict_nothing(
    found: float | None, own_s: float, said: str, differ: bool
) -> None:
    """A program that is only read waits for no watcher: its first steps come while that starts."""
    heard_s = 5.0 if own_s < 20.0 else 10.0
    watch = replace(watch_of(ORDER), heard={0: (50.0, 50.0 + heard_s)})
    if found is not None:
        watch = replace(watch, found_mono={0: 7.0 + found})
    lines = [
        beat(1, 7.0, msg="boot", step=0),
        beat(2, 7.1, msg="progress", step=1),
        beat(3, 7.0 + own_s, msg=said, step=2),
    ]
    record = RunRecord(order=ORDER, ranks={0: build_rank_steps(lines)}, watch=watch)
    rules = build_rules(ORDER)
    text = f"rank 0 ran for {own_s:.0f} s by its own clock, and was heard for {heard_s:.0f} s"
    assert (text in find_contradictions(record, rules)) is differ


@pytest.mark.parametrize(("late_s", "differ"), [(60.0, False), (53.0, False), (52.9, True)])
def test_last_lines_that_a_late_watcher_found_contradict_nothing(
    late_s: float, differ: bool
) -> None:
    """It was stopped, or started anew, when the run came to its end."""
    watch = replace(watch_of(ORDER), heard={0: (0.0, 68.0)}, heard_late_s={0: late_s})
    record = RunRecord(
        order=ORDER, ranks={0: build_rank_steps([beat(1, 7.0), beat(2, 17.0)])}, watch=watch
    )
    rules = build_rules(ORDER)
    text = "rank 0 ran for 10 s by its own clock, and was heard for 68 s"
    assert find_contradictions(record, rules) == [text] * differ


@pytest.mark.parametrize("late_s", [60.0, 3.0])
def test_a_late_watcher_makes_no_clock_slow_that_runs_ahead(late_s: float) -> None:
    watch = replace(watch_of(ORDER), heard={0: (0.0, 8.0)}, heard_late_s={0: late_s})
    found = told({0: [beat(1, 7.0), beat(2, 17.0)]}, watch=watch)
    assert found == []
    assert len(told({0: [beat(1, 7.0), beat(2, 27.0)]}, watch=watch)) == 1


@pytest.mark.parametrize(("heard_s", "differ"), [(60.0, False), (15.0, False), (14.9, True)])
def test_the_time_between_two_processes_is_nobodys(heard_s: float, differ: bool) -> None:
    again = [beat(1, 40.0, boot="c", pid=2), beat(2, 50.0, boot="c", pid=2)]
    watch = replace(watch_of(ORDER), heard={0: (0.0, heard_s)})
    found = told({0: [beat(1, 0.0), beat(2, 10.0), *again]}, watch=watch)
    assert len(found) == differ


@pytest.mark.parametrize(("alone_s", "differ"), [(19.0, False), (25.0, False), (25.1, True)])
def test_how_long_processes_were_heard_one_by_one_counts(alone_s: float, differ: bool) -> None:
    again = [beat(1, 40.0, boot="c", pid=2), beat(2, 50.0, boot="c", pid=2)]
    watch = replace(watch_of(ORDER), heard={0: (0.0, 60.0)}, heard_alone_s={0: alone_s})
    watch = replace(watch, heard_late_s={0: 9.0})  # left out of that already
    found = told({0: [beat(1, 0.0), beat(2, 10.0), *again]}, watch=watch)
    text = f"rank 0 ran for 20 s by its own clock, and was heard for {alone_s:.0f} s"
    assert found == [text] * differ


def test_the_model_is_what_the_ranks_say_that_they_are() -> None:
    lines = {0: [beat(1, msg="boot", step=0, dim=64, layers=2)], 1: [beat(1, pid=2)]}
    assert told(lines, model=ModelRecord(dim=64, heads=4)) == []
    assert told(lines, model=ModelRecord(dim=65, layers=2)) == [
        "dim is 65 by model.json, 64 by rank 0"
    ]


@pytest.mark.parametrize(("gone", "count"), [(0, 0), (3, 1)])
def test_devices_jsonl_holds_what_the_ticks_carry(gone: int, count: int) -> None:
    text = f"devices.jsonl lacks {gone} samples as the ticks carry them"
    assert told({}, devices_gone=gone) == [text] * count


def test_twenty_are_told() -> None:
    assert len(told({}, conflicts=dict.fromkeys(range(30), 1))) == 20


def test_of_the_predecessor_only_the_reported_speed_has_a_second_witness() -> None:
    rows = [finding(Detector.IMPLAUSIBLE_SPEED)] * 30 + [finding(Detector.STALL)]
    texts = [row.model_copy(update={"text": str(n)}) for n, row in enumerate(rows)]
    found = told({}, predecessor=True, findings=tuple(texts), conflicts={0: 1})
    assert found == [str(number) for number in range(20)]
