"""Starts a claimed run: its directory, the checks of this host, its keeper.

The order is on disk before anything acts on it. A worker that is killed at any point leaves a run
that has a keeper, or that was never begun and is given out again. A stale token starts nothing.
"""

import logging
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gonogo.contract.errors import Corrupt
from gonogo.contract.order import Order
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.records import CheckOutcome, ExitRecord
from gonogo.contract.wire import Kind, is_id
from gonogo.files import is_there
from gonogo.planning.resolve import checkout_root
from gonogo.rundir import RunDir, load_record, save_json
from gonogo.supervise.keeper_start import start_keeper
from gonogo.supervise.locks import DeviceLocks, holding, keeper_lock
from gonogo.supervise.lost_run import build_infra_exit, end_lost
from gonogo.supervise.process_records import is_kept_here, living_keeper
from gonogo.supervise.processes import boot_id
from worker.host.home import ClaimSecrets, OpenRun, mark_machine
from worker.host.preflight import ProbeStore, run_preflight
from worker.host.slots import choose_devices, quarantine_devices
from worker.settings import Settings, keeper_environ
from worker.shipping.reports import load_or_none
from worker.shipping.shipper import Shipper

KEEPER_MODULE = "worker.keeper_process"

_log = logging.getLogger(__name__)

Keeper = subprocess.Popen[bytes]
ShipperOf = Callable[[RunDir, Order], Shipper | None]
End = Callable[[RunDir, Order, float], ExitRecord | None]


class HostUnfit(Exception):
    """This host would not be fit for the next run either."""


def launch(
    order: Order,
    prepared: tuple[RunDir, Shipper],
    free: Sequence[str],
    *,
    settings: Settings,
    locks: DeviceLocks,
    probes: ProbeStore,
    keeper_module: str,
    now: float,
) -> Keeper | None:
    """Check the host and start the keeper; None: the run is another's by now, or has ended.

    Args:
        free: the devices that nobody holds.

    Raises:
        HostUnfit: it is not fit for any run, and this one has ended.
    """
    run_dir, shipper = prepared
    devices = choose_devices(order, free)
    record = run_preflight(
        order, run_dir, devices=devices, store=probes, script=settings.devices_script
    )
    if not record.passed or devices is None:
        quarantine_devices(settings.home, record.unfit, now)
        failed = [row for row in record.checks if row.outcome is CheckOutcome.FAIL]
        text = "; ".join(f"{row.id}: {row.text}" for row in failed)
        _end_unfit(order, prepared, text, now)
        if devices is not None and record.host_is_unfit():
            raise HostUnfit(text)
        return None
    shipper.ship(time.monotonic())  # checks take minutes: the run may be another's by now
    if shipper.fenced:
        return None
    try:
        keeper = start_keeper(
            run_dir.path,
            home=settings.home,
            locks=locks,
            devices=devices,
            environ=keeper_environ(settings, settings.key()),
            cwd=checkout_root(),
            module=keeper_module,
            options=[
                *(part for name in settings.allow for part in ("--allow", name)),
                *(part for name in settings.allow_env for part in ("--allow-env", name)),
            ],
        )
    except OSError as error:
        text = f"keeper: the keeper cannot be started: {error}"
        _end_unfit(order, prepared, text, now)
        raise HostUnfit(text) from error
    _log.info("%s started on %s", order.run, devices, extra={"action": "run_started"})
    return keeper


def _end_unfit(order: Order, prepared: tuple[RunDir, Shipper], text: str, now: float) -> None:
    run_dir, shipper = prepared
    reason = OutcomeCode.PREFLIGHT_FAILED
    record = build_infra_exit(run_dir, order, reason=reason, text=text, now=now)
    save_json(run_dir.exit, record.wire())
    _log.error("%s: %s", order.run, text, extra={"action": "preflight_failed"})
    shipper.finish(record)


def prepare_dir(
    order: Order,
    secret: str | None,
    ship: ShipperOf,
    *,
    runs: Path,
    secrets: ClaimSecrets,
    machine: str,
    mark: Callable[[Path], None] = lambda path: None,
) -> tuple[RunDir, Shipper] | None:
    """Make the directory of a claimed run; None where nothing of it may be started now.

    Args:
        ship: makes the shipper of a directory; None while the control plane cannot be asked.
        mark: writes what else must lie there before the order.
    """
    if not is_id(order.run, Kind.RUN):
        _log.error("no run id: %r", order.run, extra={"action": "order_refused"})
        return None
    path = runs / order.run
    if not make_room(path, order):
        _log.warning("%s: given out twice", order.run, extra={"action": "order_repeated"})
        return None
    run_dir = RunDir(path)
    secrets.save(order.run, secret)
    mark_machine(path, machine, boot_id())
    mark(path)
    save_json(run_dir.order, order.document())
    shipper = ship(run_dir, order)
    if shipper is None:
        return None
    shipper.report()
    return None if shipper.fenced else (run_dir, shipper)


def make_room(path: Path, order: Order) -> bool:
    """Make the directory of a run; the one of an older claim is set aside.

    False when the directory belongs to this claim, to a newer one, or to a living keeper.
    """
    path.mkdir(parents=True, exist_ok=True)
    stored = path / "order.json"
    if not is_there(stored):
        return True
    try:
        before = load_record(stored, Order)
    except Corrupt:
        before = None
    lives = is_kept_here(path) and not is_there(path / "exit.json")
    if lives or (before is not None and before.token >= order.token):
        return False
    path.rename(path.with_name(f".{path.name}.{before.token if before else 0}.{time.time_ns()}"))
    path.mkdir()
    return True


SHIP_S = 2.0
"""Time for one run in a round: a long backlog is sent in pieces, with claims in between."""


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
