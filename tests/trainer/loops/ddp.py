"""A plain PyTorch script with DistributedDataParallel, attached in three lines.

`python -m torch.distributed.run --nproc-per-node 2 -m tests.trainer.loops.ddp [HALT_AT]`; `.HALT`
appears while rank 0 is in step HALT_AT. A step takes as long as the order's `train.step_s` says.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from pathlib import Path

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gonogo.trainer

trained = threading.Event()


def leave() -> None:
    """Say whether gonogo has left the others; where it has not, spare gloo Python's end.

    It aborts there now and then (PyTorch issue 190489), as it does in a script without gonogo.
    """
    os.write(1, f"still talks: {dist.is_initialized()}\n".encode())  # in one piece
    if trained.is_set() and dist.is_initialized():
        os._exit(0)


def main() -> None:
    halt_at = int(sys.argv[1]) if len(sys.argv) == 2 else 0
    atexit.register(leave)  # the last to be called
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gonogo.trainer.attach(model=model) as beat:
        for step in range(1, (beat.steps or 6) + 1):
            time.sleep(beat.order.get("train", {}).get("step_s", 0.0))
            inputs = torch.randn(4, 8)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == halt_at and beat.rank == 0:
                (Path(os.environ["GONOGO_RUN_DIR"]) / ".HALT").touch()
            beat.step(loss=loss, tokens=inputs.numel() * beat.world_size)
            if beat.should_halt():
                folder = beat.checkpoint_path()
                assert folder is not None
                with beat.section("checkpoint"):
                    if beat.rank == 0:
                        time.sleep(1.0)  # a large one: the other rank is long ready to leave
                        folder.mkdir(parents=True)
                        torch.save(model.state_dict(), folder / "model.pt")
                    beat.checkpoint(folder)
                break
    trained.set()


if __name__ == "__main__":
    main()
