"""What a node's follower writes, on a disk that is not kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.contract.records import NodeLine
from gonogo.rundir import RunDir, load_lines
from gonogo.supervise import node_reporter
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.process_records import ALIVE_NAME, EXIT_NAME
from gonogo.supervise.processes import LifeSigns
from tests.supervise.orders import make_order


@pytest.mark.parametrize("left", [b"", b'{"v":1,"node":1,"tok'], ids=["whole", "torn"])
def test_what_a_killed_follower_left_of_a_line_costs_no_other(tmp_path: Path, left: bytes) -> None:
    """Its successor's first line reports every rank, and is sent once."""
    path = tmp_path / "watch_node1.jsonl"
    told = [NodeLine(node=1, token=1, host="h", n=n, mono=1.0, ts=1.0) for n in range(3)]
    node_reporter._append(path, told[0])
    with path.open("ab") as stream:
        stream.write(left)
    for line in told[1:]:
        node_reporter._append(path, line)
    lines = [line for line in load_lines(path).lines if line != left]
    assert [NodeLine.model_validate_json(line) for line in lines] == told


def test_it_gives_a_sign_every_second(tmp_path: Path) -> None:
    """A node that gives none for ten seconds is silent to watcher and keepers."""
    order = make_order(nodes=2, world_size=2)
    follows = node_reporter.Follower(
        RunDir(tmp_path), order, Place.of(order.document(), 1), LifeSigns()
    )
    now, signs = [100.0], dict[str, float]()

    def sleep(seconds: float) -> None:
        signs.setdefault((tmp_path / ALIVE_NAME.format(1)).read_text(), now[0])
        now[0] += 0.25
        if now[0] > 105.0:
            (tmp_path / EXIT_NAME.format(1)).touch()

    follows.follow(lambda: now[0], sleep)
    assert list(signs.values()) == [100.0, 101.0, 102.0, 103.0, 104.0, 105.0]
