"""What is no record is named or refused in one line: judging never hangs on it and never fails."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.errors import Rejected
from gonogo.judge.directory import judge_directory
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
    "a pipe for findings.jsonl": replaced(os.mkfifo, "findings.jsonl"),
    "a link to itself for findings.jsonl": replaced(
        lambda path: path.symlink_to(path.name), "findings.jsonl"
    ),
    "a link to nowhere for .HALT": replaced(lambda path: path.symlink_to("gone"), ".HALT"),
    "a pipe for an exit record": replaced(os.mkfifo, "exit_rank1.json"),
}


@pytest.mark.parametrize("name", NO_RECORDS)
def test_what_is_no_record_counts_as_missing(name: str, run: Path) -> None:
    NO_RECORDS[name](run)
    assert judge_directory(run)["verdict"] not in ("GO", "CONDITIONAL_GO")


@pytest.mark.parametrize(
    "fields",
    [
        {"steps": 10**30}, {"world_size": 10**7}, {"train": {"eval": {"every_steps": "a"}}},
        {"steps": 0}, {"nodes": 3}, {"watch": {"frozen": {"loss_steps": int("9" * 400)}}},
    ],
    ids=str,
)  # fmt: skip
def test_an_order_that_nobody_can_carry_out_is_refused(fields: dict[str, Any], run: Path) -> None:
    document = json.loads((run / "order.json").read_bytes())
    (run / "order.json").write_text(json.dumps({**document, **fields}))
    with pytest.raises(Rejected):
        judge_directory(run)
