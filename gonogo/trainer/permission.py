"""May the script begin? The watcher's `.GO` says so, once it knows what runs."""

import sys
import time
from collections.abc import Mapping
from typing import Any

from gonogo.trainer.run_dir import RunDir

HALTED_CODE = 3
NO_GO_CODE = 4
GO_LIMIT_S = 120.0
"""How long `.GO` is waited for once every rank has spoken: before, it cannot be given."""
RANKS_LIMIT_S = 2400.0
"""How long the other ranks are waited for; whoever watches them has a shorter limit."""
NOT_LET_BEGIN = "no .GO within"
UNTOLD = "which this script does not tell"
"""Words of a log by which the supervisor knows why a rank ended before its first step."""
_GO_POLL_S = 0.05
_MOST_S = 1.0
"""Of what passes between two looks: what takes longer was suspended with its watcher, or waits for
a disk; in neither could anybody have given it."""


def why_never(run_dir: RunDir, identity: Mapping[str, Any]) -> str | None:
    """Say why there will be no `.GO`: it is not given where something is unknown."""
    untold = [name for name in run_dir.checked if identity.get(name) is None]
    if not untold:
        return None
    return f"the order checks {', '.join(untold)}, {UNTOLD} (attach(identity={{…}}))"


def await_go(run_dir: RunDir, identity: Mapping[str, Any]) -> int | None:
    """Wait until the run may begin; where it may not, return the code to end with.

    Args:
        run_dir: of the run.
        identity: what this rank has told of itself.
    """
    why = why_never(run_dir, identity)
    if why is not None:
        print(f"gonogo: {why}; it will not be let begin", file=sys.stderr)
    looked, left_s, alone = time.monotonic(), RANKS_LIMIT_S, True
    while not run_dir.says("GO"):
        if run_dir.says("HALT") and not run_dir.says("GO"):
            return HALTED_CODE
        if alone and run_dir.all_have_spoken():
            left_s, alone = GO_LIMIT_S, False
        now = time.monotonic()
        left_s, looked = left_s - min(now - looked, _MOST_S), now
        if left_s < 0.0:
            late = f"gonogo: {NOT_LET_BEGIN} {GO_LIMIT_S:.0f} s"
            print(late if why is None else f"{late}: {why}", file=sys.stderr)
            return NO_GO_CODE
        time.sleep(_GO_POLL_S)
    return None
