"""How much memory does this rank hold? In MB (2^20 bytes)."""

import os
import sys
from pathlib import Path

_STATM = Path("/proc/self/statm")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20


def memory_mb() -> dict[str, float]:
    """Return `host_rss_mb`, and what torch holds of the GPU where the script uses one."""
    told = {}
    try:
        told["host_rss_mb"] = round(int(_STATM.read_bytes().split()[1]) * _PAGE_MB, 3)
    except (OSError, ValueError, IndexError):
        pass  # no Linux: not observed
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        told["gpu_mem_alloc"] = round(cuda.memory_allocated() / 2**20, 3)
        told["gpu_mem_reserved"] = round(cuda.memory_reserved() / 2**20, 3)
    return told
