"""One round of the worker: end what is lost, claim over HTTP, launch.

A round may be made at any moment, any number of times, by any number of workers of a home; one at a
time holds the launch lock. A run whose directory cannot be read holds no other run back. A worker
whose disk takes no run claims none for a while.
"""

import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from gonogo import __version__
from gonogo.contract.errors import NotAllowed, Rejected, Unavailable
from gonogo.contract.order import Order
from gonogo.contract.worker_messages import MOST_WAIT_TEXT, MOST_WAITS, ClaimAnswer, ClaimRequest
from gonogo.rundir import RunDir
from gonogo.supervise.keeper_start import start_draining
from gonogo.supervise.locks import holding, launch_lock
from gonogo.supervise.processes import boot_id
from gonogo.supervise.transient_errors import TransientErrors
from worker.claims.engine_runs import (
    KEEPER_MODULE,
    EngineRuns,
    HostUnfit,
    end_and_ship,
    launch,
    prepare_dir,
)
from worker.client import Backoff, ControlPlane
from worker.engine.engine import load_submission, save_control_plane_url
from worker.host.home import ClaimSecrets, OpenRun, RunInventory
from worker.host.preflight import ProbeStore
from worker.host.slots import Slots
from worker.settings import Settings, keeper_environ
from worker.shipping.shipper import Shipper

RETRY = Backoff(first_s=1.0, longest_s=5.0)
REST = Backoff(first_s=10.0, longest_s=600.0, jitter=0.0)
"""How long an unfit host claims nothing."""
SEND_AGAIN_S = 600.0
"""How often a control plane may ask again for a run that was shipped to its end."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Claimer:
    """Claims runs for the devices of one worker; used from the main thread only."""

    settings: Settings
    name: str
    machine: str
    """The id of this machine."""
    slots: Slots
    probes: ProbeStore
    metrics_url: str | None = None
    draining: bool = False
    engine_runs: EngineRuns | None = None
    """Hands claimed runs to an engine; None: this host starts them itself."""
    keeper_module: str = KEEPER_MODULE
    wall: Callable[[], float] = time.time
    offered: int = 0
    """How many devices the last claim offered; when more are free, another claim is due."""
    transient: TransientErrors = field(default_factory=lambda: TransientErrors(_log))
    _inventory: RunInventory = field(init=False)
    _secrets: ClaimSecrets = field(init=False)
    _client: ControlPlane | None = None
    _unanswered: type[Exception] | None = None
    """What kept the last claim from an answer, as it was logged; None: it had one."""
    _url_saved: bool = False
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _retries: dict[str, Backoff] = field(default_factory=dict)
    _rest: Backoff = REST
    _sent_again: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._secrets = ClaimSecrets(self.settings.home)
        self._inventory = RunInventory(self.settings.runs, self.machine)

    def run_round(self) -> list[str] | None:
        """End what is lost and claim; return the runs started; None: another makes a round now."""
        self._children = [child for child in self._children if child.poll() is None]
        started: list[str] = []
        with holding(launch_lock(self.settings.home)) as mine:
            if not mine:
                return None
            self._settle_all()
            for _ in range(len(self.slots.names) + 1):
                claim = self._claim()
                if claim is None or claim.order is None:
                    break
                try:
                    if self._begin(claim.order, claim.secret):
                        started.append(claim.order.run)
                except OSError as error:  # the control plane gives it out again
                    self._rest_now(f"{claim.order.run} cannot be written here: {error}")
        return started

    def _begin(self, order: Order, secret: str | None) -> bool:
        """Start a claimed run, or hand it to the engine; say whether it is on its way."""
        self._inventory.expect(order.run)
        if self.engine_runs is not None:
            return self.engine_runs.accept(order, secret, self._shipper)
        prepared = prepare_dir(
            order,
            secret,
            self._shipper,
            runs=self.settings.runs,
            secrets=self._secrets,
            machine=self.machine,
        )
        if prepared is None:
            return False
        try:
            keeper = launch(
                order,
                prepared,
                self.free(),
                settings=self.settings,
                locks=self.slots.locks,
                probes=self.probes,
                keeper_module=self.keeper_module,
                now=self.wall(),
            )
        except HostUnfit:
            self._rest_now("this host is not fit")
            return False
        if keeper is not None:
            self._rest = REST
            self._children.append(keeper)
        return keeper is not None

    def free(self) -> tuple[str, ...]:
        """Return the fit devices that no keeper holds; none while the host rests."""
        if time.monotonic() < self._rest.not_before:
            return ()
        if self.engine_runs is not None:  # nothing is locked here: each open run takes a slot
            taken = len(self._inventory.open_runs())
            return self.slots.names[: max(0, len(self.slots.names) - taken)]
        return self.slots.free(self.wall())

    def close(self) -> None:
        """Close the connection and stop a measurement; runs live on."""
        self.probes.stop()
        self._forget_client()

    def _settle_all(self) -> None:
        """End and ship what has no keeper; a run that cannot be shipped waits ever longer."""
        now = time.monotonic()
        for run in self._inventory.open_runs():
            retry = self._retries.get(run.run, RETRY)
            if run.unread is not None:
                self.transient.note(run.run, run.unread)
                continue
            if run.keeper is not None or now < retry.not_before:
                continue
            unread: bool | None = False
            settled = self.transient.tried(run.run, partial(self._settle, run), unread)
            if settled:
                self._retries.pop(run.run, None)
            elif settled is not None:
                self._retries[run.run] = retry.later(time.monotonic())

    def _settle(self, run: OpenRun) -> bool | None:
        """Settle a run without a keeper; True when nothing is left to do, None: it continues."""
        try:
            if load_submission(run.path) is None:
                return self._end(run)
            settled = self.engine_runs is not None and self.engine_runs.settle(run, self._shipper)
        except OSError:
            raise
        except Exception:  # noqa: BLE001 - the edge of one run: the round goes on without it
            _log.exception("%s: cannot be settled", run.run, extra={"action": "run_broke"})
            return False
        return settled if settled or run.ended else None

    def _end(self, run: OpenRun) -> bool:
        was_ended = run.ended
        try:
            return end_and_ship(run, self._shipper, self.wall())
        finally:
            if not was_ended and run.ended:
                none: subprocess.Popen[bytes] | None = None
                drain = partial(
                    start_draining,
                    run.path,
                    home=self.settings.home,
                    locks=self.slots.locks,
                    environ=keeper_environ(self.settings, None),
                )
                draining = self.transient.tried(f"the devices of {run.run}", drain, none)
                self._children += [] if draining is None else [draining]

    def _shipper(self, run_dir: RunDir, order: Order) -> Shipper | None:
        client = self._connect()
        if client is None:
            return None
        return Shipper(run_dir, order.run, order.token, client)

    def _rest_now(self, why: str) -> None:
        """Claim nothing for a while, so that a sick host does not fail every run of the queue."""
        self._rest = self._rest.later(time.monotonic())
        _log.error(
            "%s: claims nothing for %g s", why, self._rest.pause_s, extra={"action": "host_rests"}
        )

    def _claim(self) -> ClaimAnswer | None:
        """Offer what is free; return the answer, or None when nobody answers."""
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
            devices=list(self.slots.names),
            free=list(free),
            active=[run.run for run in self._inventory.open_runs()],
            waits={} if self.engine_runs is None else shorten(self.engine_runs.waits),
            allow=list(self.settings.allow),
            allow_env=list(self.settings.allow_env),
            engine=self.settings.engine,
            metrics_url=self.metrics_url,
            draining=self.draining,
        )
        try:
            claim = client.post_claim(request)
        except (Unavailable, Rejected) as error:
            self._note_unreachable(error)
            return None
        if self._unanswered is not None:
            _log.info("the control plane answers again", extra={"action": "reachable"})
        self._unanswered = None
        self._send_again(claim.untold)
        if self.engine_runs is not None:
            self.engine_runs.over = frozenset(claim.over)
            if not self._url_saved:
                save = partial(save_control_plane_url, self.settings.home, self.settings.url)
                self._url_saved = self.transient.tried("the address for nodes", save, False)
        return claim

    def _send_again(self, runs: list[str]) -> None:
        """Ship again what was shipped: an older database was restored."""
        now = time.monotonic()
        for run in runs:
            asked = self._sent_again.get(run, float("-inf"))
            if now - asked >= SEND_AGAIN_S and self.transient.tried(
                run, partial(self._inventory.reopen, run), False
            ):
                self._sent_again[run] = now
                _log.warning("%s: is shipped again", run, extra={"action": "sent_again"})

    def _connect(self) -> ControlPlane | None:
        if self._client is None:
            key = self.settings.key()
            if key is None:
                return None
            self._client = ControlPlane(self.settings.url, key, secret_of=self._secrets.load)
        return self._client

    def _note_unreachable(self, error: Exception) -> None:
        kind = Unavailable if isinstance(error, Unavailable) else type(error)
        if self._unanswered is not kind:
            whose = f"; its key is of {self.settings.key_place()}"
            text = f"{error}{whose if isinstance(error, NotAllowed) else ''}"
            _log.warning("no claim: %s", text, extra={"action": "claim_failed"})
        self._unanswered, self._url_saved = kind, False
        if isinstance(error, NotAllowed):
            self._forget_client()  # the key may be new

    def _forget_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def shorten(texts: Mapping[str, str]) -> dict[str, str]:
    """Return run → text within the limits of a claim."""
    first = list(texts.items())[:MOST_WAITS]
    return {run: text[:MOST_WAIT_TEXT].encode(errors="replace").decode() for run, text in first}
