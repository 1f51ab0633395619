"""`python -m gonogo.supervise.follower RUNDIR --node K [--signs FD]`: look at one node's part.

Exit codes: 0 the part has ended, and that was told · 2 no readable order, or no such node.
"""

import argparse
import faulthandler
import logging
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gonogo.contract.errors import GonogoError
from gonogo.contract.order import Order
from gonogo.rundir import RunDir, load_record
from gonogo.supervise.follower.follower import Follower
from gonogo.supervise.launch.nodes import NoPlace, Place
from gonogo.supervise.processes import die_with_parent
from gonogo.supervise.watcher.signs import Signs

_log = logging.getLogger("gonogo.supervise.follower")


def main(argv: Sequence[str]) -> int:
    """Follow one node's part; see the module's text for the exit codes."""
    parser = argparse.ArgumentParser(prog="gonogo.supervise.follower")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--node", type=int, required=True, metavar="K")
    parser.add_argument("--signs", type=int, default=None, metavar="FD")
    asked = parser.parse_args(argv)
    run_dir = RunDir(asked.run_dir.absolute())
    die_with_parent()
    faulthandler.register(signal.SIGUSR1)  # the keeper asks so, of one that hangs
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        order = load_record(run_dir.order, Order)
        if order is None:
            return 2
        place = Place.of(order.document(), asked.node)
    except (GonogoError, NoPlace) as error:
        _log.error("%s", error, extra={"action": "bad_order"})
        return 2
    Follower(run_dir, order, place, Signs(asked.signs)).follow(time.monotonic, time.sleep)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
