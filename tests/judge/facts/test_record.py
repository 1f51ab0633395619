"""The record is the same from files and from the database, whatever the lines went through."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.judge.facts.record import load_run
from gonogo.timeline.rank_steps import read_lines
from tests.data.make_runs import healthy_ranks, order_of
from tests.judge.conftest import CopyRun
from tests.judge.runs import build_run_record, facts_of, lines_of

ORDER = order_of()
LINES = lines_of(healthy_ranks(ORDER))


def test_a_line_said_twice_counts_once() -> None:
    read = read_lines(0, [*LINES[0], *LINES[0][:7]])
    assert (read.steps.count, read.record.conflicts, read.unreadable) == (len(LINES[0]), 0, 0)


def test_two_different_lines_of_one_seq_are_two_writers() -> None:
    other = LINES[0][4].replace(b'"step":1', b'"step":2')
    assert read_lines(0, [*LINES[0], other]).record.conflicts == 1


@pytest.mark.parametrize(
    "line",
    [
        b"not json", b"[1, 2]", b"\xff\xfe{}", b'{"v": 1}', LINES[0][0][:-20],
        LINES[0][4].replace(b'"seq":5', b'"seq":-5'),
        LINES[0][3].replace(b'"lr":', b'"tokens":1' + b"0" * 40 + b',"lr":'),
        b'{"text": "' + b"x" * 70_000 + b'"}', LINES[0][4].replace(b'"boot0"', b'"\\ud800"'),
        LINES[1][3],
    ],
    ids=["text", "list", "utf8", "fields", "torn", "seq", "huge", "long", "surrogate", "rank 1"],
)  # fmt: skip
def test_what_is_no_heartbeat_is_counted_and_never_digested(line: bytes) -> None:
    read = read_lines(0, [*LINES[0], line])
    assert (read.steps.count, read.unreadable) == (len(LINES[0]), 1)
    record = build_run_record(ORDER, {0: [*LINES[0], line]})
    assert facts_of(record) == facts_of(build_run_record(ORDER, {0: LINES[0]}))


@given(seed=st.integers(0, 2**32), twice=st.floats(0, 0.4))
@settings(max_examples=20, deadline=None)
def test_facts_are_equal_under_duplicated_and_reordered_lines(seed: int, twice: float) -> None:
    chance = random.Random(seed)
    mixed = {}
    for rank, lines in LINES.items():
        copies = [line for line in lines for _ in range(1 + (chance.random() < twice))]
        mixed[rank] = chance.sample(copies, len(copies))
    assert facts_of(build_run_record(ORDER, mixed)) == facts_of(build_run_record(ORDER, LINES))


def test_a_directory_without_recorded_findings_is_watched_again(copy_run: CopyRun) -> None:
    folder = copy_run("stalled")
    recorded = load_run(folder).findings
    (folder / "findings.jsonl").unlink()
    again = load_run(folder)
    assert again.findings == recorded
    assert [(row.name, row.found) for row in again.unrecorded] == [("stall", None)] * 2
    assert [row.severity for row in recorded] == ["suspect", "halt"]


def test_who_was_never_heard_may_have_left_an_exit(copy_run: CopyRun) -> None:
    folder = copy_run("healthy")
    assert load_run(folder).strays == ()
    for rank in (0, 1):
        (folder / f"exit_rank{rank}.json").write_text('{"v": 1, "code": 0, "at": 1.0}')
    (folder / "heartbeat_rank1.jsonl").unlink()
    record = load_run(folder)
    assert (set(record.rank_exits), record.strays) == ({0, 1}, (1,))


def test_a_torn_last_line_waits_for_its_end(copy_run: CopyRun) -> None:
    folder = copy_run("healthy")
    before = facts_of(load_run(folder))
    with (folder / "heartbeat_rank0.jsonl").open("ab") as stream:
        stream.write(b'{"v": 1, "ts": 17')
    assert facts_of(load_run(folder)) == before
