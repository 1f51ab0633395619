"""What becomes of a run whose keeper is gone? Its end is written and shipped, once.

No exit.json: the keeper was lost, and the run is ended (`gonogo.supervise.lost`). With exit.json
the rest is shipped, after the watch has seen that end where it had not yet
(`gonogo.supervise.late_look`). Whoever reaps holds the run's keeper lock meanwhile, so no keeper,
and no other reaper, works on the directory.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from gonogo.contract.errors import Corrupt
from gonogo.contract.order import Order
from gonogo.contract.records import ExitRecord
from gonogo.rundir import RunDir, load_record
from gonogo.supervise.keeper.living import living_keeper
from gonogo.supervise.late_look import look_late
from gonogo.supervise.locks import holding, keeper_lock
from gonogo.supervise.lost import end_lost
from worker.host.inventory import OpenRun
from worker.shipping.reports import load_or_none
from worker.shipping.shipper import Shipper

_log = logging.getLogger(__name__)

SHIP_S = 2.0
"""Of a round, for one run: a day's backlog is sent in pieces, and what waits is claimed between."""

ShipperOf = Callable[[RunDir, Order], Shipper | None]


End = Callable[[RunDir, Order, float], ExitRecord | None]


def reap(
    open_run: OpenRun,
    ship: ShipperOf,
    now: float,
    *,
    end: End = end_lost,
    environ: Mapping[str, str] | None = None,
) -> bool:
    """End and ship one run without a living keeper; True when nothing is left to do.

    Args:
        open_run: a run of the inventory.
        ship: makes the shipper of a directory; None while the control plane cannot be asked.
        now: Unix seconds.
        end: writes the end of a run that has no exit.json.
        environ: of the watcher that sees an end which nobody saw; None: nobody looks, for keeper
            and watcher were an engine's.
    """
    if open_run.keeper is not None:
        return False
    with holding(keeper_lock(open_run.path)) as free:
        if not free or living_keeper(open_run.path) is not None:
            return False
        run_dir = RunDir(open_run.path)
        order = _load_order(run_dir)
        if order is None:
            return False
        exit_record = _load_exit(run_dir) or end(run_dir, order, now)
        if exit_record is None:
            return False
        if environ is not None:
            look_late(run_dir, environ)
        shipper = ship(run_dir, order)
        return shipper is not None and shipper.finish(exit_record, within_s=SHIP_S)


def _load_order(run_dir: RunDir) -> Order | None:
    order = load_or_none(run_dir.order, Order)
    if order is None:
        _log.error("%s: no readable order", run_dir.path.name, extra={"action": "reap_failed"})
    return order


def _load_exit(run_dir: RunDir) -> ExitRecord | None:
    try:
        return load_record(run_dir.exit, ExitRecord)
    except Corrupt as error:
        _set_aside(run_dir.exit)
        _log.error("%s: %s", run_dir.path.name, error, extra={"action": "exit_corrupt"})
        return None


def _set_aside(path: Path) -> None:
    path.replace(path.with_name(f"{path.name}.corrupt"))
