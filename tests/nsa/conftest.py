"""A tiny training configuration, orders made of it, and ways to run it."""

import copy
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from nsa.launch import launch_from_order
from nsa.settings import load_settings
from nsa.stacks import StackDumps
from nsa.trainer import Trainer

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0

TINY: dict[str, Any] = {
    "config": "tiny",
    "model": {
        "dim": 32,
        "layers": 2,
        "heads": 4,
        "groups": 2,
        "head_dim": 8,
        "vocab": 256,
        "seq_len": 64,
        "ffn_width": 48,
        "rope_theta": 10000.0,
        "norm_eps": 1e-5,
        "init_std": 0.02,
        "gradient_checkpointing": False,
    },
    "attention": {
        "kind": "nsa",
        "backend": "auto",
        "l": 8,
        "d": 4,
        "l_sel": 8,
        "n_sel": 3,
        "w": 16,
    },
    "optim": {
        "lr": 0.01,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "weight_decay": 0.01,
        "clip": 1.0,
        "warmup_steps": 2,
        "decay_steps": 40,
        "min_lr_ratio": 0.1,
    },
    "batch": {"global_seqs": 4, "accumulate": 1},
    "eval": {"every_steps": 0, "batches": 2},
    "data": "synthetic",
    "seed": 1337,
    "dtype": "fp32",
    "parallel": "single",
    "steps": 4,
    "params": 1,
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Two cores are shared; small matrices gain nothing from more."""
    torch.set_num_threads(1)


@pytest.fixture
def tiny() -> dict[str, Any]:
    """A whole configuration that trains a step in milliseconds; yours to change."""
    return copy.deepcopy(TINY)


@pytest.fixture
def make_order(tmp_path: Path, tiny: dict[str, Any]) -> Callable[..., Path]:
    """Write an order below the test's own folder."""
    return partial(write_order, tmp_path, tiny=tiny)


def write_order(
    base: Path,
    name: str = "run",
    *,
    tiny: dict[str, Any] = TINY,
    go: bool = True,
    train: Any = None,
    **order: Any,
) -> Path:
    """Write an order; `train` holds changed top-level keys, the rest are keys of the order."""
    folder = base / name
    folder.mkdir()
    mapping = {**tiny, **(train or {})}
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


@pytest.fixture
def train_here(make_order: Callable[..., Path]) -> Callable[..., list[dict[str, Any]]]:
    """Run an order in this process, as one rank; returns its heartbeat lines."""

    def train(*arguments: Any, **order: Any) -> list[dict[str, Any]]:
        file = make_order(*arguments, **order)
        build_trainer(file).run()
        return read_lines(file.parent)

    return train


@pytest.fixture
def launch_ranks() -> Iterator[Callable[..., list["subprocess.Popen[bytes]"]]]:
    """Start the ranks of an order as torchrun would; whatever is left is killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def launch(
        order: Path, ranks: int = 2, environ: dict[str, str] | None = None
    ) -> list["subprocess.Popen[bytes]"]:
        port = free_port()
        for rank in range(ranks):
            env = {name: value for name, value in os.environ.items() if not _ours(name)}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
            env |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            env |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
            env |= environ or {}
            command = [sys.executable, "-m", "nsa.train", "--order", str(order)]
            with (order.parent / f"rank{rank}.log").open("wb") as log:
                started.append(subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log))
        return started[-ranks:]

    yield launch
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT_S)


@pytest.fixture
def start_torchrun() -> Iterator[Callable[[Path], "subprocess.Popen[bytes]"]]:
    """Start an order's two ranks by torchrun; at the end its agent ends them."""
    started: list[subprocess.Popen[bytes]] = []

    def start(order: Path) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
        command += ["--master-addr=127.0.0.1", f"--master-port={free_port()}", "--no-python"]
        command += [sys.executable, "-m", "nsa.train", "--order", str(order)]
        env = {name: value for name, value in os.environ.items() if not _ours(name)}
        env["OMP_NUM_THREADS"] = "1"
        agent = subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.DEVNULL)
        started.append(agent)
        return agent

    yield start
    for agent in started:
        if agent.poll() is None:
            agent.terminate()
        agent.wait(LIMIT_S)


def free_port() -> int:
    """A port that nobody listens on now, below those the kernel gives to others meanwhile."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


def read_lines(run_dir: Path, rank: int = 0) -> list[dict[str, Any]]:
    """The complete heartbeat lines of a rank."""
    file = run_dir / f"heartbeat_rank{rank}.jsonl"
    if not file.exists():
        return []
    return [
        json.loads(line)
        for line in file.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]


def told(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines without `section` and `alive`, which a busy machine may add: they say what lasts."""
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


@pytest.fixture(scope="session")
def helpers() -> Any:
    """The functions of this file for test modules, which cannot import it."""
    return sys.modules[__name__]


def build_trainer(order: Path, environ: dict[str, str] | None = None) -> Trainer:
    """The trainer of an order as rank 0 of 1; what makes it fail does not leave its dumps open."""
    settings = load_settings(environ or {})
    launch = launch_from_order(order, settings)
    return Trainer(launch, settings, StackDumps(launch.run_dir, settings.rank))


def _ours(name: str) -> bool:
    return name.startswith(("NSA_", "GONOGO_")) or name == "CONFIG"
