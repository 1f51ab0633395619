"""When does the worker make a round, and how does it stop?

A round is made when a message asks for one, when a device has become free (a run ended, or its
keeper was lost) and every `POLL_S` in any case: a dead Redis delays nothing for long.
"""

import logging
import signal
import time
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType

from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.supervise.end_request import HALT_LIMIT_S, EndRequest, ask_halt, until_after
from gonogo.supervise.processes import ProcessRef
from worker.desk.desk import Desk
from worker.engine.submission import load_submission
from worker.host.inventory import Inventory, OpenRun

POLL_S = 2.0
TICK_S = 0.25
END_LIMIT_S = HALT_LIMIT_S + 60.0

_log = logging.getLogger(__name__)

Requests = SimpleQueue[Future[list[str]] | None]


@dataclass(slots=True)
class Stopping:
    """How often the worker was told to stop, and by whom first."""

    requests: Requests
    times: int = 0
    asked_by_person: bool = False
    """Whether the first was Ctrl-C's; a SIGTERM is a host, or a container, that is taken away."""

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Count a signal and interrupt the waiting (a SimpleQueue may be put to from here)."""
        del frame
        if self.times == 0:
            self.asked_by_person = number == signal.SIGINT
        self.times += 1
        self.requests.put(None)


def make_rounds(desk: Desk, requests: Requests, stopping: Stopping) -> None:
    """Make rounds until the worker is told to stop."""
    next_at = time.monotonic()
    while stopping.times == 0:
        desk.settings.notifier.live(time.monotonic())
        asked = _gather(requests, max(0.0, min(TICK_S, next_at - time.monotonic())))
        if stopping.times:
            _answer(asked, [])
            return
        waits = time.monotonic() < next_at and _count_free(desk) <= desk.offered
        if waits and not asked:
            continue
        started = _try_round(desk)
        _answer(asked, started or [])
        desk.settings.notifier.say(
            STATUS=desk.missing or f"{_count_free(desk)} of {len(desk.slots.names)} devices free"
        )
        next_at = time.monotonic() + (POLL_S if started is not None else TICK_S)


def end_runs(desk: Desk, stopping: Stopping, *, now: float) -> None:
    """Ask every living run to end with a checkpoint, and wait until all have ended.

    A second signal ends the waiting; the runs end all the same. What an engine started goes on, and
    is found again. `now` is in Unix seconds.
    """
    desk.draining = True
    inventory = Inventory(desk.settings.runs, desk.machine)
    asked = build_stop(now, by_person=stopping.asked_by_person)
    keepers = _own_keepers(desk, inventory)
    for run in keepers.values():
        desk.weather.tried("a request to leave", partial(_ask, run, asked), None)
    deadline = time.monotonic() + END_LIMIT_S
    next_at = time.monotonic()
    while time.monotonic() < deadline and stopping.times < 2:
        desk.settings.notifier.live(time.monotonic())
        # A keeper lives a little longer than its run is open: its last act is to say so.
        keepers |= _own_keepers(desk, inventory)
        if not any(keeper.is_alive() for keeper in keepers):
            break
        if time.monotonic() >= next_at:
            _try_round(desk)
            next_at = time.monotonic() + POLL_S
        _answer(_gather(stopping.requests, TICK_S), [])
    if stopping.times < 2:
        _try_round(desk)  # ships what the watchers left


def _ask(run: OpenRun, asked: EndRequest) -> None:
    """Ask a run to leave.

    Raises:
        OSError: its directory takes no request; it goes on, as it does without a worker.
    """
    if not run.ended:
        ask_halt(run.path, asked)
        _log.info("%s asked to leave", run.run, extra={"action": "run_halt_asked"})


def _own_keepers(desk: Desk, inventory: Inventory) -> dict[ProcessRef, OpenRun]:
    """Return the living keepers of the runs that this host has started itself, as far as seen."""
    unseen: list[OpenRun] = []
    return {
        run.keeper: run
        for run in desk.weather.tried("the runs", inventory.open_runs, unseen)
        if run.keeper is not None and load_submission(run.path) is None
    }


def build_stop(now: float, *, by_person: bool) -> EndRequest:
    """Return the request that ends a run because its worker stops.

    One that a person stopped waits for a person; any other goes on when a worker is back.
    """
    return EndRequest(
        reason=OutcomeCode.HALTED if by_person else OutcomeCode.PREEMPTED,
        ended_by=Actor.OPERATOR if by_person else Actor.INFRA,
        at=now,
        text="the worker was told to stop",
        until_mono=until_after(HALT_LIMIT_S),
    )


def _count_free(desk: Desk) -> int:
    """Return how many devices are free; where nobody can look just now, none."""
    nothing: tuple[str, ...] = ()
    return len(desk.weather.tried("the devices", desk.free, nothing))


def _try_round(desk: Desk) -> list[str] | None:
    """Make a round; None when it could not be made now."""
    nothing: list[str] | None = []
    try:
        return desk.weather.tried("a round", desk.run_round, nothing)
    except Exception:  # noqa: BLE001 - the loop's edge: the next round may do better
        _log.exception("the round broke", extra={"action": "round_broke"})
        return []


def _gather(requests: Requests, wait_s: float) -> list[Future[list[str]]]:
    """Return the rounds asked for, waiting for the first one at most `wait_s` seconds."""
    found = []
    try:
        found.append(requests.get(timeout=wait_s))
        while True:
            found.append(requests.get_nowait())
    except Empty:
        return [request for request in found if request is not None]


def _answer(asked: list[Future[list[str]]], started: list[str]) -> None:
    for request in asked:
        request.set_result(started)
