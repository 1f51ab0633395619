"""What is no record is named or refused in one line: judging never hangs on it and never fails."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.canonical import wire_line
from gonogo.contract.errors import NotFound, Rejected
from gonogo.judge.directory import judge_directory
from gonogo.judge.facts import record
from gonogo.supervise.prune import What, prune
from tests.data.make_runs import exit_of, healthy_ranks, order_of, save_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    ranks = healthy_ranks(order_of())
    save_run(tmp_path / "run", order_of(), ranks, exit_of(ranks))
    return tmp_path / "run"


def replaced(make: Callable[[Path], object], name: str) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        make(run / name)

    return edit


NO_RECORDS = {
    "a device for exit.json": replaced(lambda path: path.symlink_to("/dev/zero"), "exit.json"),
    "a pipe for exit.json": replaced(os.mkfifo, "exit.json"),
    "a pipe for model.json": replaced(os.mkfifo, "model.json"),
    "a pipe for watch.jsonl": replaced(os.mkfifo, "watch.jsonl"),
    "a pipe for findings.jsonl": replaced(os.mkfifo, "findings.jsonl"),
    "a pipe for a rank's lines": replaced(os.mkfifo, "heartbeat_rank1.jsonl"),
    "a link to itself for findings.jsonl": replaced(
        lambda path: path.symlink_to(path.name), "findings.jsonl"
    ),
    "a link to itself for devices.jsonl": replaced(
        lambda path: path.symlink_to(path.name), "devices.jsonl"
    ),
    "a link to nowhere for .HALT": replaced(lambda path: path.symlink_to("gone"), ".HALT"),
    "a pipe for an exit record": replaced(os.mkfifo, "exit_rank1.json"),
}


@pytest.mark.parametrize("name", NO_RECORDS)
def test_what_is_no_record_counts_as_missing(name: str, run: Path) -> None:
    NO_RECORDS[name](run)
    assert judge_directory(run)["verdict"] not in ("GO", "CONDITIONAL_GO")


def unreadable(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and reason of each record that cannot be read."""
    rows = [row for row in found["facts"]["doubts"] if row["kind"] == "unreadable"]
    return [(row["name"], row["found"]) for row in rows]


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize(
    "name", ["heartbeat_rank0.jsonl", "heartbeat_rank1.jsonl", "watch.jsonl", "devices.jsonl"]
)
def test_a_file_of_lines_that_opens_and_cannot_be_read_is_named(
    name: str, watched: bool, run: Path
) -> None:
    """As a bad sector, or a file whose host is gone: each read of it is an EIO."""
    if not watched:
        (run / "watch.jsonl").unlink()
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to("/proc/self/mem")
    found = judge_directory(run)
    assert found["verdict"] not in ("GO", "CONDITIONAL_GO")
    assert (name, "Input/output error") in unreadable(found)


@pytest.mark.parametrize("at", ["1e300", "NaN", "-1e12", "true", '"now"'])
@pytest.mark.parametrize("what", ["all", "checkpoints"])
def test_a_moment_of_no_day_in_pruned_json_makes_nobody_fail(what: str, at: str, run: Path) -> None:
    (run / "pruned.json").write_text(f'{{"v": 1, "what": "{what}", "at": {at}}}')
    if what == "checkpoints":
        assert judge_directory(run)["verdict"] == "GO"
    else:
        with pytest.raises(NotFound, match="pruned"):
            judge_directory(run)


@pytest.mark.parametrize("late", ["load_order", "is_predecessor", "load_parts"])
def test_a_run_that_is_pruned_while_it_is_read_is_not_judged_by_what_is_left_of_it(
    late: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = getattr(record, late)

    def pruned_first(*asked: Any, **more: Any) -> Any:
        prune(run, What.ALL, policy="a timer", now=1.0)
        return looks(*asked, **more)

    monkeypatch.setattr(record, late, pruned_first)
    with pytest.raises(NotFound, match="pruned"):
        judge_directory(run)


def test_what_is_nested_too_deep_in_pruned_json_is_a_torn_record(run: Path) -> None:
    (run / "pruned.json").write_text("[" * 200_000)
    with pytest.raises(NotFound, match="pruned"):
        judge_directory(run)


@pytest.mark.parametrize("number", [10**30, -(10**30), 10**400])
@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("exit.json", "code"),
        ("exit.json", "signal"),
        ("exit.json", "attempt"),
        ("exit_rank0.json", "code"),
        ("exit_rank0.json", "signal"),
    ],
)
def test_a_whole_number_that_no_double_holds_makes_no_record(
    name: str, field: str, number: int, run: Path
) -> None:
    document = json.loads((run / name).read_bytes())
    (run / name).write_text(json.dumps({**document, field: number}))
    found = judge_directory(run)
    assert found["verdict"] == "INCONCLUSIVE"
    assert name in dict(unreadable(found))


def test_device_lines_with_such_a_number_are_counted_and_named(run: Path) -> None:
    line = {"ts": 1.0, "mono": 1.0, "uuid": "GPU-0", "xids": [10**30]}
    (run / "devices.jsonl").write_text(json.dumps(line) + "\n")
    found = judge_directory(run)
    assert found["verdict"] == "INCONCLUSIVE"
    assert ("devices.jsonl", "1 lines") in unreadable(found)


def test_a_tick_that_read_farther_than_the_file_makes_nobody_read_farther(run: Path) -> None:
    lines = (run / "watch.jsonl").read_bytes().splitlines(keepends=True)
    last = json.loads(lines[-1])
    last["upto"] = {"0": 2**53 - 1}
    (run / "watch.jsonl").write_bytes(b"".join([*lines[:-1], wire_line(last)]))
    assert judge_directory(run)["verdict"] == "GO"  # every line is there


def test_a_record_larger_than_any_is_not_read(run: Path) -> None:
    with (run / "model.json").open("r+b") as stream:
        stream.truncate(2**40)
    assert judge_directory(run)["verdict"] == "INCONCLUSIVE"


@pytest.mark.parametrize("name", ["heartbeat_rank" + "9" * 200, "heartbeat_rank00"])
def test_a_name_that_no_rank_has_is_no_heartbeat_file(name: str, run: Path) -> None:
    (run / f"{name}.jsonl").write_bytes(b"{}\n")
    assert judge_directory(run)["verdict"] == "GO"


@pytest.mark.parametrize(
    "fields",
    [
        {"steps": 10**30},
        {"steps": 2**60},
        {"world_size": 10**7},
        {"resume_from": {"path": "", "step": -(2**70)}},
        {"train": {"eval": {"every_steps": "a"}}},
        {"train": {"eval": {"every_steps": -6}}},
        {"train": {"z": int("9" * 400)}},
        {"steps": 0},
        {"steps": -3},
        {"world_size": 0},
        {"nodes": 3},
        {"nodes": 0},
        {"watch": {"frozen": {"loss_steps": int("9" * 400)}}},
        {"attempt": 10**30},
        {"detectors": {"stall": 1}},
        {"watch": {"stall": {"min_steps": 10**30}}},
    ],
    ids=str,
)
def test_an_order_that_nobody_can_carry_out_is_refused(fields: dict[str, Any], run: Path) -> None:
    document = json.loads((run / "order.json").read_bytes())
    (run / "order.json").write_text(json.dumps({**document, **fields}))
    with pytest.raises(Rejected):
        judge_directory(run)


OBSERVED = {
    "a sample of a version that is no double": {
        "devices": [{"v": 10**400, "uuid": "a", "ts": 1.0, "mono": 1.0}]
    },
    "a rank of five thousand digits": {
        "host_memory": {"used_mb": 99.0, "limit_mb": 100.0, "ranks": {"9" * 5000: 99.0}}
    },
}


@pytest.mark.parametrize("name", OBSERVED)
def test_what_ticks_observed_makes_nobody_fail(name: str, run: Path) -> None:
    lines = (run / "watch.jsonl").read_bytes().splitlines(keepends=True)
    last = {**json.loads(lines[-1]), "observations": OBSERVED[name]}
    more = [json.dumps({**last, "n": last["n"] + number}).encode() + b"\n" for number in range(4)]
    (run / "watch.jsonl").write_bytes(b"".join([*lines[:-1], *more]))
    assert judge_directory(run)["verdict"] != "GO"


def _forge(name: str, document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "gate": []} if name == "order.json" else {**document, "more": "forged"}


@pytest.mark.parametrize("name", ["order.json", "exit.json", "preflight/preflight.json"])
def test_what_is_put_back_while_it_is_judged_is_judged_as_it_was_read(
    name: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose bytes were parsed before, and sealed after they were put back, was GO."""
    whole, fold = (run / name).read_bytes(), record.refold
    (run / name).write_text(json.dumps(_forge(name, json.loads(whole))))

    def put_back(*asked: Any, **more: Any) -> Any:
        (run / name).write_bytes(whole)
        return fold(*asked, **more)

    monkeypatch.setattr(record, "refold", put_back)
    assert judge_directory(run)["verdict"] == "INCONCLUSIVE"
    assert judge_directory(run)["verdict"] == "GO"
