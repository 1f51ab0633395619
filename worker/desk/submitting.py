"""How does a claimed run go to an engine, and what becomes of it there?

Guarantees: an attempt is submitted once, whatever is killed in between. Only the engine's proof
ends one whose own words are missing: what the engine does not know is left alone, and a person has
`gonogo takeover`. What an attempt wrote about its end itself (exit.json) goes before everything.
"""

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gonogo.contract.agent import Command, CommandKind
from gonogo.contract.errors import Rejected, Unavailable
from gonogo.contract.ids import Kind, is_id
from gonogo.contract.order import Order, RunReason
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.contract.records import ExitRecord
from gonogo.rundir import SHIPPED_NAME, RunDir, save_json
from gonogo.supervise.durable import load_json
from gonogo.supervise.end_request import EndRequest, ask_halt, asked_by
from gonogo.supervise.exit_record import build_refusal
from gonogo.supervise.lost import build_infra_exit, end_lost
from gonogo.supervise.node_record import MET_NAME, exit_path, gone_path
from worker.desk.launching import move_in
from worker.desk.reaper import ShipperOf, reap
from worker.engine.engine import Ended, Engine, Handle, Running, Unknown
from worker.engine.submission import load_submission, save_submission
from worker.host.claim_book import ClaimBook
from worker.host.inventory import OpenRun
from worker.shipping.reports import load_or_none

SEEN_LIMIT_S = 60.0
"""How long a shared file system may take to show here what a node has written last."""
LOOK_EVERY_S = 5.0
"""How often an engine is asked about a run; a scheduler serves a whole cluster."""
SLOW_S, REST_S = 5.0, 15.0
"""An engine that took so long to say nothing is asked about no run for a while: claims, by which
all that wait are heard, come between."""
_REASON = {
    CommandKind.HALT: OutcomeCode.HALTED,
    CommandKind.CANCEL: OutcomeCode.CANCELLED,
    CommandKind.SUPERSEDE: OutcomeCode.SUPERSEDED,
}
_TAKEN_BEFORE = frozenset(
    {RunReason.RESUME, RunReason.TAKEOVER, RunReason.CONFIRM, RunReason.REMEDY}
)
"""Why there is an attempt after one that has begun."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Submitting:
    """Hands runs to an engine, while the worker holds the launch lock."""

    engine: Engine
    name: str
    """What the engine is called."""
    runs: Path
    machine: str
    book: ClaimBook
    wall: Callable[[], float] = time.time
    seen_limit_s: float = SEEN_LIMIT_S
    look_every_s: float = LOOK_EVERY_S
    _ended_at: dict[str, float] = field(default_factory=dict)
    """Run → when (monotonic clock) its engine began to say that it has ended."""
    _look_at: dict[str, float] = field(default_factory=dict)
    """Run → when (monotonic clock) its engine is asked about it again."""
    _rests_until: float = 0.0
    """Until when (monotonic clock) the engine is asked nothing."""
    _said: dict[str, str] = field(default_factory=dict)
    _handed: dict[str, Handle] = field(default_factory=dict)
    """Run → what the engine has of it, or had."""
    waits: dict[str, str] = field(default_factory=dict)
    """Run → for what it waits, or why nothing is heard of it, in the engine's words; those that
    run, and that have told their end, are left out."""
    over: frozenset[str] = frozenset()
    """Runs that the control plane calls dead, on somebody's word."""

    def accept(self, order: Order, secret: str | None, ship: ShipperOf) -> bool:
        """Make the run's directory and submit it; False where it is not ours to begin.

        Raises:
            OSError: the directory cannot be made; nothing was submitted.
        """
        mark = partial(save_submission, engine=self.name)
        moved = move_in(
            order, secret, ship, runs=self.runs, book=self.book, machine=self.machine, mark=mark
        )
        if moved is None:
            return False
        try:
            self._submit(moved[0], order)
        except OSError as error:  # the engine may have it: it is asked again by the attempt's name
            _log.warning("%s: %s", order.run, error, extra={"action": "submit_unwritten"})
        return True

    def settle(self, run: OpenRun, ship: ShipperOf) -> bool:
        """Look after a run of the engine; True when nothing is left to do."""
        done = self._settle(run, ship)
        if done:
            for told in (self._ended_at, self._look_at, self._said, self.waits):
                told.pop(run.run, None)
        return done

    def _settle(self, run: OpenRun, ship: ShipperOf) -> bool:
        run_dir = RunDir(run.path)
        order, submission = load_or_none(run_dir.order, Order), load_submission(run.path)
        if order is None or submission is None:
            return False
        handle = submission.handle(order)
        if handle is None and run.ended:
            return reap(run, ship, self.wall())
        not_before = max(self._look_at.get(run.run, 0.0), self._rests_until)
        if time.monotonic() < not_before and not run.ended:
            return False
        self._look_at[run.run] = time.monotonic() + self.look_every_s
        if submission.engine != self.name:
            return self._leave(run, run_dir, submission.engine, ship)
        if handle is None:
            return self._submit_again(run_dir, order, ship)
        self._handed[run.run] = handle
        found = self._find(handle)
        self._tell(run, found)
        if run.run in self.over and not run.ended and not isinstance(found, Ended):
            return self._let_go(run_dir, handle, found)
        if isinstance(found, Running):
            self._listen(run_dir, order, handle, found, ship)
            return False
        if run.ended:
            return reap(run, ship, self.wall())
        return isinstance(found, Ended) and self._end_proven(run, order, found, ship)

    def _end_proven(self, run: OpenRun, order: Order, ended: Ended, ship: ShipperOf) -> bool:
        """End what its engine proves ended, once its own words would be seen; True when it is told.

        It is spoken for until then, for nobody else does: else a person is told that it is lost.
        """
        if self._is_long_ended(run.run):
            return reap(run, ship, self.wall(), end=partial(end_elsewhere, self.name, ended))
        shipper = ship(RunDir(run.path), order)
        if shipper is not None:
            shipper.ship(time.monotonic())
        return False

    def _leave(self, run: OpenRun, run_dir: RunDir, engine: str, ship: ShipperOf) -> bool:
        """Leave a run to the engine that has it, which is not ours to ask; True: it is over.

        That ours knows no such job proves nothing. One that was declared dead ends, where it lives,
        by the request in its directory.
        """
        if run.ended:
            return reap(run, ship, self.wall())
        text = f"it is a run of engine {engine}, and this worker asks {self.name}"
        self._tell(run, Unknown(text=text))
        if run.run not in self.over:
            return False
        self._supersede(run_dir)
        let_go(run_dir)
        return True

    def see_off(self, told: Collection[str]) -> None:
        """Cancel what an engine has queued again of attempts that are told to their end.

        Args:
            told: those; a run whose directory is not to be seen just now is none of them.
        """
        for run in [run for run in self._handed if run in told]:
            now = time.monotonic()
            if now < max(self._look_at.get(run, 0.0), self._rests_until):
                continue
            self._look_at[run] = now + self.look_every_s
            found = self._find(self._handed[run])
            if not isinstance(found, Running):
                del self._handed[run], self._look_at[run]
            elif found.waits:
                self._stop(run, self._handed[run])

    def _find(self, handle: Handle) -> Running | Ended | Unknown:
        """Return what the engine says, and note that it took its time to say nothing."""
        began = time.monotonic()
        found = self.engine.find(handle)
        if isinstance(found, Unknown):
            self._note_silence(began)
        return found

    def _note_silence(self, began: float) -> None:
        now = time.monotonic()
        if now - began >= SLOW_S:
            self._rests_until = now + REST_S

    def _let_go(self, run_dir: RunDir, handle: Handle, found: Running | Unknown) -> bool:
        """Have an attempt that was declared dead end where it may live; True: it is left to itself.

        What the engine knows nothing of, and has heard to stop, takes no place here any more. A
        node of it that was cut off finds the request when it is back.
        """
        self._supersede(run_dir)
        heard = self._stop(handle.run, handle)
        if isinstance(found, Running) or not heard:
            return False
        let_go(run_dir)
        return True

    def _supersede(self, run_dir: RunDir) -> None:
        """Ask an attempt that was declared dead to end, unless somebody has asked it to."""
        if not run_dir.halt.exists():
            command = Command(kind=CommandKind.SUPERSEDE, reason="declared dead")
            ask_halt(run_dir.path, build_request(command, self.wall()))

    def _submit_again(self, run_dir: RunDir, order: Order, ship: ShipperOf) -> bool:
        """Submit what was not taken, or whose name was not written down, unless it is stale.

        True: it may live where the engine is not asked any more, and was declared dead.
        What is to end by now is submitted, too, to be stopped then: nobody else knows whether the
        engine has it already. Its keeper finds the request and starts nothing.
        """
        shipper = ship(run_dir, order)
        ack = None if shipper is None else shipper.ship(time.monotonic())
        if ack is None:
            return False
        if ack.command is not None:
            ask_halt(run_dir.path, build_request(ack.command, self.wall()))
        self._submit(run_dir, order)
        submission = load_submission(run_dir.path)
        unasked = submission is not None and submission.name is None and submission.where != ""
        if not unasked or order.run not in self.over:
            return False
        self._supersede(run_dir)
        let_go(run_dir)
        return True

    def _submit(self, run_dir: RunDir, order: Order) -> None:
        """Have the attempt started; one that the engine refuses has ended.

        One of an experiment that the engine took before is not refused for what it is: a
        reservation has ended, an account or a partition is gone. That is no failure of the
        program's.
        """
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
            taken = order.reason in _TAKEN_BEFORE or self._has_taken(order)
            why = OutcomeCode.PREFLIGHT_FAILED if taken else OutcomeCode.START_FAILED
            record = build_infra_exit(run_dir, order, reason=why, text=text, now=now)
            save_json(run_dir.exit, record.wire())
            _log.error("%s: %s", order.run, text, extra={"action": "submit_refused"})
            return
        self.waits.pop(order.run, None)
        save_submission(run_dir.path, self.name, handle.name, handle.where)
        text = "%s is %s's job %s"
        _log.info(text, order.run, self.name, handle.name, extra={"action": "run_submitted"})

    def _has_taken(self, order: Order) -> bool:
        """Say whether an engine has taken another run of the order's experiment.

        That is an earlier phase's, or the one that a person has run again.
        """
        for path in self.runs.iterdir():
            if path.name == order.run or not is_id(path.name, Kind.RUN):
                continue
            other = load_json(path / "order.json") or {}
            if other.get("experiment") != order.experiment:
                continue
            submission = load_submission(path)
            if submission is not None and submission.name is not None:
                return True
        return False

    def _listen(
        self, run_dir: RunDir, order: Order, handle: Handle, found: Running, ship: ShipperOf
    ) -> None:
        """Ask for commands while nobody else does: the run has no watcher, or it stands as well.

        What an engine would start a second time is stopped.
        """
        if found.again:
            self._stop(order.run, handle)
            return
        watched = _has_begun(run_dir.path, order) and not found.stands
        shipper = None if watched else ship(run_dir, order)
        ack = None if shipper is None else shipper.ship(time.monotonic())
        if ack is None or ack.command is None:
            return
        ask_halt(run_dir.path, build_request(ack.command, self.wall()))
        self._stop(order.run, handle)

    def _stop(self, run: str, handle: Handle) -> bool:
        """Have what the engine has of an attempt stopped; say whether it was heard.

        Where not, it is asked again at the next look.
        """
        try:
            self.engine.stop(handle)
        except Unavailable as error:
            _log.warning("%s: %s", run, error, extra={"action": "stop_waits"})
            if run in self._said:  # else it is over, and nobody waits for it
                told = [self.waits[run]] if run in self.waits else []
                self.waits[run] = "; ".join([*told, f"it cannot be cancelled: {error.detail}"])
            return False
        return True

    def _is_long_ended(self, run: str) -> bool:
        """Say whether what the attempt wrote last would have been seen by now."""
        now = time.monotonic()
        return now - self._ended_at.setdefault(run, now) >= self.seen_limit_s

    def _tell(self, run: OpenRun, found: Running | Ended | Unknown) -> None:
        """Log what the engine says, when it says something else, and keep for what a run waits.

        One that has ended, and wrote none itself, waits for its end to be believed; who says that
        it lives after all takes that end back.
        """
        if not isinstance(found, Ended):
            self._ended_at.pop(run.run, None)
        text = found.proof if isinstance(found, Ended) else found.text
        runs = isinstance(found, Running) and not (found.waits or found.stands)
        if runs or (isinstance(found, Ended) and run.ended):
            self.waits.pop(run.run, None)
        else:
            self.waits[run.run] = text
        if self._said.get(run.run) != text:
            self._said[run.run] = text
            _log.info("%s: %s", run.run, text, extra={"action": "engine_says"})


def let_go(run_dir: RunDir) -> None:
    """Leave an attempt that was declared dead to itself: it takes no place here any more."""
    _log.warning("%s is left to itself", run_dir.path.name, extra={"action": "let_go"})
    save_json(run_dir.path / SHIPPED_NAME, {"v": 1, "fenced": True})


def _has_begun(run_dir: Path, order: Order) -> bool:
    """Say whether an attempt's keepers have begun; those of several nodes meet first."""
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


def end_elsewhere(
    name: str, ended: Ended, run_dir: RunDir, order: Order, now: float
) -> ExitRecord | None:
    """Write the end of an attempt that an engine proves ended, and that wrote none itself.

    Args:
        name: the engine.
        ended: its proof.
        run_dir: the run's directory, which has no exit.json.
        order: its order.
        now: Unix seconds.
    """
    for node in range(order.nodes):
        if order.nodes > 1 and not exit_path(run_dir.path, node).exists():
            word = {"v": 1, "by": name, "text": ended.proof, "at": now}
            save_json(gone_path(run_dir.path, node), word)
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
