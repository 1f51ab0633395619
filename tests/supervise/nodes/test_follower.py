"""What a node's follower writes, on a disk that is not kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.contract.node import NodeLine
from gonogo.rundir import load_lines
from gonogo.supervise.follower import follower


@pytest.mark.parametrize("left", [b"", b'{"v":1,"node":1,"tok'], ids=["whole", "torn"])
def test_what_a_killed_follower_left_of_a_line_costs_no_other(tmp_path: Path, left: bytes) -> None:
    """Its successor's first line tells of every rank, and is told once."""
    path = tmp_path / "watch_node1.jsonl"
    told = [NodeLine(node=1, token=1, host="h", n=n, mono=1.0, ts=1.0) for n in range(3)]
    follower._append(path, told[0])
    with path.open("ab") as stream:
        stream.write(left)
    for line in told[1:]:
        follower._append(path, line)
    lines = [line for line in load_lines(path).lines if line != left]
    assert [NodeLine.model_validate_json(line) for line in lines] == told
