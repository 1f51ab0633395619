"""Ends a run whose keeper is gone, once, and ships its end.

Without exit.json the keeper was lost (`gonogo.supervise.lost_run`). With exit.json the rest is
shipped. The keeper lock is held meanwhile, so no keeper and no other worker works on the directory.
"""

import logging
from collections.abc import Callable

from gonogo.contract.errors import Corrupt
from gonogo.contract.order import Order
from gonogo.contract.records import ExitRecord
from gonogo.rundir import RunDir, load_record
from gonogo.supervise.keeper_record import living_keeper
from gonogo.supervise.locks import holding, keeper_lock
from gonogo.supervise.lost_run import end_lost
from worker.host.home import OpenRun
from worker.shipping.reports import load_or_none
from worker.shipping.shipper import Shipper

_log = logging.getLogger(__name__)

SHIP_S = 2.0
"""Time for one run in a round: a long backlog is sent in pieces, with claims in between."""

ShipperOf = Callable[[RunDir, Order], Shipper | None]
End = Callable[[RunDir, Order, float], ExitRecord | None]


def end_and_ship(
    open_run: OpenRun,
    ship: ShipperOf,
    now: float,
    *,
    end: End = end_lost,
) -> bool:
    """End and ship one run without a living keeper; True when nothing is left to do.

    Args:
        ship: makes the shipper of a directory; None while the control plane cannot be asked.
        end: writes the end of a run that has no exit.json.
    """
    if open_run.keeper is not None:
        return False
    with holding(keeper_lock(open_run.path)) as free:
        if not free or living_keeper(open_run.path) is not None:
            return False
        run_dir = RunDir(open_run.path)
        order = load_or_none(run_dir.order, Order)
        if order is None:
            _log.error("%s: no readable order", open_run.run, extra={"action": "end_failed"})
            return False
        exit_record = _load_exit(run_dir) or end(run_dir, order, now)
        if exit_record is None:
            return False
        shipper = ship(run_dir, order)
        return shipper is not None and shipper.finish(exit_record, within_s=SHIP_S)


def _load_exit(run_dir: RunDir) -> ExitRecord | None:
    try:
        return load_record(run_dir.exit, ExitRecord)
    except Corrupt as error:
        run_dir.exit.replace(run_dir.exit.with_name("exit.json.corrupt"))
        _log.error("%s: %s", run_dir.path.name, error, extra={"action": "exit_corrupt"})
        return None
