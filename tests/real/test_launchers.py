"""`gonogo run` with real launchers: ranks are blamed, and looked at, not who started them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gonogo.cli.exits import Exit
from tests.cli.test_running import Ran
from tests.trainer.runs import LAUNCH

ATTACHED = """
import os, sys, time
import torch, torch.distributed as dist
import gonogo.trainer

dist.init_process_group("gloo")
rank, mode = dist.get_rank(), sys.argv[1]
with gonogo.trainer.attach() as beat:
    for step in range(1, 31):
        with beat.section("forward"):
            time.sleep(0.05)
            if step == 20 and rank == 1 and mode == "hang":
                time.sleep(600)  # here it stands
            if step == 20 and rank == 1 and mode == "crash":
                raise ValueError("no such word: 4711")
        with beat.section("backward"):
            dist.all_reduce(torch.ones(4))
        beat.step(loss=5 - step / 50)
        if beat.should_halt():
            break
"""
UNCHANGED = """
import os, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, mode = dist.get_rank(), sys.argv[1]
for step in range(1, 31):
    time.sleep(0.05)
    if step == 20 and rank == 1 and mode == "hang":
        time.sleep(600)  # here it stands
    if step == 20 and rank == 1 and mode == "crash":
        raise ValueError("no such word: 4711")
    dist.all_reduce(torch.ones(4))
    if rank == 0:
        print(f"step {step} loss {5 - step / 50:.4f}", flush=True)
"""
RUN = ["--steps", "30", "--stall-s", "20", "--world-size", "2", "--json", "--"]
TORCHRUN = [*LAUNCH, "--nproc-per-node", "2"]

pytestmark = pytest.mark.long


def ran(folder: Path, code: str, mode: str) -> Ran:
    (folder / "train.py").write_text(code)
    return Ran(folder, *RUN, *TORCHRUN, "train.py", mode)


def run_dir(folder: Path) -> Path:
    (found,) = (folder / "home" / "runs").iterdir()
    return found


@pytest.mark.parametrize("code", [ATTACHED, UNCHANGED], ids=["attached", "unchanged"])
def test_a_rank_that_crashes_below_torchrun_is_blamed_in_its_own_words(
    code: str, tmp_path: Path
) -> None:
    found = ran(tmp_path, code, "crash")
    assert found.code == Exit.NO_GO, found.err
    decision = found.decision()
    assert decision["cause"]["rank"] == 1
    assert decision["cause"]["line"] == "ValueError: no such word: 4711"
    assert decision["diagnosis"] is None
    assert "rank 1 ended with exit code 1" in decision["cause"]["text"]
    ended = json.loads((run_dir(tmp_path) / "exit.json").read_text())
    assert (ended["ranks"]["1"]["code"], ended["agent"]["code"]) == (1, 1)


def test_a_rank_that_hangs_below_torchrun_is_named_with_its_stack(tmp_path: Path) -> None:
    found = ran(tmp_path, ATTACHED, "hang")
    assert found.code == Exit.NO_GO, found.err
    (halt,) = [row for row in found.decision()["findings"] if row["severity"] == "halt"]
    assert (halt["detector"], halt["rank"], halt["section"]) == ("stall", 1, "forward")
    (stack,) = (run_dir(tmp_path) / "evidence").glob("02_*/stacks_rank1.txt")
    assert "(train.py:13)" in stack.read_text()


def test_ranks_that_print_nothing_of_themselves_are_asked_for_their_stacks(tmp_path: Path) -> None:
    found = ran(tmp_path, UNCHANGED, "hang")
    assert found.code == Exit.NO_GO, found.err
    (stack,) = (run_dir(tmp_path) / "evidence").glob("01_*/stacks_rank1.txt")
    assert "(train.py:10)" in stack.read_text()


def test_ranks_below_torchrun_that_do_well_are_go(tmp_path: Path) -> None:
    found = ran(tmp_path, ATTACHED, "well")
    assert found.code == Exit.OK, found.out
    ended = json.loads((run_dir(tmp_path) / "exit.json").read_text())
    assert {rank: row["code"] for rank, row in ended["ranks"].items()} == {"0": 0, "1": 0}
