"""The ranks below a launcher, and how each ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gonogo.supervise.launch.rank import Launched
from gonogo.supervise.process_records import load_rank_record, recorded_ranks
from gonogo.supervise.processes import find_descendants, find_process, load_stat
from tests.supervise.runs import ROOT, wait_until

LAUNCHER = """
import os, subprocess, sys, time
names = [dict(zip(("RANK", "LOCAL_RANK", "WORLD_SIZE"), row.split(":"))) for row in sys.argv[2:]]
ranks = [
    subprocess.Popen([sys.executable, "-c", sys.argv[1]], env={**os.environ, **row})
    for row in names
]
while any(rank.poll() is None for rank in ranks):
    time.sleep(0.2)
time.sleep(60)
"""
SLEEPER = "import time; time.sleep(60)"
WITH_CHILD = "import subprocess, sys; subprocess.run(['sleep', '60'])"
NAMED = """
import gonogo.trainer, time
with gonogo.trainer.attach() as beat:
    time.sleep(60)
"""


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Any]:
    """Starts a program in a run directory; it and all below it are ended."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str, **names: str) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "GONOGO_RUN_DIR": str(tmp_path), **names}
        started.append(subprocess.Popen(command, env=environ))
        return started[-1]

    yield start
    for process in started:
        for pid in {process.pid, *find_descendants(process.pid)}:
            with suppress(ProcessLookupError):  # it may end with the one before it
                os.kill(pid, signal.SIGKILL)
        process.wait()


def look_until(launched: Launched, ranks: list[int], folder: Path) -> dict[int, int]:
    """Look until those ranks have records; return rank → pid."""

    def found() -> bool:
        launched.look(time.monotonic())
        return list(recorded_ranks(folder)) == ranks

    wait_until(found, f"ranks {ranks}")
    records = {rank: load_rank_record(folder, rank) for rank in ranks}
    assert all(record is not None and record.launched for record in records.values())
    return {rank: record.ref.pid for rank, record in records.items() if record is not None}


def children(process: subprocess.Popen[bytes]) -> set[int]:
    below = find_descendants(process.pid)
    return {pid for pid in below if (stat := load_stat(pid)) and stat.ppid == process.pid}


def test_the_topmost_process_that_bears_a_rank_is_it(tmp_path: Path, launch: Any) -> None:
    launcher = launch(sys.executable, "-c", LAUNCHER, WITH_CHILD, "0:0", "1:1")
    pids = look_until(Launched(tmp_path, {"world_size": 2}, launcher.pid), [0, 1], tmp_path)
    assert set(pids.values()) == children(launcher)
    records = [load_rank_record(tmp_path, rank) for rank in pids]
    assert [record is not None and record.by_shell for record in records] == [False, False]
    told = {rank: Path(f"/proc/{pid}/environ").read_bytes() for rank, pid in pids.items()}
    assert all(f"\0RANK={rank}\0".encode() in told[rank] for rank in pids)


def test_how_each_rank_ended_is_seen_though_it_is_no_child(tmp_path: Path, launch: Any) -> None:
    launcher = launch(sys.executable, "-c", LAUNCHER, SLEEPER, "0:0", "1:1")
    launched = Launched(tmp_path, {"world_size": 2}, launcher.pid)
    pids = look_until(launched, [0, 1], tmp_path)
    os.kill(launcher.pid, signal.SIGSTOP)  # it asks nobody how they ended
    os.kill(pids[1], signal.SIGKILL)
    wait_until(lambda: not find_process(pids[1]), "the end")

    def stamped() -> bool:
        assert launched.save_ends() == {0, 1}
        return (tmp_path / "exit_rank1.json").exists()

    wait_until(stamped, "the stamp")
    ended = json.loads((tmp_path / "exit_rank1.json").read_text())
    assert (ended["code"], ended["signal"]) == (None, 9)
    assert not (tmp_path / "exit_rank0.json").exists(), "it lives"


def test_of_more_ranks_than_were_ordered_the_command_tells_the_end(
    tmp_path: Path, launch: Any
) -> None:
    """Rank 0 may be a victim of the one that prints nothing."""
    launcher = launch(sys.executable, "-c", LAUNCHER, SLEEPER, "0:0:2", "1:1:2")
    launched = Launched(tmp_path, {"world_size": 1}, launcher.pid)
    (pid,) = look_until(launched, [0], tmp_path).values()
    wait_until(lambda: launched.look(time.monotonic()) or launched._are_more, "the other rank")
    os.kill(launcher.pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not find_process(pid), "the end")
    assert launched.save_ends() == frozenset()
    assert not (tmp_path / "exit_rank0.json").exists()


@pytest.mark.parametrize(
    "line",
    [
        f"RANK=0 LOCAL_RANK=0 {sys.executable} -c '{SLEEPER}' | cat",
        f"{sys.executable} -c '{LAUNCHER}' '{SLEEPER}' 0:0; true",
    ],
    ids=["behind a pipe", "a launcher below a shell"],
)
def test_a_shell_on_the_way_to_a_rank_is_told(line: str, tmp_path: Path, launch: Any) -> None:
    launcher = launch("bash", "-c", line)
    look_until(Launched(tmp_path, {"world_size": 1}, launcher.pid), [0], tmp_path)
    record = load_rank_record(tmp_path, 0)
    assert record is not None
    assert record.by_shell


def test_what_a_heartbeat_names_is_a_rank_only_below_the_command(
    tmp_path: Path, launch: Any
) -> None:
    launcher = launch("bash", "-c", f"{sys.executable} -c '{SLEEPER}'; true")
    wait_until(lambda: children(launcher), "the child")
    (child,) = children(launcher)
    stranger = launch("sleep", "60")
    lines = {0: stranger.pid, 1: child, 2: launcher.pid, 3: None, 4: "x"}
    for rank, pid in lines.items():
        (tmp_path / f"heartbeat_rank{rank}.jsonl").write_text(json.dumps({"pid": pid}) + "\n")
    assert look_until(Launched(tmp_path, {"world_size": 5}, launcher.pid), [1], tmp_path) == {
        1: child
    }
