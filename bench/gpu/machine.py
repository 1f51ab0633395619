"""On what was this measured, and what could it do at best?"""

from __future__ import annotations

import subprocess
from pathlib import Path

import torch
import triton

from bench.gpu.rows import Context, append_row, timings

_ASKED = "name,driver_version,clocks.sm,clocks.max.sm,power.limit,utilization.gpu,mig.mode.current"


def _answer(*command: str) -> str | None:
    """Return what a program prints; None where there is none, or it fails."""
    folder = Path(__file__).parent
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def run(context: Context) -> None:
    """Rows `environment` and `ceiling` (copy, bf16 product)."""
    device, tiny = context.device, context.tiny
    append_row(
        context.file,
        "environment",
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        torch=torch.__version__,
        triton=triton.__version__,
        gpus=_answer("nvidia-smi", f"--query-gpu={_ASKED}", "--format=csv,noheader"),
        git=_answer("git", "describe", "--always", "--dirty"),
    )
    size, side = (2**24, 256) if tiny else (2**30, 8192)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = timings(lambda: target.copy_(source), device)
    append_row(
        context.file, "ceiling", of="copy", **copy, rate=f"{2 * size / copy['ms'] / 1e6:.0f} GB/s"
    )
    a, b = torch.randn(2, side, side, device=device, dtype=torch.bfloat16)
    product = timings(lambda: a @ b, device)
    tflop_s = 2 * side**3 / product["ms"] / 1e9
    append_row(context.file, "ceiling", of="bf16 product", **product, rate=f"{tflop_s:.2f} TFLOP/s")
