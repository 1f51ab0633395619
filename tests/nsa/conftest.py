"""Ways to run a tiny training: in this process, as ranks of their own, or by torchrun."""

import copy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.nsa import runs


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Two cores are shared; small matrices gain nothing from more."""
    torch.set_num_threads(1)


@pytest.fixture
def tiny() -> dict[str, Any]:
    """A whole configuration that trains a step in milliseconds; yours to change."""
    return copy.deepcopy(runs.TINY)


@pytest.fixture
def make_order(tmp_path: Path) -> Callable[..., Path]:
    """Write an order below the test's own folder."""
    return partial(runs.write_order, tmp_path)


@pytest.fixture
def train_here(make_order: Callable[..., Path]) -> Callable[..., runs.Lines]:
    """Run an order in this process, as one rank; returns its heartbeat lines."""

    def train(*name: str, environ: dict[str, str] | None = None, **order: Any) -> runs.Lines:
        file = make_order(*name, **order)
        runs.build_trainer(file, environ).run()
        return runs.read_lines(file.parent)

    return train


@pytest.fixture
def launch_ranks() -> Iterator[Callable[..., list["subprocess.Popen[bytes]"]]]:
    """Start the ranks of an order as torchrun would; whatever is left is killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def launch(
        order: Path, ranks: int = 2, environ: dict[str, str] | None = None
    ) -> list["subprocess.Popen[bytes]"]:
        port = str(runs.free_port())
        for rank in map(str, range(ranks)):
            env = runs.rank_environment(
                MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=rank, LOCAL_RANK=rank,
                WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks), **(environ or {}),
            )  # fmt: skip
            command = [sys.executable, "-m", "nsa.train", "--order", str(order)]
            with (order.parent / f"rank{rank}.log").open("wb") as log:
                started.append(
                    subprocess.Popen(command, cwd=runs.ROOT, env=env, stdout=log, stderr=log)
                )
        return started[-ranks:]

    yield launch
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.wait(runs.LIMIT_S)


@pytest.fixture
def start_torchrun() -> Iterator[Callable[[Path], "subprocess.Popen[bytes]"]]:
    """Start an order's two ranks by torchrun; at the end its agent ends them."""
    started: list[subprocess.Popen[bytes]] = []

    def start(order: Path) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
        command += ["--master-addr=127.0.0.1", f"--master-port={runs.free_port()}", "--no-python"]
        command += [sys.executable, "-m", "nsa.train", "--order", str(order)]
        env = runs.rank_environment()
        agent = subprocess.Popen(command, cwd=runs.ROOT, env=env, stderr=subprocess.DEVNULL)
        started.append(agent)
        return agent

    yield start
    for agent in started:
        if agent.poll() is None:
            agent.terminate()
        agent.wait(runs.LIMIT_S)
