"""Real ranks under torchrun: their stacks name who stands outside of an all-reduce."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gonogo.contract.stack_trace import describe_places, parse_frames
from gonogo.evidence_round import describe_round
from gonogo.supervise.evidence.stacks import StackReader, find_py_spy
from tests.supervise.runs import wait_until

SCRIPT = """
import os, pathlib, time
import torch, torch.distributed as dist

def evaluate_on_rank_one_only():
    time.sleep(600)

def main():
    dist.init_process_group("gloo")
    ones = torch.ones(4)
    dist.all_reduce(ones)
    folder = pathlib.Path(__file__).parent
    (folder / f"draft{dist.get_rank()}").write_text(str(os.getpid()))
    (folder / f"draft{dist.get_rank()}").rename(folder / f"pid{dist.get_rank()}")
    if dist.get_rank() == 1:
        evaluate_on_rank_one_only()
    dist.all_reduce(ones)

main()
"""


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[dict[int, int]]:
    """Start two ranks, of which the second one never comes to the second all-reduce."""
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(tmp_path / "train.py"),
    ]  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
    with process:
        try:
            files = {rank: tmp_path / f"pid{rank}" for rank in (0, 1)}
            wait_until(lambda: all(file.exists() for file in files.values()), "both ranks", 120.0)
            yield {rank: int(file.read_text()) for rank, file in files.items()}
        finally:
            process.kill()  # first: it would end the other rank when one is killed
            for file in tmp_path.glob("pid*"):
                with suppress(ProcessLookupError):
                    os.kill(int(file.read_text()), signal.SIGKILL)


def _listings(pids: dict[int, int], *, native: bool) -> dict[int, str]:
    reader = StackReader(find_py_spy())
    return {
        rank: reader.read(pid, rank=rank, round_number=1, native=native, limit_s=60.0)[0]
        for rank, pid in pids.items()
    }


def test_a_rank_that_evaluates_alone_is_named(pids: dict[int, int]) -> None:
    def waits() -> bool:
        return "all_reduce" in _listings(pids, native=False)[0]

    wait_until(waits, "rank 0 to wait", 60.0)
    listings = _listings(pids, native=True)
    stacks = {rank: parse_frames(text) for rank, text in listings.items()}
    text = "rank 1 is in time.sleep, called from evaluate_on_rank_one_only (train.py:6), user code"
    assert describe_places(stacks) == f"{text}; rank 0 waits in all_reduce"
    told = describe_round(
        {f"stacks_rank{rank}.txt": row for rank, row in listings.items()}, whole=False
    ).splitlines()
    assert told[0] == f"{text}; rank 0 waits in all_reduce"
    python = {rank: parse_frames(row) for rank, row in _listings(pids, native=False).items()}
    assert describe_places(python).startswith("rank 1 is in evaluate_on_rank_one_only")
