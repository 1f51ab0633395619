"""What becomes of a run whose keeper is gone? Its end is written and shipped, once.

No exit.json: the keeper was lost. Every process that carries the run's token is ended first and
that is proved; then exit.json says `keeper_lost` (infra), so that the run may resume. With
exit.json only the rest is shipped. Whoever reaps holds the run's keeper lock meanwhile, so no
keeper, and no other reaper, works on the directory.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from gonogo.contract.errors import Corrupt
from gonogo.contract.order import Order
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.contract.records import ExitRecord, RankExit
from gonogo.contract.rundir import RunDir, load_record, save_json
from worker.checks import end_marked
from worker.inventory import OpenRun, living_keeper
from worker.locks import holding, keeper_lock
from worker.reports import load_or_none
from worker.telemetry import Shipper

_log = logging.getLogger(__name__)

ShipperOf = Callable[[RunDir, Order], Shipper | None]


def reap(open_run: OpenRun, ship: ShipperOf, now: float) -> bool:
    """End and ship one run without a living keeper; True when nothing is left to do.

    Args:
        open_run: a run of the inventory.
        ship: makes the shipper of a directory; None while the control plane cannot be asked.
        now: Unix seconds.
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
        exit_record = _load_exit(run_dir) or _end_lost(run_dir, order, now)
        if exit_record is None:
            return False
        shipper = ship(run_dir, order)
        return shipper is not None and shipper.finish(exit_record)


def build_exit_record(
    run_dir: RunDir, *, reason: OutcomeCode, text: str, now: float, world_size: int
) -> ExitRecord:
    """Return the end of a run that infrastructure ended, with what its ranks left."""
    stamps = {
        str(rank): record
        for rank in range(world_size)
        if (record := load_or_none(run_dir.rank_exit(rank), RankExit)) is not None
    }
    return ExitRecord(ended_at=now, ended_by=Actor.INFRA, reason=reason, text=text, ranks=stamps)


def _end_lost(run_dir: RunDir, order: Order, now: float) -> ExitRecord | None:
    """End what is left of a lost run and record it; None when something cannot be ended."""
    if not end_marked(order.run):
        _log.error("%s: processes outlive SIGKILL", order.run, extra={"action": "reap_failed"})
        return None
    launched = (run_dir.path / "keeper.json").exists()
    text = "the keeper was lost" if launched else "the worker was lost before the launch"
    record = build_exit_record(
        run_dir,
        reason=OutcomeCode.KEEPER_LOST,
        text=text,
        now=now,
        world_size=order.world_size,
    )
    save_json(run_dir.exit, record.wire())
    _log.warning("%s: %s", order.run, text, extra={"action": "keeper_lost"})
    return record


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
