"""Hands claimed runs to an engine and settles them.

An attempt is submitted once, whatever is killed in between. Only a proof of the engine ends an
attempt that wrote no end itself. What the engine does not know is left alone; a person has
`gonogo takeover`. The attempt's own exit.json goes before everything.
"""

import logging
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gonogo.contract.errors import Corrupt, Rejected, Unavailable
from gonogo.contract.order import Order, RunReason
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.contract.records import CheckOutcome, ExitRecord
from gonogo.contract.wire import Kind, is_id
from gonogo.contract.worker_messages import Command, CommandKind
from gonogo.files import is_there
from gonogo.planning.resolve import checkout_root
from gonogo.rundir import SHIPPED_NAME, RunDir, load_record, save_json
from gonogo.supervise.end_request import EndRequest, ask_halt, asked_by
from gonogo.supervise.exit_record import build_refusal
from gonogo.supervise.keeper_start import start_keeper
from gonogo.supervise.locks import DeviceLocks, holding, keeper_lock
from gonogo.supervise.lost_run import build_infra_exit, end_lost
from gonogo.supervise.process_records import (
    EXIT_NAME,
    GONE_NAME,
    MET_NAME,
    is_kept_here,
    living_keeper,
)
from gonogo.supervise.processes import boot_id
from worker.engine.engine import (
    Ended,
    Engine,
    Found,
    Handle,
    Running,
    Unknown,
    load_submission,
    save_submission,
)
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
    """Check the host and start the keeper; None: the run is another's by now, or has ended."""
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
    """Make the directory of a claimed run; None where nothing of it may be started now."""
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
    """Make a run's directory, setting an older claim's aside; False: it is in use, or newer."""
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
    """End and ship one run without a living keeper; True when nothing is left to do."""
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


SEEN_LIMIT_S = 60.0
"""How long a shared file system may take to show what a node has written last."""
LOOK_EVERY_S = 5.0
"""How often an engine is asked about a run."""
SLOW_S, REST_S = 5.0, 15.0
"""After an engine took so long to answer nothing, it is not asked for a while."""
_REASON = {
    CommandKind.HALT: OutcomeCode.HALTED,
    CommandKind.CANCEL: OutcomeCode.CANCELLED,
    CommandKind.SUPERSEDE: OutcomeCode.SUPERSEDED,
}
_ACCEPTED_BEFORE = frozenset(
    {RunReason.RESUME, RunReason.TAKEOVER, RunReason.CONFIRM, RunReason.REMEDY}
)
"""Reasons of an attempt that follows one which the engine has started."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class EngineRuns:
    """Hands runs to an engine, while the worker holds the launch lock."""

    engine: Engine
    name: str
    """Name of the engine."""
    runs: Path
    machine: str
    secrets: ClaimSecrets
    wall: Callable[[], float] = time.time
    seen_limit_s: float = SEEN_LIMIT_S
    look_every_s: float = LOOK_EVERY_S
    _ended_at: dict[str, float] = field(default_factory=dict)
    """Run → when (monotonic clock) its engine began to call it ended."""
    _look_at: dict[str, float] = field(default_factory=dict)
    """Run → when (monotonic clock) its engine is asked again."""
    _rests_until: float = 0.0
    """Until when (monotonic clock) the engine is asked nothing."""
    _logged: dict[str, str] = field(default_factory=dict)
    waits: dict[str, str] = field(default_factory=dict)
    """Run → what it waits for, or why nothing is heard of it, in the engine's words."""
    over: frozenset[str] = frozenset()
    """Runs that a person has declared dead."""

    def accept(self, order: Order, secret: str | None, ship: ShipperOf) -> bool:
        """Make the run's directory and submit it; False where it is not ours to begin."""
        prepared = prepare_dir(
            order,
            secret,
            ship,
            runs=self.runs,
            secrets=self.secrets,
            machine=self.machine,
            mark=partial(save_submission, engine=self.name),
        )
        if prepared is None:
            return False
        try:
            self._submit(prepared[0], order)
        except OSError as error:  # the next look asks the engine by the attempt's name
            _log.warning("%s: %s", order.run, error, extra={"action": "submit_unwritten"})
        return True

    def settle(self, run: OpenRun, ship: ShipperOf) -> bool:
        """Look after a run of the engine; True when nothing is left to do."""
        done = self._settle(run, ship)
        if done:
            for notes in (self._ended_at, self._look_at, self._logged, self.waits):
                notes.pop(run.run, None)
        return done

    def _settle(self, run: OpenRun, ship: ShipperOf) -> bool:
        run_dir = RunDir(run.path)
        order, submission = load_or_none(run_dir.order, Order), load_submission(run.path)
        if order is None or submission is None:
            return False
        foreign = submission.engine != self.name
        handle = submission.handle(order)
        if run.ended and (foreign or handle is None):
            return end_and_ship(run, ship, self.wall())
        not_before = max(self._look_at.get(run.run, 0.0), self._rests_until)
        if time.monotonic() < not_before and not run.ended:
            return False
        self._look_at[run.run] = time.monotonic() + self.look_every_s
        if foreign:
            text = f"it is a run of engine {submission.engine}, and this worker asks {self.name}"
            self._note(run, Unknown(text=text))
            return self._leave_if_over(run_dir, order.run)
        if handle is None:
            self._submit_again(run_dir, order, ship)
            return False
        return self._follow(run, order, handle, ship)

    def _follow(self, run: OpenRun, order: Order, handle: Handle, ship: ShipperOf) -> bool:
        """Do what the engine's answer asks for; True when nothing is left to do."""
        run_dir = RunDir(run.path)
        began = time.monotonic()
        found = self.engine.find(handle)
        if isinstance(found, Unknown):
            self._note_silence(began)
        self._note(run, found)
        if run.run in self.over and not run.ended and not isinstance(found, Ended):
            self._supersede(run_dir)
            stopped = self._stop(run.run, handle)
            return stopped and isinstance(found, Unknown) and self._leave_if_over(run_dir, run.run)
        if isinstance(found, Running):
            self._obey(run_dir, order, handle, found, ship)
            return False
        if run.ended:
            return end_and_ship(run, ship, self.wall())
        return isinstance(found, Ended) and self._end_proven(run, order, found, ship)

    def _end_proven(self, run: OpenRun, order: Order, ended: Ended, ship: ShipperOf) -> bool:
        """End what its engine proves ended, once its own words would be visible here."""
        now = time.monotonic()
        if now - self._ended_at.setdefault(run.run, now) >= self.seen_limit_s:
            end = partial(end_by_proof, self.name, ended)
            return end_and_ship(run, ship, self.wall(), end=end)
        shipper = ship(RunDir(run.path), order)
        if shipper is not None:
            shipper.ship(time.monotonic())
        return False

    def _leave_if_over(self, run_dir: RunDir, run: str) -> bool:
        """Leave a run alone that a person has declared dead and that cannot be asked about."""
        if run not in self.over:
            return False
        self._supersede(run_dir)
        _log.warning("%s is left alone", run, extra={"action": "left_alone"})
        save_json(run_dir.path / SHIPPED_NAME, {"v": 1, "fenced": True})
        return True

    def _supersede(self, run_dir: RunDir) -> None:
        if not run_dir.halt.exists():
            command = Command(kind=CommandKind.SUPERSEDE, reason="declared dead")
            ask_halt(run_dir.path, build_request(command, self.wall()))

    def _submit_again(self, run_dir: RunDir, order: Order, ship: ShipperOf) -> None:
        """Submit what was not accepted yet, also a run that is to end: its keeper sees that."""
        shipper = ship(run_dir, order)
        ack = None if shipper is None else shipper.ship(time.monotonic())
        if ack is None:
            return
        if ack.command is not None:
            ask_halt(run_dir.path, build_request(ack.command, self.wall()))
        self._submit(run_dir, order)

    def _submit(self, run_dir: RunDir, order: Order) -> None:
        """Submit the attempt; one that the engine refuses has ended."""
        began = time.monotonic()
        try:
            handle = self.engine.submit(order, order.token)
        except Unavailable as error:
            self._note_silence(began)
            _log.warning("%s waits: %s", order.run, error, extra={"action": "submit_waits"})
            self.waits[order.run] = error.detail
            return
        except Rejected as error:
            now, text = self.wall(), error.detail
            # An account or a reservation that has ended is no failure of the program.
            accepted = order.reason in _ACCEPTED_BEFORE
            why = OutcomeCode.PREFLIGHT_FAILED if accepted else OutcomeCode.START_FAILED
            record = build_infra_exit(run_dir, order, reason=why, text=text, now=now)
            save_json(run_dir.exit, record.wire())
            _log.error("%s: %s", order.run, text, extra={"action": "submit_refused"})
            return
        self.waits.pop(order.run, None)
        save_submission(run_dir.path, self.name, handle.name, handle.where)
        text = "%s is %s's job %s"
        _log.info(text, order.run, self.name, handle.name, extra={"action": "run_submitted"})

    def _obey(
        self, run_dir: RunDir, order: Order, handle: Handle, found: Running, ship: ShipperOf
    ) -> None:
        """Obey commands while the run has no watcher, or is suspended; stop a second start."""
        if found.again:
            self._stop(order.run, handle)
            return
        if _has_begun(run_dir.path, order) and not found.stands:
            return
        shipper = ship(run_dir, order)
        ack = None if shipper is None else shipper.ship(time.monotonic())
        if ack is not None and ack.command is not None:
            ask_halt(run_dir.path, build_request(ack.command, self.wall()))
            self._stop(order.run, handle)

    def _stop(self, run: str, handle: Handle) -> bool:
        try:
            self.engine.stop(handle)
        except Unavailable as error:
            _log.warning("%s: %s", run, error, extra={"action": "stop_waits"})
            before = [self.waits[run]] if run in self.waits else []
            self.waits[run] = "; ".join([*before, f"it cannot be cancelled: {error.detail}"])
            return False
        return True

    def _note_silence(self, began: float) -> None:
        """Ask the engine nothing for a while when it took long to answer nothing."""
        now = time.monotonic()
        if now - began >= SLOW_S:
            self._rests_until = now + REST_S

    def _note(self, run: OpenRun, found: Found) -> None:
        """Log what the engine says when that is new, and keep what a run waits for."""
        if not isinstance(found, Ended):
            self._ended_at.pop(run.run, None)
        text = found.proof if isinstance(found, Ended) else found.text
        runs = isinstance(found, Running) and not (found.waits or found.stands)
        if runs or (isinstance(found, Ended) and run.ended):
            self.waits.pop(run.run, None)
        else:
            self.waits[run.run] = text
        if self._logged.get(run.run) != text:
            self._logged[run.run] = text
            _log.info("%s: %s", run.run, text, extra={"action": "engine_says"})


def _has_begun(run_dir: Path, order: Order) -> bool:
    return (run_dir / ("keeper.json" if order.nodes == 1 else MET_NAME)).exists()


def build_request(command: Command, now: float) -> EndRequest:
    """Return what a command asks of a run that has not begun; `now` in Unix seconds."""
    superseded = command.kind is CommandKind.SUPERSEDE
    return EndRequest(
        reason=_REASON[command.kind].value,
        ended_by=(Actor.INFRA if superseded else Actor.OPERATOR).value,
        at=now,
        text=": ".join(part for part in (command.actor, command.reason) if part),
    )


def end_by_proof(
    name: str, ended: Ended, run_dir: RunDir, order: Order, now: float
) -> ExitRecord | None:
    """Write the end of an attempt that its engine proves ended and that wrote none itself."""
    for node in range(order.nodes):
        if order.nodes > 1 and not (run_dir.path / EXIT_NAME.format(node)).exists():
            proof = {"v": 1, "by": name, "text": ended.proof, "at": now}
            save_json(run_dir.path / GONE_NAME.format(node), proof)
    request = asked_by(run_dir.path)
    if request is None or (run_dir.path / "keeper.json").exists():
        return end_lost(run_dir, order, now, proof=ended.proof)
    refusal = build_refusal(
        request.reason,
        request.ended_by,
        request.text,
        run_dir=run_dir.path,
        order=order.document(),
        now=now,
    )
    save_json(run_dir.exit, refusal)
    return ExitRecord.model_validate(refusal)
