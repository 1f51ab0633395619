"""What does the observer cost an unchanged program?

Run from the repository root:

    python -m bench.observer --pairs 15

A small network is trained on one core, with a `DataLoader` and clipped gradients, in a process
with the observer and in one without, in turn. The figure is the median over the pairs of the CPU
time of a step with the observer, its thread included, over that without. Two sizes: a step of about
1 ms and one of about 10 ms. The run directory lies in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SITE = Path(__file__).parents[1] / "gonogo" / "observer" / "site"
SHAPES = {"1_ms": (64, 384, 1200), "10_ms": (256, 1024, 250)}
"""Name → rows of a batch, width of the network, steps."""
PROGRAM = """
import sys, time, torch
torch.set_num_threads(1)
torch.manual_seed(0)
rows, width, steps = map(int, sys.argv[1:])
net = torch.nn.Sequential(
    torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 1)
)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
x = torch.randn(8, rows, width)
batches = [(x[n % 8], x[n % 8].sum(1, keepdim=True)) for n in range(steps)]
loader = torch.utils.data.DataLoader(batches, batch_size=None)
for number, (inputs, targets) in enumerate(loader):
    if number == 50:
        began, wall = time.process_time(), time.perf_counter()
    loss = ((net(inputs) - targets) ** 2).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
count = steps - 50
print((time.process_time() - began) / count, (time.perf_counter() - wall) / count)
"""


def step_s(shape: tuple[int, int, int], folder: Path | None) -> float:
    """CPU seconds of a step, with the observer where a run directory is given."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("GONOGO_")}
    if folder is not None:
        kept |= {"GONOGO_RUN_DIR": str(folder), "PYTHONPATH": str(SITE)}
    command = [sys.executable, "-c", PROGRAM, *map(str, shape)]
    done = subprocess.run(command, env=kept, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[0])


def measure(pairs: int) -> dict[str, float]:
    """Median seconds of a step without the observer, and the median ratio, by size."""
    told: dict[str, float] = {}
    for name, shape in SHAPES.items():
        plain, ratios = [], []
        for number in range(pairs):
            with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
                turns = [None, Path(folder)] if number % 2 else [Path(folder), None]
                found = {turn is not None: step_s(shape, turn) for turn in turns}
            plain.append(found[False])
            ratios.append(found[True] / found[False])
            print(f"  {name}: {found[False] * 1e3:.3f} ms, {ratios[-1]:.4f}", flush=True)
        told |= {f"{name}_step_s": statistics.median(plain)}
        told |= {f"{name}_ratio": statistics.median(ratios)}
    return told


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    print(json.dumps(measure(parser.parse_args().pairs)))
