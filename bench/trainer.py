"""How fast is the whole 125M model, and what does the trainer itself cost?

Run from the repository root:

    python -m bench.trainer speed --pairs 3
    python -m bench.trainer accumulation --pairs 3
    python -m bench.trainer overhead --steps 12
    python -m bench.trainer memory --steps 3

`speed` trains `m7c_125m` at S = 2048, batch 1, optimizer included, on one core: NSA and the same
model with dense SDPA in one process, alternating, in CPU time of the process (one thread, so a busy
machine disturbs both alike); the figure is the median over the pairs of NSA's tokens/s over
dense's; `--dtype both` adds the same model in bf16, and its tokens/s over those of fp32. Freed
memory is kept, as in the trainer: what pages cost that are faulted in anew is no model's.
`accumulation` trains it on two sequences a step, in one part and in two: the figure is the
tokens/s of two parts over those of one. `overhead` runs the real trainer and adds up, from
its heartbeats, what of a step is neither forward, backward nor optimizer: data, heartbeats, CSV,
curves and statistics. The first two steps are left out of it. `memory` trains the 125M model on
two sequences a step in a process that keeps what tensors free, and in one that does not: a step's
CPU time, its page faults, and the largest resident size.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from nsa.config import TrainConfig, build_config, load_config
from nsa.device import keep_freed_memory
from nsa.launch import Launch
from nsa.model import build_model
from nsa.model.transformer import next_byte_loss
from nsa.optimizer import build_optimizer
from nsa.settings import load_settings
from nsa.stacks import StackDumps
from nsa.trainer import Trainer

CPU = torch.device("cpu")
Step = Callable[[], None]


def build_step(config: TrainConfig, dtype: str, *, seqs: int = 1, parts: int = 1) -> Step:
    """One whole training step on random bytes, `seqs` sequences in `parts` forward passes."""
    torch.manual_seed(config.seed)
    model = build_model(config)
    optimizer = build_optimizer(model, config.optim, CPU, fused=True)
    tokens = torch.randint(256, (seqs, config.model.seq_len + 1))

    def step() -> None:
        for part in tokens.chunk(parts):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
                loss = next_byte_loss(model(part[:, :-1]), part[:, 1:]) / parts
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


def measure_accumulation(pairs: int, warm_up: int) -> dict[str, float]:
    """Median tokens/s of two sequences in one part and in two, and of their ratio pair by pair."""
    config = build_config(load_config(Path("m7c_125m")))
    steps = {f"{parts}_parts": build_step(config, "fp32", seqs=2, parts=parts) for parts in (1, 2)}
    rates = rates_side_by_side(steps, 2 * config.model.seq_len, pairs=pairs, warm_up=warm_up)
    told = {f"{kind}_tok_s": statistics.median(own) for kind, own in rates.items()}
    return {**told, "2_to_1": compare(rates, "2_parts", "1_parts")}


def measure_memory(steps: int) -> dict[str, float]:
    """Of a step without and with freed memory kept: CPU seconds, page faults, most bytes held."""
    told = {}
    for kept in (False, True):
        # Kept once it is kept for good, so each in a process of its own.
        with multiprocessing.get_context("spawn").Pool(1) as alone:
            own = alone.apply(_step_memory, (kept, steps))
        told |= {f"{name}_{'kept' if kept else 'given_back'}": value for name, value in own.items()}
    return {**told, "given_back_to_kept": told["step_s_given_back"] / told["step_s_kept"]}


def _step_memory(kept: bool, steps: int, warm_up: int = 2) -> dict[str, float]:
    torch.set_num_threads(1)
    if kept:
        keep_freed_memory()
    step = build_step(build_config(load_config(Path("m7c_125m"))), "fp32", seqs=2)
    each = []
    for _ in range(warm_up + steps):
        began, faults = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        step()
        used = resource.getrusage(resource.RUSAGE_SELF)
        each.append((time.process_time() - began, used.ru_minflt - faults))
    durations, faulted = zip(*each[warm_up:], strict=True)
    return {
        "step_s": statistics.median(durations),
        "page_faults": statistics.median(faulted),
        "peak_mb": used.ru_maxrss / 1024,
    }


def measure_overhead(config_name: str, steps: int) -> dict[str, float]:
    """Median shares of a step, from the heartbeats of a run of the trainer in this process."""
    config = build_config(load_config(Path(config_name)))
    config = dataclasses.replace(config, steps=steps, parallel="single", data="local_text")
    settings = load_settings({})
    with tempfile.TemporaryDirectory() as folder:
        launch = Launch(run_dir=Path(folder), config=config, supervised=False, device="cpu")
        Trainer(launch, settings, StackDumps(launch.run_dir, 0)).run()
        lines = (launch.run_dir / "heartbeat_rank0.jsonl").read_text().splitlines()
    ends = [line for line in map(json.loads, lines) if line["msg"] == "step_end"][2:]
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
    accumulation = commands.add_parser("accumulation")
    accumulation.add_argument("--pairs", type=int, default=3)
    accumulation.add_argument("--warm-up", type=int, default=1)
    overhead = commands.add_parser("overhead")
    overhead.add_argument("--config", default="demo")
    overhead.add_argument("--steps", type=int, default=12)
    memory = commands.add_parser("memory")
    memory.add_argument("--steps", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    if given.command == "memory":
        told = measure_memory(given.steps)
    elif given.command == "speed":
        told = measure_speed(given.pairs, given.dtype, given.warm_up)
    elif given.command == "accumulation":
        told = measure_accumulation(given.pairs, given.warm_up)
    else:
        told = measure_overhead(given.config, given.steps)
    print(json.dumps({name: round(value, 4) for name, value in told.items()}))


if __name__ == "__main__":
    main()
