"""Does the worker process keep its promises, killed and cut off at the wrong moments?

Real worker processes, a real queue, real locks; the keeper is a light one without torch. Nothing
is judged by a stopwatch: tests wait for files and reports, and read stamps.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import pytest
import redis
from rq import Queue
from rq.serializers import JSONSerializer

from gonogo.contract.order import Order
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.contract.worker_messages import WAKE_JOB
from gonogo.planning.resolve import checkout_root
from gonogo.rundir import save_json
from gonogo.supervise.durable import load_json
from gonogo.supervise.keeper.kill import find_processes
from gonogo.supervise.locks import DeviceLocks, is_locked
from gonogo.supervise.processes import ProcessRef
from tests.servers import RedisServer, wait_until
from tests.supervise.orders import make_order
from tests.unit_socket import UnitSocket
from tests.worker.control_plane import KEY, FakeControlPlane, serving
from worker.claims.loop import QUEUE_NAME

ROOT = checkout_root()
LIGHT_WORKER = (sys.executable, "-m", "tests.worker.light_worker")
NO_REDIS = "redis://127.0.0.1:1/0"


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    with serving(FakeControlPlane()) as served:
        yield served


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home; whatever is left of its runs is ended afterwards."""
    yield tmp_path
    for path in (tmp_path / "runs").glob("run_*"):
        state = load_json(path / "keeper.json")
        if state is not None:
            ProcessRef(pid=state["pid"], start_ticks=state["start_ticks"]).send(signal.SIGKILL)


StartWorker = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start_worker(home: Path, plane: FakeControlPlane) -> Iterator[StartWorker]:
    """Factory of worker processes of the home."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        redis_url: str = NO_REDIS, command: Sequence[str] = LIGHT_WORKER, **more: str
    ) -> subprocess.Popen[bytes]:
        environ = {
            "PATH": os.environ["PATH"],
            "GONOGO_HOME": str(home),
            "GONOGO_URL": plane.url,
            "GONOGO_API_KEY": KEY,
            "GONOGO_WORKER_METRICS_PORT": "0",
            "GONOGO_WORKER_DEVICES": "cpu:1",
            "REDIS_URL": redis_url,
            **more,
        }
        with (home / f"worker{len(started)}.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=log, stderr=log)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
    for number in range(len(started)):
        assert KEY not in (home / f"worker{number}.log").read_text()


def until(ready: Callable[[], bool], what: str) -> None:
    wait_until(ready, what=what)


def offer(plane: FakeControlPlane, *orders: Order) -> None:
    with plane.lock:
        plane.orders.extend(orders)


def is_training(home: Path, order: Order) -> bool:
    path = home / "runs" / order.run
    beats = path / "heartbeat_rank0.jsonl"
    return beats.exists() and beats.stat().st_size > 0 and (path / "keeper.json").exists()


def keeper_of(home: Path, order: Order) -> ProcessRef:
    state = load_json(home / "runs" / order.run / "keeper.json")
    assert state is not None
    return ProcessRef(pid=state["pid"], start_ticks=state["start_ticks"])


def starts(home: Path, order: Order) -> int:
    return len((home / "runs" / order.run / "starts.log").read_text().splitlines())


def let_finish(home: Path, order: Order) -> None:
    (home / "runs" / order.run / ".finish").touch()


def events(plane: FakeControlPlane, order: Order) -> list[str]:
    return plane.runs[order.run].events() if order.run in plane.runs else []


def has_ended(plane: FakeControlPlane, order: Order) -> bool:
    return events(plane, order)[-1:] == ["end"]


def lines_in_file(home: Path, order: Order) -> list[str]:
    return (home / "runs" / order.run / "heartbeat_rank0.jsonl").read_text().splitlines()


@pytest.mark.long
def test_runs_are_claimed_one_after_the_other_without_any_redis(
    home: Path, plane: FakeControlPlane, start_worker: StartWorker
) -> None:
    first, second = make_order(), make_order()
    offer(plane, first, second)
    with UnitSocket(home / "unit") as unit:
        start_worker(**unit.environ(watchdog_s=0.4))
        until(lambda: is_training(home, first), "first run")
        said = unit.rest()
    assert said[0].startswith("READY=1\nSTATUS=")
    assert "WATCHDOG=1" in said
    assert second.run not in plane.runs
    let_finish(home, first)
    until(lambda: is_training(home, second), "second run")
    let_finish(home, second)
    until(lambda: has_ended(plane, second), "second end")
    for order in (first, second):
        assert events(plane, order) == ["check", "launch", "step", "end"]
        assert plane.runs[order.run].lines["0"] == lines_in_file(home, order)
        assert plane.runs[order.run].states[-1].preflight is not None
    assert plane.claims[0].free == ["cpu:0"]


@pytest.mark.long
def test_a_message_starts_a_run_and_a_killed_redis_stops_nothing(
    home: Path, plane: FakeControlPlane, start_worker: StartWorker, valkey_server: RedisServer
) -> None:
    first, second = make_order(), make_order()
    start_worker(valkey_server.url, command=(*LIGHT_WORKER, "600"))  # it never asks by itself
    until(lambda: bool(plane.claims), "a first claim")
    offer(plane, first)
    with redis.Redis.from_url(valkey_server.url) as connection:
        queue = Queue(QUEUE_NAME, connection=connection, serializer=JSONSerializer)
        queue.enqueue(WAKE_JOB, job_timeout=-1)
    until(lambda: is_training(home, first), "first run")
    valkey_server.kill()
    keeper = keeper_of(home, first)
    let_finish(home, first)
    offer(plane, second)
    until(lambda: is_training(home, second), "second run, with Redis dead")
    assert not keeper.is_alive() or has_ended(plane, first)
    assert starts(home, first) == starts(home, second) == 1


@pytest.mark.long
def test_two_workers_start_a_run_once(
    home: Path, plane: FakeControlPlane, start_worker: StartWorker
) -> None:
    orders = [make_order(token=n) for n in range(1, 4)]
    workers = [start_worker(GONOGO_WORKER_DEVICES="cpu:4") for _ in range(2)]
    offer(plane, *orders, *orders)  # each is even given out twice
    until(lambda: all(is_training(home, order) for order in orders), "three runs")
    until(lambda: not plane.orders, "every order is given")
    assert [starts(home, order) for order in orders] == [1, 1, 1]
    assert len({claim.worker for claim in plane.claims}) == 2
    assert all(worker.poll() is None for worker in workers)


@pytest.mark.long
def test_a_killed_worker_leaves_its_run_and_the_next_one_counts_its_device_as_taken(
    home: Path, plane: FakeControlPlane, start_worker: StartWorker
) -> None:
    first, second = make_order(), make_order()
    offer(plane, first, second)
    worker = start_worker()
    until(lambda: is_training(home, first), "first run")
    worker.kill()
    worker.wait()
    keeper = keeper_of(home, first)
    assert keeper.is_alive()
    seen = len(plane.claims)
    start_worker()
    until(lambda: len(plane.claims) > seen, "the second worker's claim")
    claim = plane.claims[-1]
    assert (claim.free, claim.active) == ([], [first.run])
    assert claim.worker == plane.claims[0].worker
    assert keeper.is_alive()
    let_finish(home, first)
    until(lambda: is_training(home, second), "second run")
    assert starts(home, first) == 1


@pytest.mark.long
def test_a_killed_keeper_leaves_nothing_and_its_run_ends_as_lost(
    home: Path, plane: FakeControlPlane, start_worker: StartWorker
) -> None:
    first, second = make_order(), make_order()
    offer(plane, first, second)
    start_worker()
    until(lambda: is_training(home, first), "first run")
    keeper_of(home, first).send(signal.SIGKILL)
    until(lambda: has_ended(plane, first), "the end of the first run")
    end = plane.runs[first.run].states[-1]
    assert end.exit is not None
    assert end.exit.reason is OutcomeCode.KEEPER_LOST
    assert find_processes(first.run) == frozenset()
    until(lambda: is_training(home, second), "second run")
    assert plane.runs[first.run].lines["0"] == lines_in_file(home, first)


def test_a_worker_told_to_stop_leaves_its_runs_alone(
    home: Path, plane: FakeControlPlane, start_worker: StartWorker
) -> None:
    order = make_order()
    offer(plane, order)
    worker = start_worker()
    until(lambda: is_training(home, order), "the run")
    worker.terminate()
    assert worker.wait(60) == 0
    assert keeper_of(home, order).is_alive()
    assert is_locked(DeviceLocks(home=home).path("cpu:0"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "reason", "by"),
    [
        pytest.param(signal.SIGTERM, OutcomeCode.PREEMPTED, Actor.INFRA, id="a container's stop"),
        pytest.param(signal.SIGINT, OutcomeCode.HALTED, Actor.OPERATOR, id="a person's Ctrl-C"),
    ],
)
def test_a_worker_told_to_stop_may_end_its_runs_with_a_checkpoint(
    home: Path,
    plane: FakeControlPlane,
    start_worker: StartWorker,
    number: signal.Signals,
    reason: OutcomeCode,
    by: Actor,
) -> None:
    order = make_order()
    offer(plane, order)
    worker = start_worker(GONOGO_WORKER_ON_STOP="checkpoint")
    until(lambda: is_training(home, order), "the run")
    worker.send_signal(number)
    assert worker.wait(60) == 0
    end = plane.runs[order.run].states[-1]
    assert end.exit is not None
    assert (end.exit.reason, end.exit.ended_by) == (reason, by)
    assert not keeper_of(home, order).is_alive()
    assert plane.claims[-1].draining


SUPERVISOR = """
import ctypes, os, subprocess, sys
die = lambda: ctypes.CDLL(None).prctl(1, 15, 0, 0, 0)
worker = subprocess.Popen([sys.executable, "-m", "tests.worker.light_worker"], preexec_fn=die)
print(worker.pid, flush=True)
sys.exit(worker.wait())
"""


@pytest.mark.long
def test_a_worker_whose_supervisor_was_killed_ends_no_run(
    home: Path, plane: FakeControlPlane, start_worker: StartWorker
) -> None:
    order = make_order()
    offer(plane, order)
    supervisor = start_worker(
        GONOGO_WORKER_ON_STOP="checkpoint", command=(sys.executable, "-c", SUPERVISOR)
    )
    until(lambda: is_training(home, order), "the run")
    worker = int((home / "worker0.log").read_text().split()[0])
    supervisor.kill()
    supervisor.wait()
    until(lambda: not Path(f"/proc/{worker}").exists(), "the worker's end")
    assert keeper_of(home, order).is_alive()
    assert not (home / "runs" / order.run / ".HALT").exists()


@pytest.mark.parametrize("when", ["stale", pytest.param("stale_later", marks=pytest.mark.long)])
def test_a_stale_token_starts_nothing(
    home: Path, plane: FakeControlPlane, start_worker: StartWorker, when: str
) -> None:
    stale, good = make_order(), make_order()
    getattr(plane, when).add(stale.run)
    offer(plane, stale, good)
    start_worker()
    until(lambda: is_training(home, good), "the good run")
    assert stale.run in {run for run, _ in plane.given}
    assert not (home / "runs" / stale.run / "starts.log").exists()


@pytest.mark.long
def test_the_announced_exporter_shows_live_runs_only(
    home: Path, plane: FakeControlPlane, start_worker: StartWorker
) -> None:
    order = make_order()
    offer(plane, order)
    start_worker()
    until(lambda: is_training(home, order), "the run")
    url = plane.claims[-1].metrics_url
    assert url is not None
    save_json(home / "runs" / order.run / ".metrics.json", {"v": 1, "backlog": 5})
    sample = f'gonogo_telemetry_backlog_lines{{run="{order.run}"}} 5.0'
    text = httpx.get(url, verify=False).text
    assert sample in text
    assert 'gonogo_worker_devices{state="taken"} 1.0' in text
    let_finish(home, order)
    until(lambda: order.run not in httpx.get(url, verify=False).text, "the end of the series")


@pytest.mark.parametrize(
    ("name", "value"), [("GONOGO_WORKER_DEVICES", "gpu"), ("GONOGO_WROKER", "x")]
)
def test_bad_settings_end_the_worker_with_one_line(
    home: Path, start_worker: StartWorker, name: str, value: str
) -> None:
    worker = start_worker(**{name: value})
    assert worker.wait(60) == 2
    said = (home / "worker0.log").read_text()
    assert said.count("\n") == 1
    assert name in said
