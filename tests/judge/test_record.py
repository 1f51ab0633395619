"""The record is the same from files and from the database, whatever the lines went through."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.records import ExitRecord, Preflight
from gonogo.contract.rundir import RunDir, load_record
from gonogo.judge.facts import build_facts
from gonogo.judge.record import build_run_record, load_findings, load_run, read_stream
from tests.data.make_runs import healthy_ranks, order_of
from tests.judge.conftest import CopyRun
from tests.judge.runs import lines_of

ORDER = order_of()
LINES = lines_of(healthy_ranks(ORDER))


def test_a_line_said_twice_counts_once() -> None:
    stream = read_stream(0, [*LINES[0], *LINES[0][:7]])
    assert (len(stream.beats), stream.duplicates) == (len(LINES[0]), 7)


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[1, 2]",
        b"\xff\xfe{}",
        b'{"v": 1}',
        LINES[0][0][:-20],
        LINES[0][4].replace(b'"seq":5', b'"seq":-5'),
        LINES[0][3].replace(b'"lr":', b'"tokens":1' + b"0" * 40 + b',"lr":'),
        b'{"text": "' + b"x" * 70_000 + b'"}',
        LINES[0][4].replace(b'"boot0"', b'"\\ud800"'),
    ],
    ids=["text", "list", "utf8", "fields", "torn", "seq", "huge", "long", "surrogate"],
)
def test_what_is_no_heartbeat_is_counted_and_never_digested(line: bytes) -> None:
    stream = read_stream(0, [*LINES[0], line])
    assert (len(stream.beats), stream.unreadable) == (len(LINES[0]), 1)
    record = build_run_record(ORDER, {0: [*LINES[0], line]})
    assert build_facts(record) == build_facts(build_run_record(ORDER, {0: LINES[0]}))


def test_a_line_of_another_rank_is_not_this_rank_s() -> None:
    stream = read_stream(0, [*LINES[0], LINES[1][3]])
    assert (len(stream.beats), stream.unreadable) == (len(LINES[0]), 1)


@given(seed=st.integers(0, 2**32), twice=st.floats(0, 0.4))
@settings(max_examples=20, deadline=None)
def test_facts_are_equal_under_duplicated_and_reordered_lines(seed: int, twice: float) -> None:
    chance = random.Random(seed)
    mixed = {}
    for rank, lines in LINES.items():
        copies = [line for line in lines for _ in range(1 + (chance.random() < twice))]
        mixed[rank] = chance.sample(copies, len(copies))
    assert build_facts(build_run_record(ORDER, mixed)) == build_facts(
        build_run_record(ORDER, LINES)
    )


@pytest.mark.parametrize("name", ["healthy", "stalled", "non_finite"])
def test_facts_from_database_rows_equal_those_from_the_directory(
    name: str, copy_run: CopyRun
) -> None:
    folder = copy_run(name)
    loaded = load_run(folder)
    rows = {
        rank: [json.dumps(beat.canonical()) for beat in reversed(stream.beats)]
        for rank, stream in loaded.streams.items()
    }
    run_dir = RunDir(folder)
    stored = build_run_record(
        loaded.order,
        rows,
        load_record(run_dir.exit, ExitRecord),
        preflight=load_record(run_dir.preflight, Preflight),
        findings=load_findings(run_dir) or [],
    )
    assert build_facts(stored) == build_facts(loaded)


def test_a_directory_without_recorded_findings_is_watched_again(copy_run: CopyRun) -> None:
    folder = copy_run("stalled")
    recorded = load_run(folder).findings
    (folder / "findings.jsonl").unlink()
    assert load_run(folder).findings == recorded
    assert [row.severity for row in recorded] == ["suspect", "halt"]


def test_a_torn_last_line_waits_for_its_end(copy_run: CopyRun) -> None:
    folder = copy_run("healthy")
    before = build_facts(load_run(folder))
    with (folder / "heartbeat_rank0.jsonl").open("ab") as stream:
        stream.write(b'{"v": 1, "ts": 17')
    assert build_facts(load_run(folder)) == before


def test_facts_hold_no_path_no_wall_time_and_no_bytes(copy_run: CopyRun) -> None:
    folder = copy_run("stalled")
    text = json.dumps(build_facts(load_run(folder)))
    assert str(folder) not in text
    assert "17600" not in text  # every stamp of the example begins so
    assert "iso" not in text
