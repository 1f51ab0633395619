"""Does a model learn as well with NSA as with dense attention?

Run from the repository root:

    python -m bench.quality --seeds 1337,1338,1339 --steps 300 --out quality.jsonl

Compared are NSA with the mean as compression, NSA with the learned one (`nsa_mlp`, the paper's) and
dense attention. The demo-size model (`nsa/configs/demo.yaml`) at S = 1024 with l 16, d 8, l' 32,
n 6, w 64: a query selects at most 192 of 1024 tokens. All kinds see the same real text
(`local_text`) in the same order, from the same seed, with the same optimizer. The figure is the
held-out loss in nats per byte after the last step, and the ratio of the means over the seeds. Each
finished run is appended to `--out`, and runs that are there already are not repeated, so it can be
stopped at any time. NSA has gates and three pairs of K/V projections where dense has one: 10 % more
parameters here, and with the learned compression 20 %.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from bench.trainer import lines_of_run
from nsa.config import TrainConfig, build_config, load_config

KINDS = ("nsa", "nsa_mlp", "dense")


def build_study_config(
    kind: str, seed: int, steps: int, global_seqs: int, validation_batches: int
) -> TrainConfig:
    """The configuration of one run of the study."""
    mapping = load_config(Path("demo"))
    mapping["model"]["seq_len"] = 1024
    name, _, compression = kind.partition("_")
    mapping["attention"] |= {"kind": name, "l": 16, "d": 8, "l_sel": 32, "n_sel": 6, "w": 64}
    if compression:
        mapping["attention"]["compression"] = compression
    mapping["optim"] |= {"decay_steps": steps, "warmup_steps": max(1, steps // 20)}
    mapping["batch"] = {"global_seqs": global_seqs, "accumulate": 1}
    mapping["eval"] = {"every_steps": steps, "batches": validation_batches}
    mapping |= {"seed": seed, "steps": steps, "parallel": "single", "data": "local_text"}
    return build_config(mapping)


def train_and_validate(config: TrainConfig) -> dict[str, Any]:
    """Train one model; returns its last training loss and its held-out loss, in nats per byte."""
    began, lines = time.monotonic(), lines_of_run(config)
    losses = [line["loss"] for line in lines if line["msg"] == "progress"]
    return {
        "params": lines[0]["params"],
        "train_loss": statistics.fmean(losses[-10:]),
        "val_loss": next(line["val_loss"] for line in lines if line["msg"] == "eval"),
        "seconds": round(time.monotonic() - began, 1),
    }


def load_results(file: Path) -> dict[tuple[str, int, int], dict[str, Any]]:
    """The finished runs of a results file by (kind, seed, steps)."""
    if not file.exists():
        return {}
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {(row["kind"], row["seed"], row["steps"]): row for row in rows}


def table(results: dict[tuple[str, int, int], dict[str, Any]], steps: int) -> str:
    """A Markdown table of validation losses, a row per seed and one of the means."""
    seeds = sorted({seed for _, seed, done in results if done == steps})
    there = [kind for kind in KINDS if any((kind, seed, steps) in results for seed in seeds)]
    whole = [seed for seed in seeds if all((kind, seed, steps) in results for kind in there)]
    sparse = [kind for kind in there if kind != "dense"]
    heads = ["seed", *there, *(f"{kind} / dense" for kind in sparse)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    columns: dict[str, list[float]] = {kind: [] for kind in there}
    for seed in whole:
        losses = {kind: results[(kind, seed, steps)]["val_loss"] for kind in there}
        for kind, loss in losses.items():
            columns[kind].append(loss)
        lines.append(_row(str(seed), losses, sparse))
    if whole:
        means = {kind: statistics.fmean(column) for kind, column in columns.items()}
        lines.append(_row("mean", means, sparse))
    return "\n".join(lines)


def _row(name: str, losses: dict[str, float], sparse: list[str]) -> str:
    dense = losses.get("dense")
    cells = [f"{loss:.4f}" for loss in losses.values()]
    cells += ["" if dense is None else f"{losses[kind] / dense:.4f}" for kind in sparse]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Run what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seeds", default="1337,1338,1339")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--global-seqs", type=int, default=2)
    parser.add_argument("--validation-batches", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("quality.jsonl"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    for seed in (int(text) for text in given.seeds.split(",")):
        for kind in given.kinds.split(","):
            if (kind, seed, given.steps) in load_results(given.out):
                continue
            print(f"{kind} seed {seed}", flush=True)
            config = build_study_config(
                kind, seed, given.steps, given.global_seqs, given.validation_batches
            )
            row = {"kind": kind, "seed": seed, "steps": given.steps}
            row |= {"tokens": given.steps * given.global_seqs * config.model.seq_len}
            row |= {"attention": dataclasses.asdict(config.attention)}
            row |= train_and_validate(config)
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    print(table(load_results(given.out), given.steps))


if __name__ == "__main__":
    main()
