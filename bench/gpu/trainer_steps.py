"""How many tokens a second does the real trainer make of the 125M model?

Rows `trainer`: whole runs of `nsa.trainer` in this process, from their own heartbeats, without the
first steps. Sparse and dense attention, 2 and 32 sequences a step, eager and with
`engine.cuda_graphs` or `engine.compile`.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from bench.gpu.rows import Context
from bench.trainer import lines_of_run
from nsa.config import AS_IF_ABSENT, TrainConfig, build_config, load_config
from nsa.model import build_model

LEFT_OUT = 4
_SHRUNKEN = {
    "model": {"dim": 32, "layers": 2, "heads": 4, "groups": 2, "head_dim": 8, "seq_len": 64,
              "ffn_width": 48},
    "attention": {"l": 8, "d": 4, "l_sel": 8, "n_sel": 3, "w": 16},
    "dtype": "fp32",
}  # fmt: skip


def variants(*, tiny: bool) -> Iterator[dict[str, Any]]:
    """Attention, sequences a step, whether compiled, whether captured: in order of value."""
    plain, graphs = {"compiled": False, "graphs": False}, {"compiled": False, "graphs": True}
    compiled, both = {"compiled": True, "graphs": False}, {"compiled": True, "graphs": True}
    of_gpus = ((2, graphs), (32, compiled), (2, both))
    for sequences, way in ((2, plain), *(() if tiny else ((32, plain), *of_gpus))):
        for kind in ("nsa", "dense"):
            yield {"kind": kind, "sequences": sequences, **way}


def build(
    *, kind: str, sequences: int, compiled: bool, graphs: bool, steps: int, tiny: bool
) -> TrainConfig:
    """The 125M model's configuration for one process, on synthetic data."""
    mapping = load_config(Path("m7c_125m"))
    if tiny:
        mapping |= {name: {**mapping[name], **new} if isinstance(new, dict) else new
                    for name, new in _SHRUNKEN.items()}  # fmt: skip
    backend = "torch" if tiny else "triton"
    mapping |= {
        "attention": {**mapping["attention"], "kind": kind, "backend": backend},
        "batch": {"global_seqs": sequences, "accumulate": 1},
        "engine": {**AS_IF_ABSENT["engine"], "fused_adamw": not tiny, "compile": compiled,
                   "cuda_graphs": graphs},
        "eval": {**mapping["eval"], "every_steps": 0},
        "data": "synthetic", "parallel": "single", "steps": steps,
    }  # fmt: skip
    config = build_config(mapping)
    with torch.device("meta"):
        counted = sum(weight.numel() for weight in build_model(config).parameters())
    return dataclasses.replace(config, params=counted)


def summarise(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return medians over the steps of one run, from its heartbeats."""
    rows = list(lines)
    ends = [line for line in rows if line["msg"] == "step_end"][LEFT_OUT:]
    told = [line for line in rows if line["msg"] == "progress"]
    if not ends:
        raise ValueError(f"no step after the first {LEFT_OUT}")
    step_s = statistics.median(line["dt_step_s"] for line in ends)
    names = sorted({name for line in ends for name in line["step_sections"]})
    return {
        "steps": len(ends),
        "step_ms": round(step_s * 1e3, 3),
        "tok_s": round(statistics.median(line["tokens"] / line["dt_step_s"] for line in ends), 1),
        "sections_ms": {
            name: round(
                statistics.median(line["step_sections"].get(name, 0.0) for line in ends) * 1e3, 3
            )
            for name in names
        },
        "reserved_mb": max(line["gpu_mem_reserved"] for line in told),
        "loss": [round(line["loss"], 4) for line in told[:: max(1, len(told) - 1)]],
    }


def run(context: Context) -> None:
    """Rows `trainer`, one a variant."""

    def measure(variant: Mapping[str, Any]) -> dict[str, Any]:
        steps = LEFT_OUT + (3 if context.tiny else 8 if variant["sequences"] > 2 else 20)
        config = build(**variant, steps=steps, tiny=context.tiny)
        told = summarise(lines_of_run(config, context.device.type))
        return {"params": config.params, **told}

    for variant in variants(tiny=context.tiny):
        needed_s = 1.0 if context.tiny else 45.0 if variant["compiled"] else 12.0
        unit = functools.partial(measure, variant)
        context.measure("trainer", unit, needed_s, **variant)
        if not context.tiny:
            torch.cuda.empty_cache()
