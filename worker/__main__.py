"""`python -m worker`: the worker of this host, until it is asked to stop.

The main thread makes rounds (worker.claims.loop). The wake listener (RQ) and the exporter have
threads of their own. SIGTERM or SIGINT stops it. Its runs are left alone, or end with a checkpoint
(GONOGO_WORKER_ON_STOP): preempted by SIGTERM, halted by SIGINT. A second signal ends the waiting. A
worker whose parent died leaves its runs alone in any case.

Exit codes: 0 stopped · 1 no free worker name, a home that cannot be written, or a driver that does
not list its GPUs · 2 bad settings.
"""

import logging
import os
import signal
import sys
import threading
import time

from gonogo.contract.errors import Rejected, Unavailable
from gonogo.contract.workload import EngineName, SlurmCluster
from gonogo.machine_id import load_home_id, load_machine_id
from gonogo.planning.resolve import checkout_root
from worker.claims.claimer import Claimer
from worker.claims.engine_runs import EngineRuns
from worker.claims.loop import REQUESTS, StopSignal, end_runs, make_rounds, start_listening
from worker.engine.engine import Engine
from worker.engine.jobset import JobSets, KubernetesApi, load_template
from worker.engine.slurm import Slurm, load_defaults
from worker.exporter import announce_exporter
from worker.host.home import ClaimSecrets, take_worker_number, worker_name
from worker.host.preflight import ProbeStore
from worker.host.slots import Slots, find_slots, scheduler_slots
from worker.settings import OnStop, Settings, load_settings, node_environ

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
    stopping = StopSignal(REQUESTS)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stopping.on_signal)
    engine_runs = _engine_runs(settings, engine, machine)
    name = worker_name(settings.home, place, machine, taken[0])
    work(settings, slots, engine_runs, machine, name, stopping)
    return 0


def work(
    settings: Settings,
    slots: Slots,
    engine_runs: EngineRuns | None,
    machine: str,
    name: str,
    stopping: StopSignal,
) -> None:
    """Make rounds until asked to stop, then leave or end the runs."""
    parent = os.getppid()  # if it dies, the runs continue
    claimer = Claimer(
        engine_runs=engine_runs,
        settings=settings,
        name=name,
        machine=machine,
        slots=slots,
        probes=ProbeStore(settings.home, checkout_root(), settings.inherited),
        metrics_url=announce_exporter(settings, machine, slots),
    )
    if claimer.engine_runs is None:  # a login node is not measured
        claimer.probes.start(claimer.free())
    listening = threading.Event()
    start_listening(settings.redis_url, listening)
    _log.info("%s: %s", name, slots.describe(), extra={"action": "worker_started"})
    settings.notifier.say(READY="1", STATUS=f"{name}: {slots.describe()}")
    make_rounds(claimer, REQUESTS, stopping)
    settings.notifier.say(STOPPING="1")
    listening.set()
    if settings.on_stop is OnStop.CHECKPOINT and os.getppid() == parent:
        end_runs(claimer, stopping, now=time.time())
    claimer.close()
    _log.info("%s stopped", name, extra={"action": "worker_stopped"})


def identity_of(settings: Settings) -> tuple[str, str]:
    """Return whose a worker's runs are, and how its name begins; with an engine: the home's."""
    if settings.engine is EngineName.LOCAL:
        return load_machine_id(settings.home), settings.host
    return load_home_id(settings.home), settings.engine


def build_engine(settings: Settings) -> Engine | None:
    """Return the engine (None: the worker starts runs itself), or raise Rejected."""
    if settings.engine is EngineName.LOCAL:
        return None
    if settings.engine is EngineName.SLURM:
        file = settings.slurm_defaults
        defaults = SlurmCluster() if file is None else load_defaults(file)
        return Slurm(settings.runs, defaults, node_environ(settings))
    if settings.jobset_template is None:
        raise Rejected(
            "GONOGO_ENGINE=jobset needs GONOGO_JOBSET_TEMPLATE, such as deploy/kubernetes/run.yaml"
        )
    template = load_template(settings.jobset_template)
    api = KubernetesApi(template["metadata"].get("namespace"))
    return JobSets(template, api, settings.runs)


def _slots_of(settings: Settings) -> Slots:
    if settings.engine is not EngineName.LOCAL:
        return scheduler_slots(settings.home, settings.devices)
    return find_slots(
        settings.home,
        wanted=settings.devices,
        environ=settings.inherited,
        script=settings.devices_script,
        locks=settings.locks,
    )


def _engine_runs(settings: Settings, engine: Engine | None, machine: str) -> EngineRuns | None:
    if engine is None:
        return None
    return EngineRuns(
        engine=engine,
        name=settings.engine,
        runs=settings.runs,
        machine=machine,
        secrets=ClaimSecrets(settings.home),
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
