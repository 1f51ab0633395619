"""The watcher with real processes: killed, stopped, restarted, cut off; the run continues."""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from gonogo.contract.finding import Severity
from gonogo.contract.order import Order
from gonogo.contract.outcome import Actor, Detector, OutcomeCode
from gonogo.contract.plan import hardware_profiles
from gonogo.rundir import load_all_lines, load_record
from gonogo.supervise.end_request import KILL_NAME, load_request
from gonogo.supervise.processes import send_signal
from gonogo.supervise.watcher.journal import WATCHED_NAME
from gonogo.supervise.watcher.metrics_file import Shipping, Snapshot, load_metrics
from gonogo.supervise.watcher.watcher import Watcher
from gonogo.watch.offline_fold import refold
from gonogo.watch.registry import detector_names
from tests.supervise.runs import ROOT, NewRun, SupervisedRun, wait_until


@pytest.mark.long
def test_killed_watcher_is_back_and_the_trainer_never_stopped(new_run: NewRun) -> None:
    run = new_run(steps=80)
    for step in (5, 15, 25):
        run.wait_for_step(step)
        pid = run.pid_of("watcher")
        send_signal(pid, signal.SIGKILL)
        wait_until(functools.partial(has_other_watcher, run, pid), "another watcher")
    record = run.wait_for_exit()
    assert record.reason is OutcomeCode.COMPLETED
    assert run.findings() == []
    assert len({beat["boot"] for beat in run.beats(0)}) == 1
    run.assert_replays()


def has_other_watcher(run: SupervisedRun, pid: int) -> bool:
    return run.pid_of("watcher") != pid


def test_watcher_killed_between_finding_and_kill_completes_the_halt_once(new_run: NewRun) -> None:
    run = new_run(fault="crash:rank=1,step=8")
    record = run.wait_for_exit()
    halts = run.halts()
    ticks, findings = run.dir.watch.read_bytes(), run.dir.findings.read_bytes()
    (run.path / KILL_NAME).unlink(missing_ok=True)  # the launcher may have been faster
    run.dir.exit.unlink()
    watcher = subprocess.Popen(
        [sys.executable, "-m", "gonogo.supervise.watcher", str(run.path)],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith("GONOGO_")},
        stderr=subprocess.DEVNULL,
    )
    try:
        request = wait_until(lambda: load_request(run.path / KILL_NAME), "the halt's completion")
    finally:
        run.dir.exit.write_text(record.model_dump_json())
        assert watcher.wait(timeout=120) == 0
    assert (request.key, request.reason) == (halts[0].key, "nonzero_exit")
    assert run.dir.findings.read_bytes() == findings
    assert run.dir.watch.read_bytes().startswith(ticks)


@pytest.mark.long
def test_a_watcher_reads_nothing_of_its_release_once_it_watches(
    new_run: NewRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be replaced under a run, or removed: a look that needs it would lose its lines."""
    run = new_run(steps=40, detectors=detector_names())
    run.wait_for_exit()
    wait_until((run.path / WATCHED_NAME).exists, "the end of the watch")
    run.dir.watch.unlink()
    order = load_record(run.dir.order, Order)
    assert order is not None
    hardware_profiles.cache_clear()
    clock = itertools.count(1e6, 0.3)
    watcher = Watcher(run.dir, order, Shipping(), next(clock))
    monkeypatch.setattr(resources, "files", lambda _package: tmp_path / "gone")
    watcher.watch(lambda: next(clock), lambda _seconds: None)
    found = refold(run.path)
    assert found.findings == []


@pytest.mark.long
def test_stopped_watcher_halts_nothing_on_waking(new_run: NewRun) -> None:
    run = new_run(steps=120)
    run.wait_for_step(5)
    pid = run.pid_of("watcher")
    send_signal(pid, signal.SIGSTOP)
    step = run.step()
    run.wait_for_step(step + 70)  # 3.5 s and more, beyond every limit of the order
    send_signal(pid, signal.SIGCONT)
    assert run.wait_for_exit().reason is OutcomeCode.COMPLETED
    assert run.halts() == []
    late = [json.loads(line).get("late_s", 0.0) for line in load_all_lines(run.dir.watch)]
    assert max(late) > 2.5
    run.assert_replays()


@pytest.mark.long
def test_watchers_that_die_one_after_the_other_end_the_run(new_run: NewRun) -> None:
    run = new_run(steps=2000)
    run.wait_for_step(2)
    killed: set[int] = set()

    def kill_the_next() -> bool:
        watcher = run.document()["watcher"]
        *before, since = run.dir.watch.read_bytes().split(b'"start":{')
        looked = len(before) > len(killed) and since.count(b"\n") > 1
        if looked and watcher is not None and watcher["pid"] not in killed:
            killed.add(watcher["pid"])
            send_signal(watcher["pid"], signal.SIGKILL)
        return len(killed) == 5

    wait_until(kill_the_next, "five deaths")
    record = run.wait_for_exit()
    assert (record.reason, record.ended_by) == (OutcomeCode.WATCHER_FAILED, Actor.INFRA)
    assert record.code == 3
    assert run.dir.checkpoints.is_dir()


@pytest.mark.long
def test_neighbour_of_a_hanging_run_is_untouched(new_run: NewRun) -> None:
    sick = new_run(fault="hang:rank=0,step=6,section=forward")
    healthy = new_run(steps=80)
    assert sick.wait_for_exit().reason is OutcomeCode.STALLED
    assert healthy.wait_for_exit().reason is OutcomeCode.COMPLETED
    assert healthy.findings() == []
    assert sick.halts()[0].rank == 0


@pytest.mark.long
def test_suspicion_takes_evidence_and_costs_nothing(new_run: NewRun) -> None:
    run = new_run(fault="freeze:rank=0,step=9", steps=40)
    wait_until(lambda: [f for f in run.findings() if f.severity is Severity.SUSPECT], "a suspicion")
    record = json.loads((run.path / ".rank0.json").read_text())
    send_signal(record["pid"], signal.SIGCONT)
    ended = run.wait_for_exit()
    assert ended.reason is OutcomeCode.COMPLETED
    assert run.halts() == []
    assert run.findings()[0].evidence
    run.assert_replays()


@pytest.mark.long
def test_watcher_tells_the_exporter_what_it_sees(new_run: NewRun) -> None:
    run = new_run(fault="slow:factor=6,from=22", steps=60)

    def told() -> Snapshot | None:
        found = load_metrics(run.path)
        return found if found is not None and found.armed.get(Detector.STALL) else None

    assert wait_until(told, "an armed stall detector").armed[Detector.STALL] is True
    run.wait_for_exit()
    found = load_metrics(run.path)
    assert found is not None
    assert {rank: row.step is not None for rank, row in found.ranks.items()} == {
        "0": True,
        "1": True,
    }
    assert sum(found.step_s.counts) > 20
    assert set(found.findings) <= {f"{f.detector}/{f.severity}" for f in run.findings()}
