"""How fast is the whole 125M model, and what does the trainer itself cost?

Run from the repository root:

    python -m bench.trainer speed --pairs 3
    python -m bench.trainer overhead --steps 12

`speed` trains `m7c_125m` at S = 2048, batch 1, optimizer included, on one core. NSA and the same
model with dense SDPA alternate in one process, in CPU time of the process. The figure is the median
over the pairs of NSA's tokens/s over dense's. `--dtype both` adds the same model in bf16, and its
tokens/s over those of fp32. Freed memory is kept, as in the trainer, so page faults do not count.
`overhead` runs the real trainer and adds up, from its heartbeats, what of a step is neither
forward, backward nor optimizer. The first two steps are left out of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from pathlib import Path

import torch

from bench.rig import Step, lines_of_run
from nsa.config import TrainConfig, build_config, load_config
from nsa.device import keep_freed_memory
from nsa.model import build_model
from nsa.model.transformer import next_byte_loss
from nsa.optimizer import build_optimizer

CPU = torch.device("cpu")


def build_step(config: TrainConfig, dtype: str) -> Step:
    """One whole training step on a sequence of random bytes."""
    torch.manual_seed(config.seed)
    model = build_model(config)
    optimizer = build_optimizer(model, config.optim, CPU, fused=True)
    tokens = torch.randint(256, (1, config.model.seq_len + 1))

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
            loss = next_byte_loss(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def rates_side_by_side(
    steps: dict[str, Step], tokens: int, *, pairs: int, warm_up: int
) -> dict[str, list[float]]:
    """Tokens/s of CPU time of each step, one after another in turn, `pairs` times."""
    rates: dict[str, list[float]] = {kind: [] for kind in steps}
    for number in range(warm_up + pairs):
        for kind, step in steps.items():
            began = time.process_time()
            step()
            rate = tokens / (time.process_time() - began)
            if number >= warm_up:
                rates[kind].append(rate)
            print(f"  {kind} {rate:.1f} tok/s", flush=True)
    return rates


def compare(rates: dict[str, list[float]], ours: str, other: str) -> float:
    """Median over the pairs of one kind's tokens/s over another's."""
    return statistics.median(a / b for a, b in zip(rates[ours], rates[other], strict=True))


def measure_speed(pairs: int, dtype: str, warm_up: int) -> dict[str, float]:
    """Median tokens/s of both kinds, and of their ratios pair by pair."""
    mapping = load_config(Path("m7c_125m"))
    dtypes = ("fp32", "bf16") if dtype == "both" else (dtype,)
    steps = {}
    for kind in ("nsa", "dense"):
        config = build_config({**mapping, "attention": {**mapping["attention"], "kind": kind}})
        steps |= {f"{kind}_{name}": build_step(config, name) for name in dtypes}
    rates = rates_side_by_side(steps, mapping["model"]["seq_len"], pairs=pairs, warm_up=warm_up)
    told = {f"{kind}_tok_s": statistics.median(own) for kind, own in rates.items()}
    told |= {
        f"nsa_to_dense_{name}": compare(rates, f"nsa_{name}", f"dense_{name}") for name in dtypes
    }
    if dtype == "both":
        told["nsa_bf16_to_fp32"] = compare(rates, "nsa_bf16", "nsa_fp32")
    return told


def measure_overhead(config_name: str, steps: int) -> dict[str, float]:
    """Median shares of a step, from the heartbeats of a run of the trainer in this process."""
    config = build_config(load_config(Path(config_name)))
    config = dataclasses.replace(config, steps=steps, parallel="single", data="local_text")
    ends = [line for line in lines_of_run(config) if line["msg"] == "step_end"][2:]
    shares = []
    for end in ends:
        spent = end["step_sections"]
        work_s = spent["forward"] + spent["backward"] + spent["optimizer"]
        shares.append((1 - work_s / end["dt_step_s"], spent["data"] / end["dt_step_s"]))
    return {
        "dt_step_s": statistics.median(end["dt_step_s"] for end in ends),
        "overhead_share": statistics.median(share for share, _ in shares),
        "of_it_data_share": statistics.median(share for _, share in shares),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    speed = commands.add_parser("speed")
    speed.add_argument("--pairs", type=int, default=3)
    speed.add_argument("--warm-up", type=int, default=2)
    speed.add_argument("--dtype", choices=("fp32", "bf16", "both"), default="fp32")
    overhead = commands.add_parser("overhead")
    overhead.add_argument("--config", default="demo")
    overhead.add_argument("--steps", type=int, default=12)
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    if given.command == "speed":
        told = measure_speed(given.pairs, given.dtype, given.warm_up)
    else:
        told = measure_overhead(given.config, given.steps)
    print(json.dumps({name: round(value, 4) for name, value in told.items()}))


if __name__ == "__main__":
    main()
