"""One supervised run with real processes: how it ends, by whom, and that nothing is left."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from hashlib import sha256
from pathlib import Path

import pytest

from gonogo.contract.outcome import Actor, Detector, OutcomeCode
from gonogo.contract.records import RankExit
from gonogo.rundir import load_record
from gonogo.supervise.processes import ProcessRef, load_stat, send_signal
from tests.supervise.runs import NewRun, SupervisedRun, wait_until


def dead_after_s(run: SupervisedRun, since: float) -> float:
    """Seconds from a moment to the end of the run's last rank, by their own stamps."""
    stamps = [load_record(run.dir.rank_exit(rank), RankExit) for rank in range(2)]
    return max(stamp.at for stamp in stamps if stamp is not None) - since


@pytest.mark.long
def test_healthy_run_completes_and_leaves_nothing_behind(new_run: NewRun) -> None:
    run = new_run()
    record = run.wait_for_exit()
    assert (record.reason, record.ended_by) == (OutcomeCode.COMPLETED, Actor.TRAINER)
    assert (record.code, record.signal) == (0, None)
    assert run.findings() == []
    assert [run.beats(rank)[-1]["msg"] for rank in range(2)] == ["done", "done"]
    assert run.living() == []
    assert (record.run, record.attempt) == (run.order.run, run.order.attempt)
    assert record.order_sha256 == sha256(run.dir.order.read_bytes()).hexdigest()
    assert record.watch is not None
    watched = run.dir.watch.read_bytes()[: record.watch.bytes]
    assert record.watch.sha256 == sha256(watched).hexdigest()
    run.assert_replays()


@pytest.mark.long
def test_hanging_rank_is_named_and_ended_and_the_evidence_shows_where(new_run: NewRun) -> None:
    run = new_run(fault="hang:rank=1,step=12,section=backward")
    record = run.wait_for_exit()
    assert (record.reason, record.ended_by) == (OutcomeCode.STALLED, Actor.WATCHDOG)
    finding = run.halts()[0]
    assert (finding.detector, finding.rank, finding.section) == (Detector.STALL, 1, "backward")
    assert finding.since is not None
    assert finding.at - finding.since <= 2.5 + 2
    assert dead_after_s(run, finding.at) <= 3.0
    assert run.living() == []
    evidence = finding.evidence
    assert all((run.path / path).is_file() for path in evidence)
    stacks = [path for path in evidence if path.endswith("stacks_rank1.txt")]
    assert "strike" in (run.path / stacks[0]).read_text()
    names = {Path(path).name for path in evidence}
    assert {"proc_rank0.txt", "log_rank0.txt"} <= names
    run.assert_replays()


@pytest.mark.parametrize(
    ("fault", "rank", "value"),
    [
        pytest.param("crash:rank=1,step=8", 1, -9.0, id="SIGKILL"),
        pytest.param(
            "exit:code=0,rank=1,step=8", 1, 0.0, id="code 0 too early", marks=pytest.mark.long
        ),
    ],
)
def test_dead_rank_is_found_within_a_second(
    new_run: NewRun, fault: str, rank: int, value: float
) -> None:
    run = new_run(fault=fault)
    record = run.wait_for_exit()
    assert (record.reason, record.ended_by) == (OutcomeCode.NONZERO_EXIT, Actor.TRAINER)
    finding = run.halts()[0]
    assert (finding.detector, finding.rank) == (Detector.PROCESS_DEATH, rank)
    assert finding.value == value
    stamp = load_record(run.dir.rank_exit(rank), RankExit)
    assert stamp is not None
    assert finding.at - stamp.at <= 1.0
    assert dead_after_s(run, finding.at) <= 3.0
    assert run.living() == []


@pytest.mark.long
def test_slow_run_leaves_with_a_checkpoint(new_run: NewRun) -> None:
    run = new_run(fault="slow:factor=6,from=22", steps=60)
    record = run.wait_for_exit()
    assert (record.reason, record.ended_by, record.code) == (
        OutcomeCode.TOO_SLOW,
        Actor.WATCHDOG,
        3,
    )
    assert run.halts()[0].detector == Detector.SLOW
    assert [path.name for path in run.dir.checkpoints.iterdir()] == [f"step_{run.step():06d}"]
    assert len({run.beats(rank)[-1]["step"] for rank in range(2)}) == 1


@pytest.mark.long
def test_no_checkpoint_is_written_after_a_non_finite_loss(new_run: NewRun) -> None:
    run = new_run(fault="nan:step=15", steps=100)
    record = run.wait_for_exit()
    assert (record.reason, record.ended_by) == (OutcomeCode.NON_FINITE, Actor.WATCHDOG)
    assert not run.dir.checkpoints.exists()
    first = next(b for b in run.beats(0) if b.get("loss") == "NaN")
    assert run.halts()[0].at - first["ts"] <= 1.0


@pytest.mark.long
def test_rank_that_ignores_sigterm_and_forks_for_ever_is_ended(new_run: NewRun) -> None:
    run = new_run(fault="deaf:rank=1,step=8")
    run.wait_for_exit()
    finding = run.halts()[0]
    assert dead_after_s(run, finding.at) <= 3.0
    assert run.living() == []


def test_deadline_ends_a_run_with_a_checkpoint(new_run: NewRun) -> None:
    run = new_run(steps=2000, limits={"deadline_s": 4.0})
    record = run.wait_for_exit()
    assert (record.reason, record.ended_by) == (OutcomeCode.DEADLINE, Actor.WATCHDOG)
    assert record.code == 3
    assert run.dir.checkpoints.is_dir() is (run.step() > 0)
    assert run.halts() == []


@pytest.mark.parametrize(
    ("number", "reason", "by"),
    [
        (signal.SIGTERM, OutcomeCode.PREEMPTED, Actor.INFRA),
        pytest.param(signal.SIGINT, OutcomeCode.HALTED, Actor.OPERATOR, marks=pytest.mark.long),
    ],
    ids=["a host that is taken away", "a person"],
)
def test_keeper_told_to_stop_ends_its_run_with_a_checkpoint(
    new_run: NewRun, number: signal.Signals, reason: OutcomeCode, by: Actor
) -> None:
    run = new_run(steps=2000)
    run.wait_for_step(3)
    assert run.keeper is not None
    run.keeper.send_signal(number)
    record = run.wait_for_exit()
    assert (record.reason, record.ended_by) == (reason, by)
    assert record.code == 3
    assert run.dir.checkpoints.is_dir()
    assert run.halts() == []


@pytest.mark.long
def test_term_for_every_process_of_a_job_is_a_preemption_with_a_checkpoint(new_run: NewRun) -> None:
    """As Slurm sends it, and more than once in one ending: to launcher, ranks and keeper."""
    run = new_run("--shield", steps=2000)
    run.wait_for_step(3)
    assert run.keeper is not None
    for _ in range(2):
        for pid in (*run.living(), run.keeper.pid):
            send_signal(pid, signal.SIGTERM)
        wait_until(run.dir.halt.exists, ".HALT")
    record = run.wait_for_exit()
    assert (record.reason, record.ended_by) == (OutcomeCode.PREEMPTED, Actor.INFRA)
    assert {row.code for row in record.ranks.values()} == {3}
    assert run.living() == []


@pytest.mark.long
def test_a_signal_that_is_meant_for_the_trainer_ends_no_run(new_run: NewRun) -> None:
    """`scancel --signal=USR1` sends it to the whole job: keeper, launcher and watcher, too."""
    run = new_run("--shield", steps=40)
    run.wait_for_step(3)
    assert run.keeper is not None
    kept = json.loads((run.path / "keeper.json").read_text())
    for pid in (run.keeper.pid, kept["agent"]["pid"], kept["watcher"]["pid"]):
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            send_signal(pid, number)
    assert run.wait_for_exit().reason is OutcomeCode.COMPLETED
    assert "the watcher died" not in (run.path / "keeper.log").read_text()


@pytest.mark.long
def test_keeper_told_to_stop_twice_ends_a_hanging_run_at_once(new_run: NewRun) -> None:
    run = new_run(fault="hang:rank=1,step=3", watch={"stall": {"early_s": 500.0}})
    run.wait_for_step(2)
    assert run.keeper is not None
    run.keeper.send_signal(signal.SIGINT)
    wait_until(run.dir.halt.exists, ".HALT")
    run.keeper.send_signal(signal.SIGTERM)
    record = run.wait_for_exit()
    assert (record.reason, record.ended_by) == (OutcomeCode.HALTED, Actor.OPERATOR)
    assert record.text == "the keeper was asked to stop"
    assert run.living() == []


def test_keeper_told_to_stop_twice_ends_a_run_whose_file_system_is_gone(new_run: NewRun) -> None:
    """It waits for a disk to come back for as long as that takes, but for a person's word."""
    run = new_run("--allow", "any", entry=None, command=["sleep", "600"], world_size=1, steps=None)
    wait_until(lambda: (run.path / ".rank0.json").exists(), "the program")
    assert run.keeper is not None
    aside = run.path.rename(run.path.with_name("aside"))
    run.path.symlink_to("x" * 300)  # any access behind it is refused
    try:
        for _ in range(2):
            run.keeper.send_signal(signal.SIGTERM)
            time.sleep(0.5)
        wait_until(lambda: not run.living(), "nothing to be left")
    finally:
        run.path.unlink()
        aside.rename(run.path)
    record = run.wait_for_exit()
    assert (record.reason, record.ended_by) == (OutcomeCode.PREEMPTED, Actor.INFRA)


def test_killed_keeper_takes_everything_along(new_run: NewRun) -> None:
    """The watcher carries no token of a run: its end is not by that token."""
    run = new_run(steps=2000, environ={"GONOGO_RUN": "run_around"})
    run.wait_for_step(3)
    assert "GONOGO_RUN" not in names_of(run.pid_of("watcher"))
    watcher = ProcessRef(pid=run.pid_of("watcher"), start_ticks=start_of(run.pid_of("watcher")))
    assert run.keeper is not None
    run.keeper.kill()
    wait_until(lambda: not run.living() and not watcher.is_alive(), "nothing left", limit_s=20.0)
    assert not run.dir.exit.exists()


@pytest.mark.long
def test_killed_agent_is_a_process_death_and_its_ranks_go_too(new_run: NewRun) -> None:
    run = new_run(steps=2000)
    run.wait_for_step(3)
    send_signal(run.pid_of("agent"), signal.SIGKILL)
    record = run.wait_for_exit()
    assert (record.reason, record.ended_by) == (OutcomeCode.NONZERO_EXIT, Actor.TRAINER)
    assert run.halts()[0].detector == Detector.PROCESS_DEATH
    assert run.living() == []


@pytest.mark.long
def test_second_keeper_of_a_directory_changes_nothing(new_run: NewRun) -> None:
    run = new_run()
    run.wait_for_step(1)
    first = run.document()["pid"]
    second = SupervisedRun(path=run.path, order=run.order).start()
    assert second.keeper is not None
    assert second.keeper.wait(timeout=120) == 75
    assert run.document()["pid"] == first
    assert run.wait_for_exit().reason is OutcomeCode.COMPLETED


def test_device_is_held_while_ranks_live_and_free_after_the_end(
    new_run: NewRun, tmp_path: Path
) -> None:
    lock = tmp_path / "locks" / "cpu:0.lock"
    first = new_run("--lock", str(lock), steps=2000)
    first.wait_for_step(1)
    second = new_run("--lock", str(lock))
    assert second.keeper is not None
    assert second.keeper.wait(timeout=120) == 75
    assert not (second.path / "keeper.json").exists()
    assert first.keeper is not None
    first.keeper.send_signal(signal.SIGTERM)
    first.wait_for_exit()
    assert subprocess.run(["flock", "-n", str(lock), "true"], check=False).returncode == 0


def names_of(pid: int) -> set[str]:
    """Return the names in the environment of a process."""
    raw = Path(f"/proc/{pid}/environ").read_bytes()
    return {part.partition(b"=")[0].decode() for part in raw.split(b"\0")}


def start_of(pid: int) -> int:
    stat = load_stat(pid)
    assert stat is not None
    return stat.start_ticks


@pytest.mark.long
def test_program_that_cannot_start_is_a_death_without_a_heartbeat(new_run: NewRun) -> None:
    run = new_run("--allow", "tests.worker.no_such_module", entry="tests.worker.no_such_module")
    record = run.wait_for_exit()
    assert (record.reason, record.ended_by, record.code) == (
        OutcomeCode.NONZERO_EXIT,
        Actor.TRAINER,
        1,
    )
    assert "No module named" in run.dir.rank_log(0).read_text()
    assert run.halts()[0].detector == Detector.PROCESS_DEATH


def test_entry_that_is_not_allowed_is_not_started(new_run: NewRun) -> None:
    run = new_run(entry="os.path")
    record = run.wait_for_exit()
    assert (record.reason, record.ended_by) == (OutcomeCode.START_FAILED, Actor.TRAINER)
    assert "os.path" in record.text
    assert not run.dir.torchrun_log.exists()
