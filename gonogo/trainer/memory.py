"""How much memory does this rank hold? In MB (2^20 bytes).

Pages of mapped files (a data set read through `mmap`, libraries) are resident but not held: the
kernel takes them back when it needs them, so they are not counted.
"""

import os
import sys
from pathlib import Path

_STATM = Path("/proc/self/statm")
_STATUS = Path("/proc/self/status")
_HELD = (b"RssAnon:", b"RssShmem:")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20


def memory_mb() -> dict[str, float]:
    """Return `host_rss_mb`, and what torch holds of the GPU where the script uses one."""
    told = {}
    try:
        told["host_rss_mb"] = round(held_mb(), 3)
    except (OSError, ValueError, IndexError):
        pass  # no Linux: not observed
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        told["gpu_mem_alloc"] = round(cuda.memory_allocated() / 2**20, 3)
        told["gpu_mem_reserved"] = round(cuda.memory_reserved() / 2**20, 3)
    return told


def held_mb(status: Path = _STATUS, statm: Path = _STATM) -> float:
    """Return resident memory without mapped files; shared memory is held.

    Raises:
        OSError, ValueError, IndexError: nothing that tells it is there.
    """
    rows = (row.split() for row in status.read_bytes().splitlines())
    kib = [int(row[1]) for row in rows if len(row) > 1 and row[0] in _HELD]
    if len(kib) == len(_HELD):
        return sum(kib) / 1024
    resident, shared = (int(pages) for pages in statm.read_bytes().split()[1:3])
    return max(0, resident - shared) * _PAGE_MB
