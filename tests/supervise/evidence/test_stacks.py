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

from gonogo.contract.records import StackProbe
from gonogo.supervise.evidence.stacks import StackReader, build_probe, find_py_spy
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


def read(pid: int, py_spy: str | None, **more: Any) -> tuple[str, StackProbe | None]:
    return StackReader(py_spy).read(pid, **{"rank": 1, "round_number": 1, "native": True, **more})


def test_running_process_shows_where_it_stands(sleeper: subprocess.Popen[bytes]) -> None:
    text, probe = read(sleeper.pid, find_py_spy())
    assert "stand_here" in text
    assert probe is not None
    assert (probe.waiting, probe.rank) == (False, 1)
    assert probe.cpu_s == load_cpu_s(sleeper.pid)
    assert probe.cpu_s


@pytest.mark.parametrize("known", [True, False])
def test_stopped_process_is_read_as_it_stands(
    sleeper: subprocess.Popen[bytes], known: bool
) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    wait_until(lambda: (stat := load_stat(sleeper.pid)) and stat.state == "T", "the stop")
    text, _ = read(sleeper.pid, find_py_spy(), stopped=known)
    assert "stand_here" in text
    stat = load_stat(sleeper.pid)
    assert stat is not None
    assert stat.state == "T"


def test_hanging_py_spy_is_cut_off(tmp_path: Path) -> None:
    text, probe = read(1, program(tmp_path, "sleep 60"), limit_s=0.5)
    assert probe is None
    assert text.count("py-spy dump") == 2


def test_reading_is_cut_off_when_the_run_is_to_end(tmp_path: Path) -> None:
    reader = StackReader(program(tmp_path, "sleep 60"))
    asked = threading.Timer(0.3, reader.stop)
    asked.start()
    began = time.monotonic()
    assert reader.read(1, rank=1, round_number=1, limit_s=50.0)[1] is None
    assert time.monotonic() - began < 20.0
    assert "ended" in reader.read(1, rank=1, round_number=1)[0]
    asked.join()


@pytest.mark.parametrize("text", ["exit 1", "echo nonsense", "echo '{}'", "echo '[]'"])
def test_py_spy_that_answers_nonsense_leaves_nothing_known(tmp_path: Path, text: str) -> None:
    assert read(1, program(tmp_path, text))[1] is None


def probe_of(*frames: dict[str, Any], native: bool = True) -> StackProbe:
    """Return what detectors see of a main thread with these frames, innermost first."""
    threads = [
        {"os_thread_id": 8, "thread_name": "other", "frames": [frame("gloo")]},
        {"os_thread_id": 7, "thread_name": "MainThread", "frames": frames},
    ]
    found = build_probe(threads, 7, 0, 1, native)
    assert found is not None
    return found


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
    assert probe_of(*frames).waiting is waiting


def test_python_frames_alone_cannot_tell_that_a_thread_does_not_wait() -> None:
    assert probe_of(frame("backward", "graph.py"), native=False).waiting is None


def test_readings_with_and_without_native_frames_compare() -> None:
    python = [frame("load", "loader.py"), frame("main", "train.py")]
    with_native = probe_of(frame("nanosleep"), *python)
    assert with_native.digest == probe_of(*python, native=False).digest is not None


def test_who_has_a_model_compiled_does_not_stand() -> None:
    torch = "/opt/venv/lib/python3.12/site-packages/torch"
    running = [frame("forward", "model.py"), frame("run", f"{torch}/_dynamo/eval_frame.py")]
    assert probe_of(*running).digest is not None
    assert probe_of(frame("wait", f"{torch}/_inductor/async_compile.py"), *running).digest is None
