"""Stacks of real processes, and what happens when py-spy does not serve."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gonogo.supervise.evidence.stacks import Readers, build_probe, find_py_spy, read_stacks
from gonogo.supervise.processes import load_cpu_s, load_stat
from tests.supervise.runs import wait_until

SLEEPER = """
import os, time
def stand_here():
    os.write(1, b"ready\\n")
    while True:
        time.sleep(60)
stand_here()
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def program(tmp_path: Path, text: str) -> str:
    path = tmp_path / "py-spy"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def read(pid: int, py_spy: str | None, **more: Any) -> Any:
    settings = {"rank": 1, "round_number": 1, "stopped": False, "native": True, **more}
    settings.setdefault("readers", Readers())
    return read_stacks(pid, program=py_spy, **settings)


def test_running_process_shows_where_it_stands(sleeper: subprocess.Popen[bytes]) -> None:
    found = read(sleeper.pid, find_py_spy())
    assert "stand_here" in found.text
    assert found.probe.waiting is False
    assert found.probe.rank == 1
    assert 0.0 < found.probe.cpu_s == load_cpu_s(sleeper.pid)


@pytest.mark.parametrize("known", [True, False])
def test_stopped_process_is_read_as_it_stands(
    sleeper: subprocess.Popen[bytes], known: bool
) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    wait_until(lambda: (stat := load_stat(sleeper.pid)) and stat.state == "T", "the stop")
    found = read(sleeper.pid, find_py_spy(), stopped=known)
    assert "stand_here" in found.text
    stat = load_stat(sleeper.pid)
    assert stat is not None
    assert stat.state == "T"


def test_hanging_py_spy_is_cut_off(tmp_path: Path) -> None:
    found = read(1, program(tmp_path, "sleep 60"), limit_s=0.5)
    assert found.probe is None
    assert found.text.count("py-spy dump") == 2


def test_reading_is_cut_off_when_the_run_is_to_end(tmp_path: Path) -> None:
    readers = Readers()
    asked = threading.Timer(0.3, readers.stop)
    asked.start()
    began = time.monotonic()
    found = read(1, program(tmp_path, "sleep 60"), readers=readers, limit_s=50.0)
    assert time.monotonic() - began < 20.0
    assert found.probe is None
    assert read(1, program(tmp_path, "echo '[]'"), readers=readers).text.count("ended") == 2
    asked.join()


@pytest.mark.parametrize("text", ["exit 1", "echo nonsense", "echo '{}'", "echo '[]'"])
def test_py_spy_that_answers_nonsense_leaves_nothing_known(tmp_path: Path, text: str) -> None:
    assert read(1, program(tmp_path, text)).probe is None


def frame(name: str, file: str = "libtorch_cpu.so") -> dict[str, Any]:
    return {"name": name, "filename": f"/lib/{file}", "short_filename": file, "line": 0}


@pytest.mark.parametrize(
    ("frames", "waiting"),
    [
        pytest.param([frame("futex"), frame("gloo::UnboundBuffer::waitRecv")], True, id="gloo"),
        pytest.param([frame("syscall", "libnccl.so.2"), frame("x")], True, id="nccl by file"),
        pytest.param([frame("all_reduce", "distributed_c10d.py")], True, id="python all_reduce"),
        pytest.param([frame("nanosleep"), frame("load", "loader.py")], False, id="sleep"),
        pytest.param(
            [frame("step", "train.py"), frame("barrier", "outer.py")], False, id="outer frames"
        ),
    ],
)
def test_main_thread_waits_when_its_innermost_frames_are_a_collectives(
    frames: list[dict[str, Any]], waiting: bool
) -> None:
    threads = [
        {"os_thread_id": 8, "thread_name": "other", "frames": [frame("gloo")]},
        {"os_thread_id": 7, "thread_name": "MainThread", "frames": frames},
    ]
    probe = build_probe(threads, pid=7, rank=0, round_number=1, native=True)
    assert probe is not None
    assert probe.waiting is waiting


def test_python_frames_alone_cannot_tell_that_a_thread_does_not_wait() -> None:
    threads = [{"os_thread_id": 7, "frames": [frame("backward", "graph.py")]}]
    probe = build_probe(threads, pid=7, rank=0, round_number=1, native=False)
    assert probe is not None
    assert probe.waiting is None


def test_readings_with_and_without_native_frames_compare() -> None:
    python = [frame("load", "loader.py"), frame("main", "train.py")]
    readings = [
        build_probe(
            [{"os_thread_id": 7, "frames": frames}], pid=7, rank=0, round_number=1, native=n
        )
        for frames, n in (([frame("nanosleep"), *python], True), (python, False))
    ]
    first, second = readings
    assert first is not None
    assert second is not None
    assert first.digest == second.digest


def test_who_has_a_model_compiled_does_not_stand() -> None:
    torch = "/opt/venv/lib/python3.12/site-packages/torch"
    running = [frame("forward", "model.py"), frame("run", f"{torch}/_dynamo/eval_frame.py")]
    compiling = [frame("wait", f"{torch}/_inductor/async_compile.py"), *running]
    probes = [
        build_probe(
            [{"os_thread_id": 7, "frames": frames}], pid=7, rank=0, round_number=1, native=True
        )
        for frames in (running, compiling)
    ]
    assert [probe is not None and probe.digest is not None for probe in probes] == [True, False]
