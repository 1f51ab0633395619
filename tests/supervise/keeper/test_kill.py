"""Every process of a run is ended and that is proved; a process that cannot be ended is known by
its state."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.records import ExitRecord, Unended
from gonogo.contract.wire import Kind, new_id
from gonogo.rundir import RunDir
from gonogo.supervise.end_request import EndRequest, ask_halt, ask_kill
from gonogo.supervise.keeper import kill
from gonogo.supervise.keeper.kill import UNKILLABLE_S, Killer, TokenScan, end_processes
from gonogo.supervise.lost_run import end_lost
from gonogo.supervise.processes import ProcessRef, find_process, load_environ
from tests.supervise.runs import NewRun, build_test_order, wait_until

FREEZER = Path("/sys/fs/cgroup/freezer")
ROOT_OF_TWO = """
import os, subprocess, sys, time
from gonogo.supervise.processes import become_subreaper
become_subreaper()
marked, plain = dict(os.environ, GONOGO_RUN=sys.argv[1]), dict(os.environ)
for environ in (marked, plain):
    process = subprocess.Popen(["sleep", "120"], env=environ, start_new_session=True)
    print(process.pid, flush=True)
time.sleep(120)
"""
Two = tuple[subprocess.Popen[str], str, ProcessRef, ProcessRef]


@pytest.fixture
def two() -> Iterator[Two]:
    """A keeper's stand-in with two children: one that carries a token, and one that does not."""
    token = new_id(Kind.RUN)
    command = [sys.executable, "-c", ROOT_OF_TWO, token]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as root:
        assert root.stdout is not None
        children = [find_process(int(root.stdout.readline())) for _ in range(2)]
        assert children[0] is not None
        assert children[1] is not None
        yield root, token, children[0], children[1]
        for process in children:
            assert process is not None
            process.send(signal.SIGKILL)
        root.kill()


def build_killer(two: Two, **changes: Any) -> Killer:
    root, token, *_ = two
    parts: dict[str, Any] = {
        "scan": TokenScan(token), "agent": None, "ranks": [], "spare": frozenset, "grace_s": 0.0,
        "dump": False, "now": 0.0, "root": root.pid,
    }  # fmt: skip
    return Killer(**{**parts, **changes})


Freeze = Callable[[ProcessRef], Callable[[], object]]


@pytest.fixture
def freeze() -> Iterator[Freeze]:
    """Freezes a process so that nothing can kill it; the result lets it continue."""
    folder = FREEZER / f"gonogo_{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no freezer of control groups here: {error}")
    state = folder / "freezer.state"

    def stop(process: ProcessRef) -> Callable[[], object]:
        (folder / "cgroup.procs").write_text(str(process.pid))
        state.write_text("FROZEN")
        wait_until(lambda: state.read_text() == "FROZEN\n", "the frost")
        return lambda: state.write_text("THAWED")

    yield stop
    state.write_text("THAWED")
    wait_until(lambda: not (folder / "cgroup.procs").read_text(), "the end of the frozen")
    folder.rmdir()


def test_what_descends_and_what_carries_the_token_is_ended(two: Two) -> None:
    killer, (_, _, marked, plain) = build_killer(two), two
    wait_until(lambda: killer.advance(time.monotonic()), "the end")
    assert not marked.is_alive()
    assert not plain.is_alive()
    assert killer.left() == []


class Counted(TokenScan):
    """Counts its sweeps."""

    sweeps = 0

    def sweep(self, *args: int, **named: Any) -> tuple[frozenset[ProcessRef], bool]:
        self.sweeps += 1
        return super().sweep(*args, **named)


def test_what_cannot_be_killed_is_told_after_a_minute(two: Two, freeze: Freeze) -> None:
    scan, (_, _, marked, plain) = Counted(two[1]), two
    killer = build_killer(two, scan=scan)
    thaw = freeze(plain)
    for tenth in range(40):
        assert not killer.advance(tenth / 10)
        assert not killer.has_given_up(tenth / 10)
    assert not marked.is_alive()
    assert 3 < scan.sweeps < 20
    assert not killer.has_given_up(UNKILLABLE_S - 0.1)
    assert not killer.advance(UNKILLABLE_S + 1.0)
    assert killer.has_given_up(UNKILLABLE_S + 1.0)
    (left,) = killer.left()
    assert (left["pid"], left["state"]) == (plain.pid, "D")
    assert Unended.model_validate(left).wchan == left["wchan"]
    thaw()
    wait_until(lambda: not plain.is_alive(), "its end")
    assert killer.advance(UNKILLABLE_S + 30.0)


def test_what_its_records_name_is_ended_without_a_token(two: Two) -> None:
    _, token, marked, plain = two
    assert end_processes(token, [plain]) == frozenset()
    assert not marked.is_alive()
    assert not plain.is_alive()


def test_a_process_whose_environment_cannot_be_read_hangs_nobody(
    two: Two, caplog: pytest.LogCaptureFixture
) -> None:
    _, token, marked, plain = two
    freed = threading.Event()

    def read(pid: int) -> bytes:
        if pid == plain.pid:
            freed.wait(60)
        return load_environ(pid)

    scan = TokenScan(token, limit_s=1.0, read=read)
    with caplog.at_level(logging.WARNING):
        _, whole = scan.sweep()
    assert not whole
    assert str(plain.pid) in caplog.text
    assert scan.sweep() == ({marked}, True)
    freed.set()


def test_a_host_without_threads_scans_all_the_same(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(kill, "start_thread", refuse)
    assert TokenScan(two[1]).sweep() == ({two[2]}, True)


def test_a_lost_run_of_which_something_cannot_be_killed_has_an_end_after_a_minute(
    two: Two, freeze: Freeze, tmp_path: Path
) -> None:
    _, token, marked, _ = two
    run_dir = RunDir(tmp_path / token)
    run_dir.path.mkdir()
    order = build_test_order(token)
    thaw = freeze(marked)
    assert end_lost(run_dir, order, time.time()) is None
    assert end_lost(run_dir, order, time.time() + UNKILLABLE_S / 2) is None
    record = end_lost(run_dir, order, time.time() + UNKILLABLE_S + 1.0)
    assert record is not None
    assert [(row.pid, row.state) for row in record.left] == [(marked.pid, "D")]
    assert ExitRecord.model_validate_json(run_dir.exit.read_bytes()) == record
    thaw()


@pytest.mark.parametrize(
    ("reason", "by", "ended"),
    [
        ("non_finite", "watchdog", ("non_finite", "watchdog")),
        ("diverged", "watchdog", ("diverged", "watchdog")),
        ("stalled", "watchdog", ("keeper_lost", "infra")),  # of a host that went down, perhaps
        ("halted", "operator", ("keeper_lost", "infra")),
        ("preempted", "infra", ("preempted", "infra")),  # and killed before it had left
    ],
)
def test_a_lost_run_ended_by_what_it_was_asked_to_end_for_where_that_is_certain(
    reason: str, by: str, ended: tuple[str, str], tmp_path: Path
) -> None:
    token = new_id(Kind.RUN)
    run_dir = RunDir(tmp_path / token)
    run_dir.path.mkdir()
    ask_halt(run_dir.path, EndRequest(reason=reason, ended_by=by, at=1.0, text="the loss is NaN"))
    late = EndRequest(reason="halted", ended_by="operator", at=2.0)
    ask_kill(run_dir.path, late)
    record = end_lost(run_dir, build_test_order(token), time.time())
    assert record is not None
    assert (record.reason, record.ended_by) == ended
    assert record.text == (
        "the worker was lost before the launch"
        if ended[0] == "keeper_lost"
        else "the loss is NaN; then the worker was lost before the launch"
    )


@pytest.mark.long
def test_a_run_of_which_a_rank_cannot_be_killed_has_an_end_and_keeps_its_device(
    new_run: NewRun, freeze: Freeze, tmp_path: Path
) -> None:
    lock = tmp_path / "locks" / "cuda:0.lock"
    run = new_run("--lock", str(lock), world_size=1, train={"step_s": 0.05}, steps=100_000)
    run.wait_for_step(3)
    rank = find_process(run.beats(0)[-1]["pid"])
    assert rank is not None
    thaw = freeze(rank)
    assert run.keeper is not None
    run.keeper.send_signal(signal.SIGINT)
    wait_until(run.dir.halt.exists, ".HALT")
    run.keeper.send_signal(signal.SIGINT)
    wait_until(run.dir.exit.exists, "its end", limit_s=3 * UNKILLABLE_S)
    record = ExitRecord.model_validate_json(run.dir.exit.read_bytes())
    assert record.reason is OutcomeCode.HALTED
    assert [row.pid for row in record.left] == [rank.pid]
    assert record.left[0].state == "D"
    thaw()
    assert run.keeper.wait(60) == 0
