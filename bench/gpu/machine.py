"""On what was this measured?"""

from __future__ import annotations

import subprocess
from pathlib import Path

import torch
import triton

from bench.gpu.rows import Context, append_row

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
    """Write the row `environment`."""
    device = context.device
    append_row(
        context.file,
        "environment",
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        torch=torch.__version__,
        triton=triton.__version__,
        gpus=_answer("nvidia-smi", f"--query-gpu={_ASKED}", "--format=csv,noheader"),
        git=_answer("git", "describe", "--always", "--dirty"),
    )
