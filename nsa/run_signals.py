"""The two words that a supervisor leaves in the run directory: `.GO` and `.HALT`.

Rank 0 alone reads them and shares the answer, so that all ranks act together.
"""

import os
import time
from pathlib import Path

from nsa.errors import BadConfig, Halted
from nsa.heartbeat import Heartbeat
from nsa.ranks import Ranks

_LIMIT_S = 120.0
_POLL_S = 0.05


def told(run_dir: Path, word: str) -> bool:
    """Whether `.GO` or `.HALT` is there, whatever it is; a silent disk says no."""
    return os.path.lexists(run_dir / f".{word}")


def forget(run_dir: Path, word: str) -> None:
    """Take a word back that was meant for an earlier run in the same directory."""
    (run_dir / f".{word}").unlink(missing_ok=True)


def wait_for_go(run_dir: Path, ranks: Ranks, heart: Heartbeat) -> None:
    """Return when `.GO` is there; a collective.

    The limit begins when all ranks are here: none is blamed for another's slow start.

    Raises:
        Halted: `.HALT` came instead.
        BadConfig: neither came within 120 s.
    """
    ranks.choose(0)
    deadline, halt = time.monotonic() + _LIMIT_S, False
    while not (go := told(run_dir, "GO")) and not (halt := told(run_dir, "HALT")):
        if ranks.rank != 0 or time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    if ranks.choose(int(go)):
        return
    halted = ranks.choose(int(halt))
    if halted:
        heart.beat("halt_seen")
    ranks.leave_together()
    if halted:
        raise Halted("halted before the first step")
    raise BadConfig(f"no .GO within {_LIMIT_S:.0f} s")
