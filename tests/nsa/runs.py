"""A tiny training configuration, orders made of it, and what a run writes."""

import copy
import json
import os
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nsa.assignment import launch_from_order
from nsa.config import build_config
from nsa.model import LanguageModel, build_model
from nsa.settings import load_settings
from nsa.stacks import StackDumps
from nsa.trainer import Trainer

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0
Lines = list[dict[str, Any]]

TINY: dict[str, Any] = {
    "config": "tiny",
    "model": {
        "dim": 32, "layers": 2, "heads": 4, "groups": 2, "head_dim": 8, "vocab": 256,
        "seq_len": 64, "ffn_width": 48, "rope_theta": 10000.0, "norm_eps": 1e-5, "init_std": 0.02,
        "gradient_checkpointing": False,
    },
    "attention": {
        "kind": "nsa", "backend": "auto", "l": 8, "d": 4, "l_sel": 8, "n_sel": 3, "w": 16
    },
    "optim": {
        "lr": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.01, "clip": 1.0,
        "warmup_steps": 2, "decay_steps": 40, "min_lr_ratio": 0.1,
    },
    "batch": {"global_seqs": 4, "accumulate": 1},
    "eval": {"every_steps": 0, "batches": 2},
    "data": "synthetic",
    "seed": 1337,
    "dtype": "fp32",
    "parallel": "single",
    "steps": 4,
    "params": 1,
}  # fmt: skip
ENGINE = {"fused_adamw": False, "compile": False, "keep_checkpoints": 0, "profile_steps": 0}


def tiny(**changes: Any) -> dict[str, Any]:
    """TINY with changes; a mapping changes the keys of its section."""
    whole = copy.deepcopy(TINY)
    for key, value in changes.items():
        inner = whole.get(key)
        whole[key] = inner | value if isinstance(inner, dict) else value
    return whole


def write_order(
    base: Path, name: str = "run", *, go: bool = True, train: Any = None, **order: Any
) -> Path:
    """Write an order; `train` holds changes as `tiny` takes them, the rest are its keys."""
    folder = base / name
    folder.mkdir()
    mapping = tiny(**(train or {}))
    whole = {
        "v": 1,
        "steps": mapping["steps"],
        "world_size": 1,
        "profile": "cpu",
        "resume_from": None,
        "train": mapping,
        "heartbeat": {"alive_every_s": 5},
        "checkpoint": None,
        "fault": None,
        **order,
    }
    (folder / "order.json").write_text(json.dumps(whole))
    if go:
        (folder / ".GO").touch()
    return folder / "order.json"


def build_trainer(order: Path, environ: dict[str, str] | None = None) -> Trainer:
    """The trainer of an order as rank 0 of 1."""
    settings = load_settings(environ or {})
    launch = launch_from_order(order, settings)
    return Trainer(launch, settings, StackDumps(launch.run_dir, settings.rank))


def read_lines(run_dir: Path, rank: int = 0) -> Lines:
    """The complete heartbeat lines of a rank."""
    file = run_dir / f"heartbeat_rank{rank}.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def of(lines: Lines, msg: str) -> Lines:
    """The lines of one message."""
    return [line for line in lines if line["msg"] == msg]


def losses(lines: Lines) -> list[Any]:
    """The loss of every step."""
    return [line["loss"] for line in of(lines, "progress")]


def told(lines: Lines) -> Lines:
    """Lines without `section` and `alive`, which a busy machine may add."""
    return [line for line in lines if line["msg"] not in ("section", "alive")]


def wait_for(
    run_dir: Path, seen: Callable[[dict[str, Any]], bool], rank: int = 0
) -> dict[str, Any]:
    """The first heartbeat line of a rank that `seen` accepts; fails after LIMIT_S."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        for line in read_lines(run_dir, rank):
            if seen(line):
                return line
        time.sleep(0.02)
    log = run_dir / f"rank{rank}.log"
    raise AssertionError(
        f"no such line from rank {rank}: {log.read_text() if log.exists() else ''}"
    )


def free_port() -> int:
    """A port that nobody listens on now, below those the kernel gives to others meanwhile."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


def rank_environment(**own: str) -> dict[str, str]:
    """This environment without what is ours, for one rank or torchrun."""
    ours = ("NSA_", "GONOGO_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours) and k != "CONFIG"}
    return {**kept, "OMP_NUM_THREADS": "1", **own}


def decided_model(**changes: Any) -> LanguageModel:
    """The tiny model with changes; a fresh one is nearly indifferent, this one takes sides."""
    torch.manual_seed(0)
    model = build_model(build_config(tiny(**changes))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and not name.startswith("embedding"):
                parameter *= 8.0
    return model
