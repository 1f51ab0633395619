"""Run directories for attached trainers, and what they wrote there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from gonogo.contract.heartbeat import Heartbeat, parse_heartbeat
from gonogo.contract.order import Order
from gonogo.contract.wire import Kind, new_id
from gonogo.rundir import RunDir, load_all_lines, save_json

ROOT = Path(__file__).parents[2]
LOOPS = "tests.trainer.loops"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
LAUNCH = (*TORCHRUN, "--local-addr", "127.0.0.1")
"""torchrun on a host that may not know its own name."""


def write_order(folder: Path, *, go: bool = True, **changes: Any) -> Path:
    """Make a run directory with an order of four steps on one rank; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Any] = {
        "experiment": "exp_1",
        "run": new_id(Kind.RUN),  # the token by which keepers find processes: nobody shares it
        "token": 1,
        "plan": "own",
        "plan_digest": "0" * 64,
        "phase": "smoke",
        "steps": 4,
        "world_size": 1,
        "profile": "cpu",
        "train": {},
        "heartbeat": {"alive_every_s": 30},
    }
    save_json(folder / "order.json", Order.model_validate({**parts, **changes}).document())
    if go:
        RunDir(folder).go.touch()
    return folder


TALKATIVE = {"alive_every_s": 0.2}
"""For an order whose rank shows signs of life often."""


def run_of(folder: Path) -> str:
    """The run of a directory's order."""
    return str(json.loads((folder / "order.json").read_text())["run"])


def lines_of(folder: Path, rank: int = 0) -> list[Heartbeat]:
    """The lines of a rank, each parsed by the contract."""
    return [parse_heartbeat(raw) for raw in load_all_lines(RunDir(folder).heartbeat(rank))]


def said(lines: list[Heartbeat], msg: str) -> list[Heartbeat]:
    """The lines of one message."""
    return [line for line in lines if line.msg == msg]


def steps_of(lines: list[Heartbeat], msg: str) -> list[int]:
    """The steps of the lines of one message, as written."""
    return [line.step for line in said(lines, msg)]


def environment(folder: Path | None, **more: str) -> dict[str, str]:
    """The environment of a trainer in a run directory, as the keeper sets it."""
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("GONOGO_", "NSA_")) and name not in ("RANK", "WORLD_SIZE")
    }
    ours = {} if folder is None else {"GONOGO_RUN_DIR": str(folder), "GONOGO_RUN": run_of(folder)}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **ours, **more}


def exit_codes(stderr: str) -> set[int]:
    """How ranks ended by themselves, and not with 0: torchrun ends who is left with SIGTERM."""
    found = {int(code) for code in re.findall(r"exitcode  : (-?\d+)", stderr)}
    return found - {-signal.SIGTERM}


def run_loop(
    loop: str, folder: Path | None, *arguments: str, ranks: int = 1, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a module of `tests/trainer/loops` to its end, under torchrun where it has more ranks."""
    command = [sys.executable, "-m", f"{LOOPS}.{loop}", *arguments]
    if ranks > 1:
        command = [*LAUNCH, "--nproc-per-node", str(ranks), "-m", f"{LOOPS}.{loop}", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment(folder, **environ),
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
    )
