"""What a node's follower writes, on a disk that is not kind."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from gonogo.contract.records import NodeLine
from gonogo.rundir import RunDir, load_lines
from gonogo.supervise import node_reporter
from gonogo.supervise.durable import save_json
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.process_records import alive_path, exit_path
from gonogo.supervise.processes import LifeSigns, boot_id, load_stat
from tests.supervise.orders import make_order
from tests.supervise.runs import wait_until


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
        signs.setdefault(alive_path(tmp_path, 1).read_text(), now[0])
        now[0] += 0.25
        if now[0] > 105.0:
            exit_path(tmp_path, 1).touch()

    follows.follow(lambda: now[0], sleep)
    assert list(signs.values()) == [100.0, 101.0, 102.0, 103.0, 104.0, 105.0]


@pytest.mark.parametrize(("stopped_s", "state"), [(9.0, "T"), (12.0, "S")])
def test_a_keeper_of_its_node_that_is_stopped_is_told_to_go_on(
    tmp_path: Path, stopped_s: float, state: str
) -> None:
    """Its program had ended by itself, and node 0 waited for its word until the time limit."""
    order = make_order(nodes=2, world_size=2)
    place = Place.of(order.document(), 1)
    follows = node_reporter.Follower(RunDir(tmp_path), order, place, LifeSigns())
    with subprocess.Popen(["sleep", "600"]) as keeper:
        began = load_stat(keeper.pid)
        assert began is not None
        told = {"pid": keeper.pid, "start_ticks": began.start_ticks, "boot_id": boot_id()}
        save_json(tmp_path / "keeper_node1.json", told)
        keeper.send_signal(signal.SIGSTOP)
        wait_until(lambda: seen(keeper.pid) == "T", "it to be stopped")
        now = [100.0]

        def sleep(seconds: float) -> None:
            now[0] += max(seconds, 0.1)
            if now[0] > 100.0 + stopped_s:
                exit_path(tmp_path, 1).touch()

        follows.follow(lambda: now[0], sleep)
        try:
            wait_until(lambda: seen(keeper.pid) == state, "it to be woken, or not")
        finally:
            keeper.kill()


def seen(pid: int) -> str | None:
    found = load_stat(pid)
    return None if found is None else found.state
