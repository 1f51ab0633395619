"""How does a run come to this host? One round: reap, claim over HTTP, preflight, start its keeper.

Guarantees: a round may be made at any moment, any number of times, by any number of workers of a
home; one at a time holds the launch lock. The order is on disk before anything acts on it, so a
worker killed at any point leaves a run that either was never begun (the control plane gives it out
again, or the reaper ends it as infra) or has a keeper. A stale token starts nothing.
"""

import logging
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from gonogo import __version__
from gonogo.contract.agent import ClaimAnswer, ClaimRequest
from gonogo.contract.errors import Corrupt, NotAllowed, Rejected, Unavailable
from gonogo.contract.ids import Kind, is_id
from gonogo.contract.order import Order
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.records import Check, CheckOutcome, Preflight
from gonogo.planning.resolve import checkout_root
from gonogo.rundir import RunDir, load_record, save_json
from gonogo.supervise.locks import holding, launch_lock
from gonogo.supervise.lost import build_infra_exit
from gonogo.supervise.processes import boot_id
from gonogo.supervise.start import start_keeper
from worker.claims import ClaimBook, mark_claimed
from worker.client import ControlPlane
from worker.inventory import Inventory
from worker.preflight import run_preflight
from worker.probe import ProbeStore
from worker.reaper import reap
from worker.settings import Settings, keeper_environ
from worker.slots import choose_devices, free_devices
from worker.telemetry import Shipper

KEEPER_MODULE = "worker.keeper"
LONGEST_PAUSE_S = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """When a run that could not be shipped is tried again; seconds of the monotonic clock."""

    not_before: float = float("-inf")
    pause_s: float = 1.0

    def later(self, now: float) -> Self:
        """Return the next attempt after one that failed now."""
        return replace(
            self, not_before=now + self.pause_s, pause_s=min(LONGEST_PAUSE_S, 2 * self.pause_s)
        )


@dataclass(slots=True, kw_only=True)
class Desk:
    """Claims runs for the devices of one worker; used from the main thread only."""

    settings: Settings
    name: str
    machine: str
    """What tells this host from every other."""
    devices: tuple[str, ...]
    probes: ProbeStore
    metrics_url: str | None = None
    draining: bool = False
    keeper_module: str = KEEPER_MODULE
    wall: Callable[[], float] = time.time
    """The clock of the records that this worker writes."""
    offered: int = 0
    """How many devices the last claim offered; when more are free now, it is time for another."""
    _inventory: Inventory = field(init=False)
    _book: ClaimBook = field(init=False)
    _called_stale: dict[str, float] = field(default_factory=dict)
    _client: ControlPlane | None = None
    _reachable: bool = True
    _keepers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _retries: dict[str, Retry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._inventory = Inventory(self.settings.runs, self.machine)
        self._book = ClaimBook(self.settings.home)

    def run_round(self) -> list[str] | None:
        """Reap what is lost, claim until there is nothing more; return the runs started.

        None when another worker of this home is making a round just now.
        """
        self._keepers = [keeper for keeper in self._keepers if keeper.poll() is None]
        started: list[str] = []
        with holding(launch_lock(self.settings.home)) as mine:
            if not mine:
                return None
            self._reap_all()
            for _ in range(len(self.devices) + 1):
                claim = self._claim()
                if claim is None or claim.order is None:
                    break
                if self._accept(claim.order, claim.secret):
                    started.append(claim.order.run)
        return started

    def free(self) -> tuple[str, ...]:
        """Return the devices that no keeper holds."""
        return free_devices(self.settings.home, self.devices)

    def close(self) -> None:
        """Let go of the connection and of a measurement under way; runs live on."""
        self.probes.stop()
        self._forget_client()

    def _reap_all(self) -> None:
        """End and ship what has no keeper; a run that cannot be shipped waits ever longer."""
        now = time.monotonic()
        for run in self._inventory.open_runs():
            retry = self._retries.get(run.run, Retry())
            if run.keeper is not None or now < retry.not_before:
                continue
            if reap(run, self._shipper, self.wall()):
                self._retries.pop(run.run, None)
                self._book.forget(run.run)
            else:
                self._retries[run.run] = retry.later(time.monotonic())

    def _shipper(self, run_dir: RunDir, order: Order) -> Shipper | None:
        client = self._connect()
        if client is None:
            return None
        return Shipper(run_dir, order.run, order.token, client, called_stale=self._called_stale)

    def _claim(self) -> ClaimAnswer | None:
        """Offer what is free; return a claim or None (nothing to do, or nobody to ask)."""
        free = self.free()
        self.offered = len(free)
        client = self._connect()
        if client is None:
            return None
        request = ClaimRequest(
            worker=self.name,
            host=self.settings.host,
            boot_id=boot_id(),
            machine_id=self.machine,
            pid=os.getpid(),
            version=__version__,
            labels=dict(self.settings.labels),
            devices=list(self.devices),
            free=list(free),
            active=[run.run for run in self._inventory.open_runs()],
            allow=list(self.settings.allow),
            allow_env=list(self.settings.allow_env),
            metrics_url=self.metrics_url,
            draining=self.draining,
        )
        try:
            claim = client.post_claim(request)
        except (Unavailable, Rejected) as error:
            self._note_unreachable(error)
            return None
        if not self._reachable:
            _log.info("the control plane answers again", extra={"action": "reachable"})
        self._reachable = True
        return claim

    def _accept(self, order: Order, secret: str | None) -> bool:
        """Make the run's directory, check the host, start the keeper; True when it lives."""
        if not is_id(order.run, Kind.RUN):
            _log.error("no run id: %r", order.run, extra={"action": "order_refused"})
            return False
        path = self.settings.runs / order.run
        if not make_room(path, order):
            _log.warning("%s: given out twice", order.run, extra={"action": "order_repeated"})
            return False
        run_dir = RunDir(path)
        self._book.save(order.run, secret)
        mark_claimed(path, self.machine, boot_id())
        save_json(run_dir.order, order.document())
        shipper = self._shipper(run_dir, order)
        if shipper is None:
            return False
        shipper.report()
        if shipper.stale:
            return False
        return self._launch(order, run_dir, shipper)

    def _launch(self, order: Order, run_dir: RunDir, shipper: Shipper) -> bool:
        devices = choose_devices(order, self.free())
        record = run_preflight(
            order,
            run_dir,
            devices=devices,
            store=self.probes,
            script=self.settings.devices_script,
        )
        if not record.passed or devices is None:
            self._end_unfit(order, run_dir, shipper, record)
            return False
        shipper.report()
        if shipper.stale:
            return False
        environ = keeper_environ(self.settings, self.settings.key())
        try:
            keeper = start_keeper(
                run_dir.path,
                home=self.settings.home,
                devices=devices,
                environ=environ,
                cwd=checkout_root(),
                module=self.keeper_module,
                options=[
                    *(part for name in self.settings.allow for part in ("--allow", name)),
                    *(part for name in self.settings.allow_env for part in ("--allow-env", name)),
                ],
            )
        except OSError as error:
            text = f"the keeper cannot be started: {error}"
            failed = Check(id="keeper", outcome=CheckOutcome.FAIL, text=text)
            self._end_unfit(order, run_dir, shipper, Preflight(passed=False, checks=[failed]))
            return False
        self._keepers.append(keeper)
        _log.info("%s started on %s", order.run, devices, extra={"action": "run_started"})
        return True

    def _end_unfit(
        self, order: Order, run_dir: RunDir, shipper: Shipper, record: Preflight
    ) -> None:
        """End a run that this host is not fit for."""
        failed = [
            f"{check.id}: {check.text}"
            for check in record.checks
            if check.outcome is CheckOutcome.FAIL
        ]
        exit_record = build_infra_exit(
            run_dir,
            order,
            reason=OutcomeCode.PREFLIGHT_FAILED,
            text="; ".join(failed),
            now=self.wall(),
        )
        save_json(run_dir.exit, exit_record.wire())
        _log.error("%s: %s", order.run, exit_record.text, extra={"action": "preflight_failed"})
        shipper.finish(exit_record)

    def _connect(self) -> ControlPlane | None:
        """Return the client; None while there is no key yet."""
        if self._client is None:
            key = self.settings.key()
            if key is None:
                return None
            self._client = ControlPlane(self.settings.url, key, secret_of=self._book.load)
        return self._client

    def _note_unreachable(self, error: Exception) -> None:
        if self._reachable:
            _log.warning("no claim: %s", error, extra={"action": "claim_failed"})
        self._reachable = False
        if isinstance(error, NotAllowed):
            self._forget_client()  # the key may have been made anew

    def _forget_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def make_room(path: Path, order: Order) -> bool:
    """Make the directory of a run; an older claim's, that came to nothing, is set aside.

    Returns False when the directory belongs to this very claim, or to a newer one.
    """
    path.mkdir(parents=True, exist_ok=True)
    stored = path / "order.json"
    if not stored.exists():
        return True
    try:
        before = load_record(stored, Order)
    except Corrupt:
        before = None
    if before is not None and before.token >= order.token:
        return False
    path.rename(path.with_name(f".{path.name}.{before.token if before else 0}.{time.time_ns()}"))
    path.mkdir()
    return True
