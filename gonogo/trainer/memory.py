"""The memory that this rank holds, in MB (2^20 bytes), without pages of mapped files."""

import os
import sys
from contextlib import suppress
from pathlib import Path

_STATM = Path("/proc/self/statm")
_STATUS = Path("/proc/self/status")
_HELD = (b"RssAnon:", b"RssShmem:")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20


def memory_mb() -> dict[str, float]:
    """Return `host_rss_mb`, and torch's memory on the GPU if it is used."""
    told = {}
    with suppress(OSError, ValueError, IndexError):  # not on Linux
        told["host_rss_mb"] = round(held_mb(), 3)
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        told["gpu_mem_alloc"] = round(cuda.memory_allocated() / 2**20, 3)
        told["gpu_mem_reserved"] = round(cuda.memory_reserved() / 2**20, 3)
    return told


def held_mb(status: Path = _STATUS, statm: Path = _STATM) -> float:
    """Return resident memory without mapped files.

    Raises:
        OSError, ValueError, IndexError: the kernel does not report it.
    """
    rows = (row.split() for row in status.read_bytes().splitlines())
    kib = [int(row[1]) for row in rows if len(row) > 1 and row[0] in _HELD]
    if len(kib) == len(_HELD):
        return sum(kib) / 1024
    resident, shared = (int(pages) for pages in statm.read_bytes().split()[1:3])
    return max(0, resident - shared) * _PAGE_MB
