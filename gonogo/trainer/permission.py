"""May the script begin? The watcher's `.GO` says so, once it knows what runs."""

import sys
import time
from collections.abc import Mapping
from typing import Any

from gonogo.trainer.run_dir import RunDir

HALTED_CODE = 3
NO_GO_CODE = 4
GO_LIMIT_S = 120.0
_GO_POLL_S = 0.05


def say_untold(run_dir: RunDir, identity: Mapping[str, Any]) -> None:
    """Tell the log why there will be no `.GO`: it is not given where something is unknown."""
    untold = [name for name in run_dir.checked if identity.get(name) is None]
    if untold:
        print(
            f"gonogo: the order checks {', '.join(untold)}, which this script does not tell"
            " (attach(identity={…})); it will not be let begin",
            file=sys.stderr,
        )


def await_go(run_dir: RunDir) -> int | None:
    """Wait until the run may begin; where it may not, return the code to end with."""
    give_up = time.monotonic() + GO_LIMIT_S
    while not run_dir.says("GO"):
        if run_dir.says("HALT") and not run_dir.says("GO"):
            return HALTED_CODE
        if time.monotonic() > give_up:
            print(f"gonogo: no .GO within {GO_LIMIT_S:.0f} s", file=sys.stderr)
            return NO_GO_CODE
        time.sleep(_GO_POLL_S)
    return None
