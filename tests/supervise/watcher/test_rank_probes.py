"""What the watcher sees of processes, and when it says so again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gonogo.contract.records import AgentProbe, ProcessState, RankProbe
from gonogo.rundir import RunDir
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.processes import load_stat
from gonogo.supervise.watcher.rank_probes import REPEAT_S, Prober
from tests.supervise.runs import wait_until


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for rank 0, as its wrapper wrote it down."""
    environ = {"PATH": os.environ["PATH"], "NSA_TB_DISABLE": "1", "GONOGO_RUN": "run_x"}
    with subprocess.Popen(["sleep", "60"], env=environ) as process:
        stat = load_stat(process.pid)
        assert stat is not None
        record = {"pid": process.pid, "start_ticks": stat.start_ticks, "wrapper": 1}
        (tmp_path / ".rank0.json").write_text(json.dumps(record))
        wait_until(lambda: b"sleep" in cmdline(process.pid), "the exec")
        yield process
        process.kill()


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def prober(path: Path, world_size: int = 1) -> Prober:
    return Prober(RunDir(path), Place.of({"world_size": world_size}))


def only(probes: list[RankProbe]) -> RankProbe:
    assert len(probes) == 1
    return probes[0]


def test_first_look_tells_state_and_the_environment_that_is_really_there(
    tmp_path: Path, rank: subprocess.Popen[bytes]
) -> None:
    probe = only(prober(tmp_path).look(0.0, ending=False).ranks)
    assert (probe.pid, probe.state) == (rank.pid, ProcessState.ALIVE)
    assert probe.env == {"NSA_TB_DISABLE": "1"}


OVERWRITES = """
import ctypes, re, time
maps = open("/proc/self/stat").read().rpartition(")")[2].split()
start, end = int(maps[47]), int(maps[48])
ctypes.memset(start, 0, end - start)
print("done", flush=True)
time.sleep(60)
"""


def test_an_environment_that_was_overwritten_is_not_known(tmp_path: Path) -> None:
    """As setproctitle does: what cannot be read contradicts no order."""
    environ = {"PATH": os.environ["PATH"], "NSA_TB_DISABLE": "1", "GONOGO_RUN": "run_x"}
    command = [sys.executable, "-c", OVERWRITES]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        stat = load_stat(process.pid)
        assert stat is not None
        record = {"pid": process.pid, "start_ticks": stat.start_ticks, "wrapper": 1}
        (tmp_path / ".rank0.json").write_text(json.dumps(record))
        assert only(prober(tmp_path).look(0.0, ending=False).ranks).env is None
        process.kill()


def test_unchanged_process_is_told_again_now_and_then_only(
    tmp_path: Path, rank: subprocess.Popen[bytes]
) -> None:
    looker = prober(tmp_path)
    looker.look(0.0, ending=False)
    assert looker.look(0.2, ending=False).ranks == []
    again = only(looker.look(REPEAT_S + 0.1, ending=False).ranks)
    assert (again.state, again.env) == (ProcessState.ALIVE, None)


def test_stopped_process_is_told_at_once(tmp_path: Path, rank: subprocess.Popen[bytes]) -> None:
    looker = prober(tmp_path)
    looker.look(0.0, ending=False)
    rank.send_signal(signal.SIGSTOP)
    wait_until(lambda: (stat := load_stat(rank.pid)) and stat.state == "T", "the stop")
    assert only(looker.look(0.2, ending=False).ranks).state is ProcessState.STOPPED
    assert looker.targets()[0].stopped


def test_death_is_told_and_then_how_once_the_stamp_is_there(
    tmp_path: Path, rank: subprocess.Popen[bytes]
) -> None:
    looker = prober(tmp_path)
    looker.look(0.0, ending=False)
    rank.kill()
    rank.wait()
    first = only(looker.look(0.2, ending=False).ranks)
    assert (first.state, first.signal) == (ProcessState.DEAD, None)
    stamp = {"v": 1, "code": None, "signal": 9, "at": 5.0}
    (tmp_path / "exit_rank0.json").write_text(json.dumps(stamp))
    second = only(looker.look(0.4, ending=False).ranks)
    assert (second.state, second.signal, second.exit_at) == (ProcessState.DEAD, 9, 5.0)
    assert looker.all_gone()


@pytest.mark.parametrize(("code", "told"), [(3, True), (0, True), (1, False), (None, False)])
def test_death_in_a_run_that_was_asked_to_end_tells_only_that_it_left(
    tmp_path: Path, rank: subprocess.Popen[bytes], code: int | None, told: bool
) -> None:
    rank.kill()
    rank.wait()
    stamp = {"v": 1, "code": code, "signal": None if code is not None else 15, "at": 5.0}
    (tmp_path / "exit_rank0.json").write_text(json.dumps(stamp))
    assert bool(prober(tmp_path).look(0.0, ending=True).ranks) is told


def test_agent_is_told_from_the_keepers_file(tmp_path: Path, rank: subprocess.Popen[bytes]) -> None:
    stat = load_stat(rank.pid)
    assert stat is not None
    agent = {"pid": rank.pid, "start_ticks": stat.start_ticks, "ended": None}
    keeper = tmp_path / "keeper.json"
    keeper.write_text(json.dumps({"agent": agent}))
    looker = prober(tmp_path)
    alive = AgentProbe(pid=rank.pid, state=ProcessState.ALIVE)
    assert looker.look(0.0, ending=False).agent == alive
    assert looker.look(0.2, ending=False).agent is None
    ended = {"code": 1, "signal": None, "at": 2.0}
    keeper.write_text(json.dumps({"agent": {**agent, "ended": ended}}))
    dead = AgentProbe(pid=rank.pid, state=ProcessState.DEAD, code=1)
    assert looker.look(0.4, ending=False).agent == dead


def test_a_launchers_rank_that_is_gone_may_begin_anew_as_long_as_the_launcher_lives(
    tmp_path: Path, rank: subprocess.Popen[bytes]
) -> None:
    record = json.loads((tmp_path / ".rank0.json").read_text())
    own = load_stat(os.getpid())
    assert own is not None
    agent: dict[str, object] = {"pid": own.pid, "start_ticks": own.start_ticks, "ended": None}
    keeper = tmp_path / "keeper.json"
    keeper.write_text(json.dumps({"agent": agent}))
    looker = prober(tmp_path)
    assert only(looker.look(0.0, ending=False).ranks).state is ProcessState.ALIVE
    (tmp_path / ".rank0.json").write_text(json.dumps({**record, "launched": True}))
    rank.kill()
    rank.wait()
    assert only(looker.look(0.2, ending=False).ranks).state is ProcessState.UNKNOWN
    again = {"pid": own.pid, "start_ticks": own.start_ticks, "wrapper": 1, "launched": True}
    (tmp_path / ".rank0.json").write_text(json.dumps(again))
    anew = only(looker.look(0.4, ending=False).ranks)
    assert (anew.pid, anew.state) == (own.pid, ProcessState.ALIVE)
    (tmp_path / ".rank0.json").write_text(json.dumps({**record, "launched": True}))
    keeper.write_text(json.dumps({"agent": {**agent, "ended": {"code": 1, "signal": None}}}))
    (tmp_path / "exit_rank0.json").write_text(json.dumps({"v": 1, "code": 7, "at": 5.0}))
    dead = only(looker.look(0.6, ending=False).ranks)
    assert (dead.state, dead.code) == (ProcessState.DEAD, 7)
