"""What benchmarks of attention and of the trainer share: turns on one thread, and a real run."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nsa.config import TrainConfig
from nsa.launch import Launch
from nsa.settings import load_settings
from nsa.stacks import StackDumps
from nsa.trainer import Trainer

HEADS, GROUPS, HEAD_DIM = 12, 2, 64
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Step = Callable[[], None]


def thread_seconds(step: Step) -> float:
    """CPU seconds that this thread spends in one call."""
    started = time.thread_time()
    step()
    return time.thread_time() - started


def in_turn(other: Step, ours: Step, pairs: int, *, warm_up: int = 1) -> tuple[float, float, float]:
    """Median seconds of the other, of ours, and the median of the pairs' ratios other / ours."""
    for _ in range(warm_up):
        other()
        ours()
    times = [(thread_seconds(other), thread_seconds(ours)) for _ in range(pairs)]
    return (
        statistics.median(a for a, _ in times),
        statistics.median(b for _, b in times),
        statistics.median(a / b for a, b in times),
    )


def lines_of_run(config: TrainConfig, device: str = "cpu") -> list[dict[str, Any]]:
    """The heartbeat lines of a run of the trainer in this process."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        launch = Launch(run_dir=place, config=config, supervised=False, device=device)
        Trainer(launch, load_settings({}), StackDumps(place, 0)).run()
        lines = (place / "heartbeat_rank0.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
