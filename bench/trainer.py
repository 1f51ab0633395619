"""What of a step is neither forward, backward nor optimizer?

    python -m bench.trainer --steps 14

Runs the real trainer with the demo's model on one thread, and adds up its heartbeats. The first two
steps are left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from nsa.assignment import Launch
from nsa.config import TrainConfig, build_config, load_config
from nsa.settings import load_settings
from nsa.stacks import StackDumps
from nsa.trainer import Trainer


def lines_of_run(config: TrainConfig, device: str = "cpu") -> list[dict[str, Any]]:
    """Return the heartbeat lines of a run of the trainer in this process."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        launch = Launch(run_dir=place, config=config, supervised=False, device=device)
        Trainer(launch, load_settings({}), StackDumps(place, 0)).run()
        lines = (place / "heartbeat_rank0.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def main() -> None:
    """Print the median shares of a step."""
    parser = argparse.ArgumentParser(prog="python -m bench.trainer", allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=12)
    given = parser.parse_args()
    torch.set_num_threads(1)
    config = build_config(load_config(Path("demo")))
    model = dataclasses.replace(config.model, layers=6)
    config = dataclasses.replace(
        config, model=model, steps=given.steps, parallel="single", data="local_text"
    )
    ends = [line for line in lines_of_run(config) if line["msg"] == "step_end"][2:]
    shares, data = [], []
    for end in ends:
        spent, step_s = end["step_sections"], end["dt_step_s"]
        shares.append(1 - (spent["forward"] + spent["backward"] + spent["optimizer"]) / step_s)
        data.append(spent["data"] / step_s)
    print(f"step {statistics.median(end['dt_step_s'] for end in ends):.4f} s")
    print(f"overhead {statistics.median(shares):.2%}, of it data {statistics.median(data):.2%}")


if __name__ == "__main__":
    main()
