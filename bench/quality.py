"""Does a model learn as well with NSA as with dense attention?

Run from the repository root:

    python -m bench.quality --seeds 1337,1338,1339 --steps 300

Compared are NSA with the mean as compression, NSA with the learned one (`nsa_mlp`, the paper's) and
dense attention. The demo-size model (`nsa/configs/demo.yaml`) at S = 1024 with l 16, d 8, l' 32,
n 6, w 64: a query selects at most 192 of 1024 tokens. All kinds see the same real text
(`local_text`) in the same order, from the same seed, with the same optimizer. The figure is the
held-out loss in nats per byte after the last step, and the ratio of the means over the seeds. NSA
has gates and three pairs of K/V projections where dense has one: 10 % more parameters here, and
with the learned compression 20 %.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch

from bench.trainer import lines_of_run
from nsa.config import TrainConfig, build_config, load_config

SPARSE = ("nsa", "nsa_mlp")
KINDS = (*SPARSE, "dense")


def build_study_config(
    kind: str, seed: int, steps: int, global_seqs: int, validation_batches: int
) -> TrainConfig:
    """The configuration of one run of the study."""
    mapping = load_config(Path("demo"))
    mapping["model"] |= {"seq_len": 1024, "layers": 6}
    name, _, compression = kind.partition("_")
    mapping["attention"] |= {"kind": name, "l": 16, "d": 8, "l_sel": 32, "n_sel": 6, "w": 64}
    if compression:
        mapping["attention"]["compression"] = compression
    mapping["optim"] |= {"decay_steps": steps, "warmup_steps": max(1, steps // 20)}
    mapping["batch"] = {"global_seqs": global_seqs, "accumulate": 1}
    mapping["eval"] = {"every_steps": steps, "batches": validation_batches}
    mapping |= {"seed": seed, "steps": steps, "parallel": "single", "data": "local_text"}
    return build_config(mapping)


def held_out_loss(config: TrainConfig) -> float:
    """Train one model; returns its held-out loss, in nats per byte."""
    lines = lines_of_run(config)
    return float(next(line["val_loss"] for line in lines if line["msg"] == "eval"))


def _row(name: str, losses: dict[str, float]) -> str:
    dense = losses["dense"]
    cells = [f"{loss:.4f}" for loss in losses.values()]
    cells += [f"{losses[kind] / dense:.4f}" for kind in SPARSE]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Train each kind from each seed; print a Markdown table, a row a seed and one of the means."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seeds", default="1337,1338,1339")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--global-seqs", type=int, default=2)
    parser.add_argument("--validation-batches", type=int, default=16)
    given = parser.parse_args()
    torch.set_num_threads(1)
    heads = ["seed", *KINDS, *(f"{kind} / dense" for kind in SPARSE)]
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    rows: list[dict[str, float]] = []
    for seed in map(int, given.seeds.split(",")):
        of_study = (seed, given.steps, given.global_seqs, given.validation_batches)
        configs = {kind: build_study_config(kind, *of_study) for kind in KINDS}
        rows.append({kind: held_out_loss(config) for kind, config in configs.items()})
        print(_row(str(seed), rows[-1]), flush=True)
    print(_row("mean", {kind: statistics.fmean(row[kind] for row in rows) for kind in KINDS}))


if __name__ == "__main__":
    main()
