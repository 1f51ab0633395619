"""How is a watcher started, and what remains to be done when it has seen the end?

`python -m gonogo.supervise.watcher RUNDIR [--signs FD] [--parent PID]` watches and tells nobody. A
service's worker has an entry of its own, which calls `main` with what makes its `Shipping`. Into
the descriptor goes a byte now and then: the keeper replaces a watcher that gives no sign. One that
is told its parent watches nothing where that is gone: another may be started by now, and one at a
time writes. SIGUSR1 has it write its stacks to its log.

Exit codes: 0 the end was seen · 1 its parent is gone · 2 no readable order.
"""

import argparse
import faulthandler
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gonogo.contract.errors import GonogoError
from gonogo.contract.order import Order
from gonogo.rundir import RunDir, load_record
from gonogo.supervise.processes import die_with_parent
from gonogo.supervise.watcher.recording import WATCHED_NAME
from gonogo.supervise.watcher.shipping import Offline, Shipping
from gonogo.supervise.watcher.signs import Signs
from gonogo.supervise.watcher.watcher import Watcher, load_exit

Connect = Callable[[RunDir, Order], Shipping]

_log = logging.getLogger("gonogo.supervise.watcher")


def main(argv: Sequence[str], connect: Connect = lambda _run_dir, _order: Offline()) -> int:
    """Watch one run; see the module's text for the exit codes.

    Args:
        argv: the run's directory.
        connect: makes what ships the run.
    """
    parser = argparse.ArgumentParser(prog="gonogo.supervise.watcher")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--signs", type=int, default=None, metavar="FD")
    parser.add_argument("--parent", type=int, default=None, metavar="PID")
    asked = parser.parse_args(argv)
    run_dir = RunDir(asked.run_dir.absolute())
    die_with_parent()
    if asked.parent not in (None, os.getppid()):
        return 1  # it was gone before the line above
    faulthandler.register(signal.SIGUSR1)  # the keeper asks so, of one that hangs
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        order = load_record(run_dir.order, Order)
    except GonogoError as error:
        _log.error("%s", error, extra={"action": "bad_order"})
        return 2
    if order is None:
        return 2
    shipping = connect(run_dir, order)
    watcher = Watcher(run_dir, order, shipping, time.monotonic(), Signs(asked.signs))
    if not (run_dir.exit.exists() and (run_dir.path / WATCHED_NAME).exists()):
        watcher.watch(time.monotonic, time.sleep)
    shipping.close(load_exit(run_dir))
    return 0
