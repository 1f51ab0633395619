"""Keeper and watcher look after each other: whichever stands still, the run is looked after."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.records import ExitRecord
from gonogo.supervise.keeper.children import (
    DEATHS,
    FIRST_SIGN_S,
    PAUSE_S,
    SILENT_S,
    Child,
    Companion,
)
from gonogo.supervise.last_lines import Ended
from gonogo.supervise.processes import ProcessRef, find_process, send_signal
from tests.supervise.runs import WATCH, NewRun, wait_until

DIED = Ended(code=1, signal=None, at=0.0)
Started = list[tuple[ProcessRef, int]]


@pytest.fixture
def started() -> Iterator[Started]:
    """What was started: a process that does nothing, and the descriptor for its signs."""
    found: Started = []
    yield found
    for ref, descriptor in found:
        ref.send(signal.SIGKILL)
        os.close(descriptor)


@pytest.fixture
def start(started: Started) -> Callable[[int], Child]:
    def begin(signs: int) -> Child:
        process = subprocess.Popen(["sleep", "60"])
        process.returncode = 0  # the keeper reaps by itself
        ref = find_process(process.pid)
        assert ref is not None
        started.append((ref, os.dup(signs)))
        return Child(ref=ref, at=0.0)

    return begin


def give_sign(started: Started) -> None:
    os.write(started[-1][1], b".")


def test_a_watcher_that_gives_signs_is_left_alone(
    started: Started, start: Callable[[int], Child]
) -> None:
    companion = Companion("watcher", start)
    assert companion.tend(0.0)
    for second in range(1, 300):
        give_sign(started)
        assert not companion.tend(float(second))
    assert len(started) == 1
    assert started[0][0].is_alive()


def test_a_silent_one_is_ended_and_another_starts(
    started: Started, start: Callable[[int], Child], caplog: pytest.LogCaptureFixture
) -> None:
    companion = Companion("watcher", start)
    companion.tend(0.0)
    give_sign(started)
    companion.tend(1.0)
    for second in range(2, int(SILENT_S)):
        companion.tend(float(second))
    assert not caplog.messages
    with caplog.at_level(logging.WARNING):
        companion.tend(1.0 + SILENT_S)
    assert "no sign for 60 s (state " in caplog.text
    pid = started[0][0].pid
    assert os.waitpid(pid, 0) == (pid, signal.SIGKILL)
    assert companion.note(pid, Ended(code=None, signal=9, at=0.0), 2.1 + SILENT_S)
    assert companion.tend(2.2 + SILENT_S)
    assert len(started) == 2
    assert companion.failed is None


def test_before_its_first_look_it_has_the_time_to_read_a_long_run(
    started: Started, start: Callable[[int], Child]
) -> None:
    companion = Companion("watcher", start)
    for second in range(int(FIRST_SIGN_S)):
        companion.tend(float(second))
    assert started[0][0].is_alive()
    companion.tend(FIRST_SIGN_S)
    os.waitpid(started[0][0].pid, 0)


def test_deaths_before_the_first_look_end_nothing_and_are_tried_again(
    started: Started, start: Callable[[int], Child]
) -> None:
    companion = Companion("watcher", start)
    starts = []
    for second in range(600):
        if companion.tend(float(second)):
            starts.append(second)
            companion.note(started[-1][0].pid, DIED, float(second))
    assert companion.failed is None
    assert starts == list(range(0, 600, int(PAUSE_S)))


def test_watchers_that_die_one_after_the_other_while_they_watch_end_the_run(
    started: Started, start: Callable[[int], Child]
) -> None:
    companion = Companion("watcher", start)
    for second in range(DEATHS):
        assert companion.failed is None
        assert companion.tend(float(second))
        give_sign(started)
        companion.note(started[-1][0].pid, DIED, second + 0.5)
    assert companion.failed == "the watcher died 5 times in 60 s"
    assert not companion.tend(1e6)


def tended(companion: Companion, since: float, until: float) -> list[float]:
    """Tend it four times a second; return when one was started."""
    ticks = [since + n / 4 for n in range(int((until - since) * 4) + 1)]
    return [now for now in ticks if companion.tend(now)]


@pytest.fixture
def sampler(start: Callable[[int], Child]) -> Companion:
    return Companion("sampler", start, first_sign_s=SILENT_S, may_finish=True)


def test_a_sampler_that_dies_comes_back_after_a_pause_and_ends_nothing(
    sampler: Companion, started: Started
) -> None:
    assert sampler.tend(0.0)
    pauses, now = [], 0.0
    for _ in range(10):
        sampler.note(started[-1][0].pid, DIED, now)
        (again,) = tended(sampler, now, now + 80.0)
        pauses.append(again - now)
        now = again
    assert pauses == [PAUSE_S] * 10
    assert sampler.failed is None


def test_a_sampler_without_devices_is_not_started_again(
    sampler: Companion, started: Started
) -> None:
    sampler.tend(0.0)
    sampler.note(4711, DIED, 0.5)  # another process
    sampler.note(started[0][0].pid, Ended(code=0, signal=None, at=0.0), 1.0)
    assert tended(sampler, 1.0, 100.0) == []


def short(**settings: float) -> dict[str, object]:
    return {**WATCH, "watcher": settings}


def test_a_stopped_watcher_is_replaced(new_run: NewRun) -> None:
    run = new_run(steps=100_000, watch=short(silent_s=3.0))
    run.wait_for_step(3)
    first = run.pid_of("watcher")
    wait_until(lambda: (run.path / ".metrics.json").exists(), "the first look")
    send_signal(first, signal.SIGSTOP)
    wait_until(lambda: run.pid_of("watcher") != first, "another watcher")
    at = run.step()
    run.wait_for_step(at + 5)
    assert "it is replaced" in (run.path / "keeper.log").read_text()
    second = run.pid_of("watcher")
    assert run.keeper is not None
    run.keeper.send_signal(signal.SIGINT)
    assert run.wait_for_exit().reason is OutcomeCode.HALTED
    assert run.pid_of("watcher") == second
    run.assert_replays()


def test_a_watcher_that_cannot_begin_ends_no_run(new_run: NewRun, tmp_path: Path) -> None:
    """As after an upgrade under a living run."""
    package, leave = tmp_path / "broken_watcher.py", tmp_path / "leave"
    package.write_text("raise SystemExit('of another release')")
    run = new_run(
        "--watcher", "broken_watcher", "--allow", "any", world_size=1, entry=None, steps=None,
        command=["sh", "-c", f"until [ -e {leave} ]; do sleep 0.1; done"],
        environ={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    log = run.path / "keeper.log"
    wait_until(lambda: log.exists() and log.read_text().count("the watcher died") >= 2, "deaths")
    leave.touch()
    wait_until(run.dir.exit.exists, "its end")
    record = ExitRecord.model_validate_json(run.dir.exit.read_bytes())
    assert (record.reason, record.code) == (OutcomeCode.COMPLETED, 0)
