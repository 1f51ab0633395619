"""`python -m worker`: the worker of this host, until it is told to stop.

The main thread makes rounds (worker.desk.rounds); the waker (RQ) and the exporter have threads of
their own. SIGTERM or SIGINT stops it: runs are left alone, or end with a checkpoint
(GONOGO_WORKER_ON_STOP): by SIGTERM as preempted, by SIGINT as halted by an operator. A second
signal ends the waiting. A worker that only stops because its
parent died leaves its runs alone in any case.

Exit codes: 0 stopped · 1 this home has no free worker name or cannot be written to, or the driver
does not say which GPUs there are · 2 bad
settings.
"""

import logging
import os
import signal
import sys
import threading
import time

from gonogo.contract.cluster import EngineName
from gonogo.contract.errors import Rejected, Unavailable
from gonogo.machine_id import load_home_id, load_machine_id
from gonogo.planning.resolve import checkout_root
from worker.desk.desk import Desk
from worker.desk.job import REQUESTS
from worker.desk.rounds import Stopping, end_runs, make_rounds
from worker.desk.submitting import Submitting
from worker.desk.waker import start_listening
from worker.engine.choice import build_engine
from worker.engine.engine import Engine
from worker.host.claim_book import ClaimBook
from worker.host.host_probe import ProbeStore
from worker.host.slots import Slots, find_places, find_slots
from worker.host.worker_number import take_worker_number, worker_name
from worker.metrics.exporter import announce_exporter
from worker.settings import OnStop, Settings, load_settings

_log = logging.getLogger("worker")


def main() -> int:
    """Run the worker; see the module's text for the exit codes."""
    try:
        settings = load_settings()
        slots, engine = _slots_of(settings), build_engine(settings)
    except Rejected as error:
        print(f"gonogo worker: {error.detail}", file=sys.stderr)
        return 2
    except Unavailable as error:
        print(f"gonogo worker: {error.detail}", file=sys.stderr)
        return 1
    _start_logging(settings.log_level)
    try:
        machine, place = identity_of(settings)
    except OSError as error:
        print(f"gonogo worker: no machine id: {error}", file=sys.stderr)
        return 1
    taken = take_worker_number(settings.home)
    if taken is None:
        print(f"gonogo worker: too many workers in {settings.home}", file=sys.stderr)
        return 1
    stopping = Stopping(REQUESTS)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stopping.on_signal)
    submitting = _submitting(settings, engine, machine)
    name = worker_name(settings.home, place, machine, taken[0])
    work(settings, slots, submitting, machine, name, stopping)
    return 0


def work(
    settings: Settings,
    slots: Slots,
    submitting: Submitting | None,
    machine: str,
    name: str,
    stopping: Stopping,
) -> None:
    """Make rounds until told to stop, then do with the runs what the settings say."""
    parent = os.getppid()  # one that died told us nothing: its runs go on
    desk = Desk(
        submitting=submitting,
        settings=settings,
        name=name,
        machine=machine,
        slots=slots,
        probes=ProbeStore(settings.home, checkout_root(), settings.inherited),
        metrics_url=announce_exporter(settings, machine, slots),
    )
    if desk.submitting is None:  # a login node is not measured
        desk.probes.start(desk.free())
    listening = threading.Event()
    start_listening(settings.redis_url, listening)
    _log.info("%s: %s", name, slots.describe(), extra={"action": "worker_started"})
    settings.notifier.say(READY="1", STATUS=f"{name}: {slots.describe()}")
    make_rounds(desk, REQUESTS, stopping)
    settings.notifier.say(STOPPING="1")
    listening.set()
    if settings.on_stop is OnStop.CHECKPOINT and os.getppid() == parent:
        end_runs(desk, stopping, now=time.time())
    desk.close()
    _log.info("%s stopped", name, extra={"action": "worker_stopped"})


def identity_of(settings: Settings) -> tuple[str, str]:
    """Return the machine whose runs are a worker's, and the place that its name begins with.

    What an engine was handed lives on no host of the worker's: it is the home's, and from whichever
    login node, or pod, the home is worked.

    Raises:
        OSError: there is no such id, and none can be made.
    """
    if settings.engine is EngineName.LOCAL:
        return load_machine_id(settings.home), settings.host
    return load_home_id(settings.home), settings.engine


def _slots_of(settings: Settings) -> Slots:
    """Return the worker's slots; those of an engine are numbers.

    Raises:
        Rejected: not such devices.
        Unavailable: the driver does not say which there are.
    """
    if settings.engine is not EngineName.LOCAL:
        return find_places(settings.home, settings.devices)
    return find_slots(
        settings.home,
        wanted=settings.devices,
        environ=settings.inherited,
        script=settings.devices_script,
        locks=settings.locks,
    )


def _submitting(settings: Settings, engine: Engine | None, machine: str) -> Submitting | None:
    """Return what hands runs to the engine; None: the worker starts them itself."""
    if engine is None:
        return None
    return Submitting(
        engine=engine,
        name=settings.engine,
        runs=settings.runs,
        machine=machine,
        book=ClaimBook(settings.home),
    )


def _start_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)  # one line a request says nothing


if __name__ == "__main__":
    sys.exit(main())
