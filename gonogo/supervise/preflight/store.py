"""How fast does the checkpoint store take and give back bytes? Written, synced and read once.

A checkpoint that takes longer than a halt waits for is lost; what the disk does is measured before
the run, where its checkpoints will lie (R60).
"""

import os
import time
from pathlib import Path

from gonogo.contract.records import CheckOutcome

TRIED_BYTES = 8 * 2**20
SLOW_CHECKPOINT_S = 120.0
MB = 1e6


def measure_store(folder: Path) -> float:
    """Return the bytes a second that a folder takes, synced.

    Raises:
        OSError: it takes none, or gives back others.
    """
    path = folder / f".store-{os.urandom(6).hex()}"
    block = os.urandom(2**20)
    began = time.perf_counter()
    try:
        with path.open("wb") as stream:
            for _ in range(TRIED_BYTES // len(block)):
                stream.write(block)
            stream.flush()
            os.fsync(stream.fileno())
        seconds = time.perf_counter() - began
        with path.open("rb") as stream:
            if any(stream.read(len(block)) != block for _ in range(TRIED_BYTES // len(block))):
                raise OSError(f"{folder} gives back other bytes than it took")
    finally:
        path.unlink(missing_ok=True)
    return TRIED_BYTES / max(seconds, 1e-6)


def judge_store(bytes_per_s: float, checkpoint_bytes: int) -> tuple[CheckOutcome, str]:
    """Say how long a checkpoint will take; pure.

    Args:
        bytes_per_s: what was measured.
        checkpoint_bytes: of one checkpoint; 0 where nobody knows.
    """
    text = f"takes {bytes_per_s / MB:.0f} MB/s"
    if not checkpoint_bytes:
        return CheckOutcome.PASS, text
    seconds = checkpoint_bytes / bytes_per_s
    text = f"{text}; a checkpoint of {checkpoint_bytes / MB:.0f} MB takes about {seconds:.1f} s"
    return (CheckOutcome.WARN if seconds > SLOW_CHECKPOINT_S else CheckOutcome.PASS), text
