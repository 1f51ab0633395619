"""How does a run come to this host? One round: reap, claim over HTTP, launch (`launching`).

Guarantees: a round may be made at any moment, any number of times, by any number of workers of a
home; one at a time holds the launch lock. A run whose directory the file system does not give holds
no other back. Where `runs/` itself is not there (`gonogo.supervise.runs_folder`) none is claimed.
Where the disk takes nothing no run is asked for, and one that was claimed all the same is given
back with the reason.
"""

import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from gonogo import __version__
from gonogo.contract.agent import MOST_WAIT_TEXT, MOST_WAITS, ClaimAnswer, ClaimRequest
from gonogo.contract.errors import NotAllowed, Rejected, Unavailable
from gonogo.contract.order import Order
from gonogo.rundir import RunDir
from gonogo.supervise.given_up import GivenUp, Refusal, load_refusal
from gonogo.supervise.locks import holding, launch_lock
from gonogo.supervise.ordered import put_back
from gonogo.supervise.processes import boot_id
from gonogo.supervise.runs_folder import find_missing, mark_runs
from gonogo.supervise.start import start_draining
from gonogo.supervise.weather import Weather
from worker.backoff import Backoff
from worker.client import ControlPlane
from worker.desk.launching import KEEPER_MODULE, Launch, Launching
from worker.desk.reaper import reap
from worker.desk.refusing import build_refused, try_room
from worker.desk.submitting import Submitting
from worker.engine.reached import save_reached
from worker.engine.submission import load_submission
from worker.host.claim_book import ClaimBook
from worker.host.host_probe import ProbeStore
from worker.host.inventory import Inventory, OpenRun
from worker.host.slots import Slots
from worker.settings import Settings, keeper_environ
from worker.shipping.shipper import Shipper

RETRY = Backoff(first_s=1.0, longest_s=5.0)
REST = Backoff(first_s=10.0, longest_s=600.0, jitter=0.0)
"""How long a host takes nothing after it was not fit for a run: its own affair, so no jitter."""
REAP_S = 20.0
"""After how long of a round no other run is settled: what waits for a claim comes first."""
TELL_AGAIN_S = 600.0
"""How often a control plane may ask for a run that was shipped to its end."""

_log = logging.getLogger(__name__)


def tell_words(waits: Mapping[str, str]) -> dict[str, str]:
    """Return what is to say of runs, as a claim may tell it: so many, in so many characters."""
    told = list(waits.items())[:MOST_WAITS]
    return {run: text[:MOST_WAIT_TEXT].encode(errors="replace").decode() for run, text in told}


@dataclass(slots=True, kw_only=True)
class Desk:
    """Claims runs for the devices of one worker; used from the main thread only."""

    settings: Settings
    name: str
    machine: str
    """What tells this host from every other."""
    slots: Slots
    probes: ProbeStore
    metrics_url: str | None = None
    draining: bool = False
    submitting: Submitting | None = None
    """Hands what is claimed to an engine; None: this host starts it itself."""
    keeper_module: str = KEEPER_MODULE
    wall: Callable[[], float] = time.time
    """The clock of the records that this worker writes."""
    offered: int = 0
    """How many devices the last claim offered; when more are free now, it is time for another."""
    missing: str | None = None
    """Why nothing is claimed: the folder of runs is not there, and what to do."""
    weather: Weather = field(default_factory=lambda: Weather(_log))
    _inventory: Inventory = field(init=False)
    _book: ClaimBook = field(init=False)
    _called_stale: dict[str, float] = field(default_factory=dict)
    _client: ControlPlane | None = None
    _unanswered: type[Exception] | None = None
    """What kept the last claim from an answer, as it was logged; None: it had one."""
    _nodes_know: bool = False
    """Whether an engine's nodes can read where the control plane answers."""
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _retries: dict[str, Backoff] = field(default_factory=dict)
    _rest: Backoff = REST
    _tidied: bool = False
    _told_again: dict[str, float] = field(default_factory=dict)
    _given_up: dict[str, str] = field(default_factory=dict)
    """Run that the control plane asked for last → why somebody gave it up."""
    _refused: dict[str, str] = field(default_factory=dict)
    """Run → why the control plane refuses it, as it was last logged."""

    def __post_init__(self) -> None:
        self._book = ClaimBook(self.settings.home)
        self._inventory = Inventory(self.settings.runs, self.machine, self._book.has_order)

    def run_round(self) -> list[str] | None:
        """Reap what is lost, claim until there is nothing more; return the runs started.

        None when another worker of this home is making a round just now.
        """
        self._children = [child for child in self._children if child.poll() is None]
        started: list[str] = []
        with holding(launch_lock(self.settings.home)) as mine:
            if not mine:
                return None
            if not self._sees_its_runs():
                return started
            if not self._tidied:
                forget = partial(self._book.forget_gone, self.settings.runs, self.wall())
                self.weather.tried("claims", forget, None)
                self._tidied = True
            self._reap_all()
            for _ in range(len(self.slots.names) + 1):
                claim = self._claim()
                if claim is None or claim.order is None:
                    break
                try:
                    if self._begin(claim.order, claim.secret):
                        started.append(claim.order.run)
                except OSError as error:
                    self._give_back(claim.order, claim.secret, error)
            if started:
                self._mark_runs()
        return started

    def _sees_its_runs(self) -> bool:
        """Say whether the folder of runs is there: a claim without it calls all of them dead."""
        look = partial(find_missing, self.settings.home, self.settings.runs)
        unseen: str | None = f"{self.settings.runs} cannot be looked at"
        missing = self.weather.tried("the folder of runs", look, unseen)
        if missing != self.missing:
            text = f"no claim: {missing}" if missing else f"{self.settings.runs} is there"
            level = logging.ERROR if missing else logging.INFO
            _log.log(level, "%s", text, extra={"action": "runs_folder"})
        self.missing = missing
        if missing is None:
            self._mark_runs()
        else:
            self.offered = len(self.free())  # it is looked for again in a while, not at once
        return missing is None

    def _mark_runs(self) -> None:
        mark = partial(mark_runs, self.settings.home, self.settings.runs)
        self.weather.tried("the id of the folder of runs", mark, None)

    def _begin(self, order: Order, secret: str | None) -> bool:
        """Start a claimed run, or hand it to the engine; say whether it is on its way.

        Raises:
            OSError: its directory could not be made or written to; nothing was started.
        """
        given_up = self._inventory.given_up(order.run)
        if given_up is not None:  # it had not begun, as far as is known there: the next claim says
            self._given_up[order.run] = given_up.reason
            return False
        self._inventory.expect(order.run)
        if self.submitting is not None:
            return self.submitting.accept(order, secret, self._shipper)
        launch = self._launch(order, secret)
        if launch.keeper is not None:
            self._rest = REST
            self._children.append(launch.keeper)
        elif launch.host_unfit:
            self._take_a_rest("not fit")
        return launch.keeper is not None

    def _give_back(self, order: Order, secret: str | None, error: OSError) -> None:
        """End a run that the disk did not take, by word alone, so that another host may have it."""
        text = f"the run's directory cannot be written to on {self.settings.host}: {error}"
        _log.error("%s: %s", order.run, text, extra={"action": "run_given_back"})
        self._take_a_rest("its disk takes no run")
        key = self.settings.key()
        try:
            with ControlPlane(self.settings.url, key, secret_of=lambda run: secret) as client:
                client.post_state(order.run, build_refused(order, text, self.wall()))
        except (Unavailable, Rejected) as unsaid:  # it is given out again, and given back then
            _log.warning("%s: %s", order.run, unsaid, extra={"action": "give_back_waits"})

    def free(self) -> tuple[str, ...]:
        """Return the devices that no keeper holds and that are fit; none while the host rests."""
        if time.monotonic() < self._rest.not_before:
            return ()
        if self.submitting is not None:  # nothing is locked here: what is open takes a place
            taken = len(self._inventory.open_runs())
            return self.slots.names[: max(0, len(self.slots.names) - taken)]
        return self.slots.free(self.wall())

    def close(self) -> None:
        """Let go of the connection and of a measurement under way; runs live on."""
        self.probes.stop()
        self._forget_client()

    def _reap_all(self) -> None:
        """End and ship what has no keeper; a run that cannot be shipped waits ever longer."""
        now = time.monotonic()
        runs = self._inventory.open_runs()
        if self.submitting is not None:
            self.submitting.see_off(self._inventory.told)
        due = [(self._retries.get(run.run, RETRY), run) for run in runs]
        # Whoever was not come to is first in the next round.
        for retry, run in sorted(due, key=lambda each: each[0].not_before):
            if run.unseen is not None:  # another machine's, perhaps, where it lives
                self.weather.note(run.run, run.unseen)
                continue
            if run.keeper is not None or now < retry.not_before:
                continue
            if time.monotonic() - now >= REAP_S:
                return
            unseen: bool | None = False
            reaped = self.weather.tried(run.run, partial(self._settle_alone, run), unseen)
            if reaped:
                self._retries.pop(run.run, None)
            elif reaped is not None:
                self._retries[run.run] = retry.later(time.monotonic())
                self._tell_refused(run)

    def _tell_refused(self, run: OpenRun) -> None:
        """Say, once for each answer, that the control plane refuses a run, and what to type."""
        unseen: Refusal | None = None
        look = partial(load_refusal, run.path)
        found = self.weather.tried(f"what is refused of {run.run}", look, unseen)
        if found is not None and self._refused.get(run.run) != found.text:
            self._refused[run.run] = found.text
            text = "%s: the control plane refuses it, and may for ever: %s; it is kept, and given"
            text += " up by nobody but you: %s"
            _log.error(text, run.run, found.text, found.way_out, extra={"action": "run_refused"})

    def _settle_alone(self, run: OpenRun) -> bool | None:
        """Look after a run; whatever stands in its directory is no other run's affair.

        Raises:
            OSError: its directory can be neither read nor written just now.
        """
        try:
            ordered = self._book.load_order(run.run)
            if ordered is not None:
                put_back(run.path, ordered)
            return self._settle(run)
        except OSError:
            raise
        except Exception:  # noqa: BLE001 - the edge of one run: the round goes on without it
            _log.exception("%s: cannot be looked after", run.run, extra={"action": "run_broke"})
            return False

    def _settle(self, run: OpenRun) -> bool | None:
        """Look after a run without a keeper; True when nothing is left to do, None: it goes on.

        Raises:
            OSError: its directory can be neither read nor written just now.
        """
        if load_submission(run.path) is None:
            return self._reap(run)
        reaped = self.submitting is not None and self.submitting.settle(run, self._shipper)
        if not reaped and not run.ended:
            return None  # it goes on, or is of an engine that this worker cannot ask
        return reaped

    def _reap(self, run: OpenRun) -> bool:
        """End and ship what has no keeper, and have the GPUs that it held proven free.

        Its end is written once: they are looked at then, whatever becomes of the telling.
        """
        was_ended = run.ended
        try:
            environ = keeper_environ(self.settings, None)
            return reap(run, self._shipper, self.wall(), environ=environ)
        finally:
            if not was_ended and run.ended:
                none: subprocess.Popen[bytes] | None = None
                drain = partial(self._drain, run)
                draining = self.weather.tried(f"the devices of {run.run}", drain, none)
                self._children += [] if draining is None else [draining]

    def _drain(self, run: OpenRun) -> "subprocess.Popen[bytes] | None":
        """Have the GPUs of a run that was ended here proven free."""
        return start_draining(
            run.path,
            home=self.settings.home,
            locks=self.slots.locks,
            environ=keeper_environ(self.settings, None),
        )

    def _shipper(self, run_dir: RunDir, order: Order) -> Shipper | None:
        client = self._connect()
        if client is None:
            return None
        return Shipper(run_dir, order.run, order.token, client, called_stale=self._called_stale)

    def _take_a_rest(self, why: str) -> None:
        """Take nothing for a while, so that a sick host does not fail every run of the queue."""
        self._rest = self._rest.later(time.monotonic())
        text = "%s: takes nothing for %g s"
        _log.error(text, why, self._rest.pause_s, extra={"action": "host_rests"})

    def _offer(self) -> tuple[str, ...]:
        """Return what is free for a claim: nothing where the disk would not take the run."""
        free = self.free()
        if free:
            try:
                try_room(self.settings.home, self.settings.runs)
            except OSError as error:
                self._take_a_rest(f"its disk takes no run ({error})")
                return ()
        return free

    def _launch(self, order: Order, secret: str | None) -> Launch:
        """Start what was claimed, on the devices that are free."""
        launching = Launching(
            settings=self.settings,
            machine=self.machine,
            locks=self.slots.locks,
            book=self._book,
            probes=self.probes,
            keeper_module=self.keeper_module,
            wall=self.wall,
        )
        return launching.accept(order, secret, self._shipper, self.free())

    def _claim(self) -> ClaimAnswer | None:
        """Offer what is free; return a claim or None (nothing to do, or nobody to ask)."""
        free = self._offer()
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
            waits={} if self.submitting is None else tell_words(self.submitting.waits),
            allow=list(self.settings.allow),
            allow_env=list(self.settings.allow_env),
            engine=self.settings.engine,
            metrics_url=self.metrics_url,
            draining=self.draining,
            tells_again=True,
            lets_go=True,
            given_up=tell_words(self._given_up),
        )
        try:
            claim = client.post_claim(request)
        except (Unavailable, Rejected) as error:
            self._note_unreachable(error)
            return None
        if self._unanswered is not None:
            _log.info("the control plane answers again", extra={"action": "reachable"})
        self._unanswered = None
        self._tell_again(claim.untold)
        if self.submitting is not None:
            self.submitting.over = frozenset(claim.over)
            self._tell_nodes()
        return claim

    def _tell_nodes(self) -> None:
        """Say where the control plane answers: what runs may have been submitted with another."""
        if not self._nodes_know:
            put = partial(save_reached, self.settings.home, self.settings.url)
            self._nodes_know = self.weather.tried("the address for nodes", put, False)

    def _tell_again(self, runs: list[str]) -> None:
        """Have what was shipped shipped once more: a database of before was restored.

        Of what was given up the next claim says so.
        """
        now = time.monotonic()
        unseen: GivenUp | None = None
        asked_for = {
            run: self.weather.tried(run, partial(self._inventory.given_up, run), unseen)
            for run in runs
        }
        self._given_up = {run: word.reason for run, word in asked_for.items() if word is not None}
        for run in runs:
            asked = self._told_again.get(run, float("-inf"))
            if now - asked >= TELL_AGAIN_S and self.weather.tried(
                run, partial(self._inventory.reopen, run), False
            ):
                self._told_again[run] = now
                _log.warning("%s: is told again", run, extra={"action": "told_again"})

    def _connect(self) -> ControlPlane | None:
        """Return the client; None while there is no key yet."""
        if self._client is None:
            key = self.settings.key()
            if key is None:
                return None
            self._client = ControlPlane(self.settings.url, key, secret_of=self._book.load)
        return self._client

    def _note_unreachable(self, error: Exception) -> None:
        kind = Unavailable if isinstance(error, Unavailable) else type(error)
        if self._unanswered is not kind:
            whose = f"; its key is of {self.settings.key_place()}"
            text = f"{error}{whose if isinstance(error, NotAllowed) else ''}"
            _log.warning("no claim: %s", text, extra={"action": "claim_failed"})
        self._unanswered, self._nodes_know = kind, False
        if isinstance(error, NotAllowed):
            self._forget_client()  # the key may have been made anew

    def _forget_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
