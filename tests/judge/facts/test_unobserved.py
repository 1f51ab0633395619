"""What was not observed of a run is listed, and changes no verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gonogo.contract.canonical import digest
from gonogo.contract.finding import Doubt, DoubtKind
from gonogo.contract.heartbeat import Identity
from gonogo.contract.order import Order
from gonogo.contract.records import PartSeals
from gonogo.judge.facts.record import RunRecord
from gonogo.timeline.rank_steps import RankSteps
from tests.data.make_runs import STEPS, Rank, healthy_ranks, order_of
from tests.judge.facts.beats import beat, of_rank, steps_that
from tests.judge.runs import SEAL, exit_record, facts_of, judged, record_of, with_gate

TWO_NODES = order_of().model_copy(update={"nodes": 2})
Kind = DoubtKind


def listed(record: RunRecord, kind: DoubtKind) -> list[Doubt]:
    return [row for row in facts_of(record).doubts if row.kind is kind]


def of_lines(order: Order, *ranks: list[Any], **fields: Any) -> RunRecord:
    steps = {rank: RankSteps(lines) for rank, lines in enumerate(ranks)}
    return RunRecord(order=order, ranks=steps, **fields)


def test_missing_records_are_listed() -> None:
    whole = record_of()
    for changes, names in (
        ({}, []),
        ({"watch": None}, ["watch.jsonl"]),
        ({"preflight": None}, ["preflight.json"]),
        ({"exit": None}, ["exit.json"]),
        ({"order": None, "watch": None}, ["order.json", "watch.jsonl"]),
    ):
        found = listed(replace(whole, **changes), Kind.RECORD_MISSING)
        assert [row.name for row in found] == names


@pytest.mark.parametrize(
    ("looked", "silent_s", "sealed", "found"),
    [
        ({0, 1}, {0: 0.0}, True, []), ({0, 1}, {1: 9.0}, True, [9]), ({0, 1}, {1: 0.4}, True, [0]),
        ({0}, {}, True, ["all"]), ({0}, {1: 9.0}, False, []),
    ],
)  # fmt: skip
def test_a_node_whose_processes_nobody_observed(
    looked: set[int], silent_s: dict[int, float], sealed: bool, found: list[object]
) -> None:
    parts = {str(node): PartSeals(exit=SEAL, watch=SEAL) for node in range(2)}
    exits = exit_record().model_copy(update={"nodes": parts if sealed else None})
    whole = record_of(TWO_NODES, exit=exits)
    assert whole.watch is not None
    watch = replace(whole.watch, looked=frozenset(looked), silent_s=silent_s)
    rows = listed(replace(whole, watch=watch), Kind.NODE_UNOBSERVED)
    assert [row.found for row in rows] == found


def test_a_metric_of_the_gate_that_nothing_records() -> None:
    names = ("loss", "host_rss_mb", "toks_per_s")
    order = with_gate(order_of(), *({"id": n, "metric": n, "pass_above": 0.0} for n in names))
    order = order.model_copy(update={"identity": Identity()})
    sums = [beat(n, float(n), "step_end", step=n, tokens=n) for n in range(2, 9)]
    record = of_lines(order, [beat(1, 1.0, "progress", loss=1.0), *sums])
    found = [(row.name, "rise" in str(row.found)) for row in listed(record, Kind.METRIC_MISSING)]
    assert found == [("gpu_util", False), ("host_rss_mb", False), ("toks_per_s", True)]


def again(rank: Rank, reached: int, to: int) -> None:
    """The rank came to a step, and a later process went back to another one and on to the end."""
    lines = [line for line in rank.lines if line["step"] <= reached and line["msg"] != "done"]
    rank.lines, rank.seq = lines, lines[-1]["seq"]
    if reached == STEPS:
        rank.done()
    rank.restart(to)
    for step in range(to + 1, STEPS + 1):
        rank.step(step)
    rank.done()


@pytest.mark.parametrize(
    ("change", "steps"),
    [
        (lambda rank: None, []), (lambda rank: again(rank, STEPS - 1, 0), [[STEPS - 1]]),
        (lambda rank: again(rank, 9, 5), [[9]]), (lambda rank: again(rank, STEPS, 9), [[STEPS]]),
        (lambda rank: again(rank, STEPS, 0), [[STEPS]]),
    ],
    ids=["once", "began anew", "went back", "made its end again", "trained again"],
)  # fmt: skip
def test_steps_that_a_later_process_made_again(
    change: Callable[[Rank], None], steps: list[list[int]]
) -> None:
    ranks = healthy_ranks(order_of())
    change(ranks[0])
    record = record_of(order_of(), ranks)
    assert [row.found for row in listed(record, Kind.STEPS_REPEATED)] == steps


def test_listed_doubts_change_no_verdict() -> None:
    ranks = healthy_ranks(order_of())
    again(ranks[0], 9, 5)
    again(ranks[1], 9, 5)
    record = record_of(order_of(), ranks)
    assert listed(record, Kind.STEPS_REPEATED)
    assert judged(record).verdict == judged(record_of(order_of())).verdict


@pytest.mark.parametrize(
    ("said", "compared", "train", "count"),
    [
        ("f" * 64, False, True, 1),
        ("f" * 64, True, True, 0),  # the gate compares it
        ("f" * 64, False, False, 0),
        (None, False, True, 0),
        ("the order's", False, True, 0),
    ],
)
def test_a_configuration_that_nothing_compares(
    said: str | None, compared: bool, train: bool, count: int
) -> None:
    order = order_of()
    order = order.model_copy(update={"train": order.train if train else {}})
    own = digest(order.train)
    identity = order.identity.model_copy(update={"config_digest": own if compared else None})
    order = order.model_copy(update={"identity": identity})
    boot = {"config_digest": own if said == "the order's" else said}
    record = of_lines(order, of_rank(0, steps_that({"loss": 1.0}), **boot))
    assert len(listed(record, Kind.IDENTITY_UNVERIFIED)) == count


@pytest.mark.parametrize("resumed", [None, 0, 1, 7])
def test_a_resumed_run_lists_the_steps_outside_its_gate(resumed: int | None) -> None:
    record = of_lines(order_of(resume_step=resumed), [beat(1, 1.0, "progress", step=9, loss=1.0)])
    rows = listed(record, Kind.EARLIER_STEPS)
    assert [row.step for row in rows] == ([resumed] if resumed else [])


@pytest.mark.parametrize(
    ("entry", "resume", "init", "count"),
    [
        ("train.py", None, "sanity", 1), ("train.py", 7, None, 1), ("train.py", None, None, 0),
        ("nsa.train", 7, "sanity", 0),
    ],
)  # fmt: skip
def test_only_a_user_program_knows_its_loaded_weights(
    entry: str, resume: int | None, init: str | None, count: int
) -> None:
    order = order_of(resume_step=resume).model_copy(update={"entry": entry, "init_from": init})
    assert len(listed(of_lines(order), Kind.WEIGHTS_UNKNOWN)) == count


@pytest.mark.parametrize(
    ("code", "changes", "count"),
    [
        (None, {}, 1),
        ("files-1", {}, 0),
        (None, {"plan": ""}, 0),  # one run alone
        (None, {"allow_drift": ["git_sha"]}, 0),
    ],
)
def test_code_that_no_rank_reports_is_listed(
    code: str | None, changes: dict[str, Any], count: int
) -> None:
    order = order_of()
    identity = order.identity.model_copy(update={"git_sha": None})
    order = order.model_copy(update={"identity": identity, **changes})
    record = of_lines(order, of_rank(0, steps_that({"loss": 1.0}), git_sha=code, torch="2"))
    assert len(listed(record, Kind.IDENTITY_UNVERIFIED)) == count
