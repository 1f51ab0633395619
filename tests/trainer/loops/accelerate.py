"""A loop with Accelerate, attached as any other.

`python -m tests.trainer.loops.accelerate [HALT_AT]`; `.HALT` appears while rank 0 is in that step.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

import gonogo.trainer


def main() -> None:
    halt_at = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(1)
    data = torch.randn(96, 8)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4))
    with gonogo.trainer.attach(model=model) as beat:
        for step, inputs in enumerate(beat.batches(loader), start=1):
            with beat.section("forward"):
                loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            with beat.section("backward"):
                accelerator.backward(loss)
            with beat.section("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            if step == halt_at and beat.rank == 0:
                (Path(os.environ["GONOGO_RUN_DIR"]) / ".HALT").touch()
            beat.step(loss=accelerator.reduce(loss.detach(), "mean"))
            if beat.should_halt() or step == beat.steps:
                break


if __name__ == "__main__":
    main()
