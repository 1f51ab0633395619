"""On what was this measured, and what could it do at best?"""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from bench.on_gpu.figures import spread
from bench.on_gpu.rows import Context
from bench.on_gpu.stopwatch import measure
from nsa.attention import available_backends
from nsa.attention.proof import describe_machine

_ASKED = (
    "name", "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit",
    "power.draw", "temperature.gpu", "utilization.gpu", "memory.used", "mig.mode.current",
)  # fmt: skip
_ROOT = Path(__file__).parents[2]


def _answer(command: list[str]) -> str | None:
    """What a program prints; None where there is none, or it fails."""
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(
        command, cwd=_ROOT, capture_output=True, text=True, timeout=20, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def describe(device: torch.device) -> dict[str, object]:
    """Versions, clocks, driver and the sources that were measured."""
    asked = f"--query-gpu={','.join(_ASKED)}"
    told = _answer(["nvidia-smi", asked, "--format=csv,noheader"])
    gpus = [
        dict(zip(_ASKED, (value.strip() for value in line.split(",")), strict=False))
        for line in (told or "").splitlines()
    ]
    try:
        numpy = version("numpy")
    except PackageNotFoundError:
        numpy = None
    return {
        **describe_machine(device, torch.bfloat16),
        "python": platform.python_version(), "numpy": numpy, "cuda": torch.version.cuda,
        "gpus": gpus,
        "git": _answer(["git", "rev-parse", "HEAD"]),
        "changed": _answer(["git", "status", "--porcelain", "--untracked-files=no"]),
        "backends": available_backends(device),
    }  # fmt: skip


def run(context: Context) -> None:
    """Rows `environment` and `ceiling` (copy, bf16 product)."""
    context.tell("environment", **describe(context.device))
    size = 2**24 if context.tiny else 2**30
    source = torch.zeros(size, dtype=torch.uint8, device=context.device)
    target = torch.empty_like(source)
    copy = spread(measure(lambda: target.copy_(source), context.device))
    context.tell("ceiling", of="copy", bytes=size, **copy, gb_s=round(2 * size / copy["ms"] / 1e6))
    side = 256 if context.tiny else 8192
    a, b = (torch.randn(side, side, device=context.device, dtype=torch.bfloat16) for _ in range(2))
    product = spread(measure(lambda: a @ b, context.device))
    tflop_s = round(2 * side**3 / product["ms"] / 1e9, 1)
    context.tell("ceiling", of="bf16 product", side=side, **product, tflop_s=tflop_s)
