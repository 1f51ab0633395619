"""Programs that start their ranks themselves, under `gonogo run`: who is which rank?"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gonogo.cli.exits import Exit
from tests.cli.test_running import Ran

TRAIN = """
import torch.distributed as dist

import gonogo.trainer


def train(rank, fails_at):
    with gonogo.trainer.attach() as beat:
        assert (beat.rank, beat.world_size) == (rank, 2)
        for step in range(1, 13):
            if (rank, step) == (1, fails_at):
                raise ValueError("a bad batch")
            dist.barrier()
            beat.step(loss=1 / step, tokens=64)
            if beat.should_halt():
                break
"""
SPAWNS = """
import sys

import torch.distributed as dist
import torch.multiprocessing as mp

from train import train


def work(rank, store, fails_at):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    train(rank, fails_at)


if __name__ == "__main__":
    mp.spawn(work, args=(sys.argv[1], int(sys.argv[2])), nprocs=2)
"""
ACCELERATES = """
import sys

from accelerate import Accelerator

from train import train

train(Accelerator(cpu=True).process_index, int(sys.argv[2]))
"""
LAUNCH = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2",
          "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
          "--main_process_port", "0")  # fmt: skip
WAYS = {"spawn": (SPAWNS, ()), "accelerate launch": (ACCELERATES, LAUNCH)}


@pytest.fixture(params=WAYS, ids=lambda way: way.replace(" ", "_"))
def command(tmp_path: Path, request: pytest.FixtureRequest) -> list[str]:
    """How the ranks are started; the step at which rank 1 fails is to be added."""
    pytest.importorskip("accelerate")
    script, launcher = WAYS[request.param]
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "start.py").write_text(script)
    return [sys.executable, *launcher, "start.py", str(tmp_path / "store")]


@pytest.mark.long
def test_ranks_that_a_program_starts_itself_are_each_seen(
    tmp_path: Path, command: list[str]
) -> None:
    ran = Ran(tmp_path, "--steps", "12", "--world-size", "2", "--json", "--", *command, "0")
    assert ran.code == Exit.OK, ran.err
    told = {row["id"]: row["evidence"] for row in ran.decision()["criteria"]}
    assert told["completed"] == "all 2 ranks reached step 12 and exited 0"


@pytest.mark.long
def test_the_one_that_fails_is_named_with_what_it_said(tmp_path: Path, command: list[str]) -> None:
    ran = Ran(tmp_path, "--steps", "12", "--world-size", "2", "--json", "--", *command, "7")
    assert ran.code == Exit.NO_GO, ran.err
    (folder,) = (tmp_path / "home" / "runs").glob("run_*")
    found = [json.loads(line) for line in (folder / "findings.jsonl").read_text().splitlines()]
    assert [(row["detector"], row["rank"]) for row in found if row["severity"] == "halt"] == [
        ("process_death", 1)
    ]
    assert "a bad batch" in ran.decision()["cause"]["line"]


PRINTS = """
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(1, 31):
    if (os.environ["RANK"], step) == ("1", 25):
        raise ValueError("a bad sample")
    dist.all_reduce(torch.ones(1))
    if os.environ["RANK"] == "0" and step % 10 == 0:
        print(f"Epoch [1/1] Step [{step}/30] Loss: {1 / step:.4f}")
"""


@pytest.mark.long
def test_the_error_of_a_rank_that_prints_nothing_else_is_quoted_and_no_victim_s(
    tmp_path: Path,
) -> None:
    """Rank 0 prints for all, so `--world-size` is left out: torchrun ends rank 0 by SIGTERM."""
    (tmp_path / "ddp.py").write_text(PRINTS)
    launch = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "ddp.py")
    ran = Ran(tmp_path, "--steps", "30", "--json", "--", sys.executable, "-m", *launch)
    assert ran.code == Exit.NO_GO, ran.err
    cause = ran.decision()["cause"]
    assert "the command ended with exit code 1" in cause["text"]
    assert cause["line"] == "ValueError: a bad sample"
