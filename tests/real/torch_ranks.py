"""Ranks of torch that really fail: `python -m tests.real.torch_ranks --order ORDER`.

Two ranks over gloo, attached to gonogo. `order["train"]["kind"]` is what goes wrong at step FAILS;
nothing is feigned: each kind does what makes the operating system, Python or torch complain. With
`mute` in `order["train"]` they name no section.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import gonogo.trainer

FAILS = 6
ROOM_BYTES = 2**28


def lose_a_peer(rank: int) -> None:
    """Rank 1 is killed; the other waits for it in a collective."""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def enter_another_collective(rank: int) -> None:
    """Rank 1 broadcasts where the other adds up (with TORCH_DISTRIBUTED_DEBUG=DETAIL)."""
    if rank == 1:
        dist.broadcast(torch.ones(4), 0)


def bring_another_shape(rank: int) -> None:
    """Rank 0 brings fewer numbers than the other: gloo ends it at once, without an exception."""
    dist.all_reduce(torch.ones(4 if rank == 0 else 9))


def come_too_late(rank: int) -> None:
    """Rank 1 sleeps for longer than a collective waits."""
    time.sleep(60.0 if rank == 1 else 0.0)


def stand_apart(rank: int) -> None:
    """Rank 1 never comes to where the other adds up."""
    time.sleep(600.0 if rank == 1 else 0.0)


def fill_the_disk(rank: int) -> None:
    """Rank 0 saves where there is no room; the kernel refuses it."""
    if rank == 0:
        with Path("/dev/full").open("wb", buffering=0) as file:
            file.write(b"\0" * 2**16)


def take_too_much(rank: int) -> None:
    """Rank 0 may have little more memory than it has, and asks torch for a lot."""
    if rank == 0:
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + ROOM_BYTES, held + ROOM_BYTES))
        torch.ones(4 * ROOM_BYTES)


def slice_twice(rank: int) -> None:
    """Rank 1 takes its share of what is its share already."""
    rows = torch.arange(4)[2 * rank : 2 * rank + 2]
    rows[2 * rank]


def fail_otherwise(rank: int) -> None:
    """Rank 1 raises what no table knows."""
    if rank == 1:
        raise ValueError("the moon is in the seventh house")


KINDS: dict[str, Callable[[int], None]] = {
    "peer": lose_a_peer,
    "collective": enter_another_collective,
    "shape": bring_another_shape,
    "late": come_too_late,
    "apart": stand_apart,
    "disk": fill_the_disk,
    "memory": take_too_much,
    "index": slice_twice,
    "unknown": fail_otherwise,
    "none": lambda rank: None,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--order", type=Path, required=True)
    train = json.loads(parser.parse_args().order.read_text())["train"]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=train.get("timeout_s", 600)))
    model = torch.nn.Linear(8, 1)
    with gonogo.trainer.attach(model=model) as beat:
        section = nullcontext if train.get("mute") else beat.section
        for step in range(1, (beat.steps or 0) + 1):
            print(f"step {step} begins", file=sys.stderr, flush=True)
            with section("forward"):
                loss = model(torch.randn(4, 8)).square().mean()
            with section("backward"):
                loss.backward()
                if step == FAILS:
                    KINDS[train["kind"]](beat.rank)
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
            with section("optimizer"):
                model.zero_grad()
            beat.step(loss=loss, tokens=8)


if __name__ == "__main__":
    main()
