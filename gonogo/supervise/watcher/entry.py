"""The command line of a watcher.

`python -m gonogo.supervise.watcher RUNDIR [--signs FD]` watches offline; a service's worker calls
`main` with its own `Shipping`. SIGUSR1 makes the watcher write its stacks to its log.

Exit codes: 0 the end was seen · 2 no readable order.
"""

import argparse
import faulthandler
import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gonogo.contract.errors import GonogoError
from gonogo.contract.order import Order
from gonogo.rundir import RunDir, load_record
from gonogo.supervise.processes import LifeSigns, die_with_parent
from gonogo.supervise.watcher.journal import WATCHED_NAME
from gonogo.supervise.watcher.shipping import Offline, Shipping
from gonogo.supervise.watcher.watcher import Watcher, load_exit

Connect = Callable[[RunDir, Order], Shipping]

_log = logging.getLogger("gonogo.supervise.watcher")


def main(argv: Sequence[str], connect: Connect = lambda _run_dir, _order: Offline()) -> int:
    """Watch one run; see the module's text for the exit codes.

    Args:
        argv: the run's directory and options.
        connect: makes what ships the run.
    """
    parser = argparse.ArgumentParser(prog="gonogo.supervise.watcher")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--signs", type=int, default=None, metavar="FD")
    asked = parser.parse_args(argv)
    start_watching()
    run_dir = RunDir(asked.run_dir.absolute())
    try:
        order = load_record(run_dir.order, Order)
    except GonogoError as error:
        _log.error("%s", error, extra={"action": "bad_order"})
        return 2
    if order is None:
        return 2
    shipping = connect(run_dir, order)
    watcher = Watcher(run_dir, order, shipping, time.monotonic(), LifeSigns(asked.signs))
    if not (run_dir.exit.exists() and (run_dir.path / WATCHED_NAME).exists()):
        watcher.watch(time.monotonic, time.sleep)
    shipping.close(load_exit(run_dir))
    return 0


def start_watching() -> None:
    """Prepare this process: it dies with its keeper, and SIGUSR1 writes its stacks."""
    die_with_parent()
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
