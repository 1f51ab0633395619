"""`gonogo run --nodes` started once for each node, by launchers' variables, with real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gonogo.cli.exits import Exit
from gonogo.cli.run_host import JointStart, Nodes, find_nodes, wait_for_verdict
from gonogo.cli.running import ranks_of
from gonogo.contract.errors import Rejected, Unavailable
from gonogo.rundir import RunDir
from tests.cli.test_running import environment, gonogo

TRAIN = """
import os, sys, time

import gonogo.trainer

rank, hangs = int(os.environ["RANK"]), int(sys.argv[1])
with gonogo.trainer.attach() as beat:
    assert beat.world_size == 2
    for step in range(1, 31):
        time.sleep(600 if (rank, step) == (hangs, 12) else 0.05)
        beat.step(loss=5 - step / 50, tokens=64)
        if beat.should_halt():
            break
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "train.py"]


def sky(node: int, nodes: int = 2) -> dict[str, str]:
    """Variables of SkyPilot; both nodes are this host."""
    ips = "\n".join(["127.0.0.1"] * nodes)
    told = {"NODE_RANK": node, "NUM_NODES": nodes, "NODE_IPS": ips, "TASK_ID": "sky-1"}
    return {f"SKYPILOT_{name}": str(value) for name, value in told.items()}


class Joint:
    """How a start on two nodes went: exit codes, outputs and the decision of node 0."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        (folder / "train.py").write_text(TRAIN)
        self.parts = [
            subprocess.Popen(
                gonogo("run", "--nodes", "auto", *arguments),
                cwd=folder,
                env={**environment(folder), **sky(node)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for node in (1, 0)  # the first node comes last
        ][::-1]
        told = [part.communicate(timeout=120) for part in self.parts]
        self.codes = [part.returncode for part in self.parts]
        self.out, self.err = zip(*told, strict=True)

    def decision(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out[0])
        return found


def test_each_node_starts_the_line_and_ends_with_the_one_verdict(tmp_path: Path) -> None:
    ran = Joint(tmp_path, "--steps", "30", "--json", "--", *TORCHRUN, "-1")
    assert ran.codes == [Exit.OK, Exit.OK], ran.err
    decision = ran.decision()
    assert list(decision["facts"]["ranks"]) == ["0", "1"]
    assert ran.out[1] == "", "the decision is node 0's"
    (run,) = (tmp_path / "home" / "runs").iterdir()
    assert (run / "preflight/node1/preflight.json").exists()


@pytest.mark.long
def test_a_hang_on_the_second_node_is_no_go_on_both(tmp_path: Path) -> None:
    arguments = ("--steps", "30", "--stall-s", "12", "--json", "--", *TORCHRUN, "1")
    ran = Joint(tmp_path, *arguments)
    assert ran.codes == [Exit.NO_GO, Exit.NO_GO], ran.err
    assert ran.decision()["cause"]["rank"] == 1
    assert "rank 1 is on node 1" in ran.decision()["cause"]["text"]


def test_a_node_that_does_not_come_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    part = Nodes(count=3, node=0, address=None, launch="x")
    joint = JointStart(tmp_path, tmp_path / "starts", part, 0.5)
    with pytest.raises(
        Unavailable, match=r"nothing of node 1, 2 in .* does that node see the same"
    ):
        joint.lead(lambda: pytest.fail("no run is made"))


def test_a_node_that_is_not_answered_says_so(tmp_path: Path) -> None:
    """An earlier start's answer is none to this one."""
    starts = tmp_path / "starts"
    (starts / "x").mkdir(parents=True)
    old = {"v": 1, "run": "run_1", "nonces": {"1": "of an earlier start"}}
    (starts / "x" / "begun.json").write_text(json.dumps(old))
    part = Nodes(count=2, node=1, address=None, launch="x")
    with pytest.raises(Unavailable, match="was gonogo run started on node 0"):
        JointStart(tmp_path, starts, part, 0.5).follow()


def test_a_verdict_that_never_comes_is_no_verdict(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="has written no verdict"):
        wait_for_verdict(RunDir(tmp_path), 0.3)


def test_options_stand_in_for_a_launcher() -> None:
    part = find_nodes("4", 3, "10.0.0.1", {})
    assert part is not None
    assert (part.count, part.node, part.address) == (4, 3, "10.0.0.1")
    assert part.launch == find_nodes("4", 0, "10.0.0.1", {}).launch  # type: ignore[union-attr]
    assert find_nodes(None, None, None, sky(1)) is None
    assert find_nodes("auto", None, None, sky(0, nodes=1)) is None


@pytest.mark.parametrize(
    ("asked", "rank", "environ", "words"),
    [
        ("auto", None, {}, "say --node-rank I"),
        ("auto", None, {"JOB_COMPLETION_INDEX": "0"}, "say --nodes N"),
        ("auto", 1, {}, "say --nodes N"),
        ("3", None, sky(0), "SkyPilot tells of 2 nodes"),
        ("2", 2, {}, "node 2 is none of 2"),
        ("two", 0, {}, "expected a number, or auto"),
        (None, 1, {}, "need --nodes"),
        ("auto", None, {"SLURM_NODEID": "0", "SLURM_LOCALID": "1"}, "srun --ntasks-per-node=1"),
    ],
)
def test_what_nobody_tells_is_asked_for(
    asked: str | None, rank: int | None, environ: dict[str, str], words: str
) -> None:
    with pytest.raises(Rejected, match=words):
        find_nodes(asked, rank, None, environ)


LINE = ["torchrun", "--nproc-per-node", "8", "train.py"]


def test_ranks_are_counted_by_the_line_on_several_nodes() -> None:
    assert ranks_of(LINE, None, 2) == 16
    assert ranks_of(LINE, 4, 2) == 4
    assert ranks_of(["torchrun", "train.py"], None, 2) == 2
    assert ranks_of(LINE, None, 1) == 8
    assert ranks_of(LINE, None, 1, observe=False) == 1, "the command may print for all"
    assert ranks_of(["python", "train.py"], None, 1) is None


@pytest.mark.parametrize(
    ("line", "asked", "nodes", "words"),
    [
        (["torchrun", "--nnodes", "4", "train.py"], None, 1, r"Start gonogo run --nodes 4"),
        (["accelerate", "launch", "--num_machines=2", "t.py"], None, 1, r"Start gonogo run"),
        (["torchrun", "--nnodes=4", "train.py"], None, 2, "--nodes says 2; leave the option out"),
        (["torchrun", "--standalone", "train.py"], None, 2, "--standalone: --nodes says 2"),
        (["torchrun", "--nproc-per-node", "gpu", "train.py"], None, 2, "say --world-size N"),
        (LINE, 7, 2, "expected a multiple of --nodes"),
    ],
)
def test_a_line_for_another_number_of_nodes_is_refused(
    line: list[str], asked: int | None, nodes: int, words: str
) -> None:
    with pytest.raises(Rejected, match=words):
        ranks_of(line, asked, nodes)
