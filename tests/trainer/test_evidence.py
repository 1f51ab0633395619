"""Answers to requests for evidence: stacks and collectives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import gonogo.trainer
from gonogo.rundir import RunDir
from gonogo.trainer.evidence import REQUEST
from tests.servers import wait_until
from tests.trainer.runs import (
    LAUNCH,
    LOOPS,
    ROOT,
    environment,
    lines_of,
    said,
    steps_of,
    write_order,
)


@pytest.fixture(autouse=True)
def own_handler() -> Iterator[None]:
    """Nothing of a test stays behind at SIGUSR1."""
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_stacks_are_written_on_request_each_time_under_a_name_of_their_own(tmp_path: Path) -> None:
    run = write_order(tmp_path / "run")
    with gonogo.trainer.attach(run, rank=0, world_size=1) as beat:
        for count in (1, 2):
            os.kill(os.getpid(), signal.SIGUSR1)
            wait_until(lambda: len(said(lines_of(run), "stackdump")) == count, what="a dump")  # noqa: B023
        beat.step(loss=1.0)
    paths = [str(line.path) for line in said(lines_of(run), "stackdump")]
    assert len(set(paths)) == 2
    for path in paths:
        assert "test_stacks_are_written_on_request" in (run / path).read_text()
    assert not list(run.glob(".stackdump*"))


def test_a_script_that_handles_the_signal_itself_goes_on_doing_so(tmp_path: Path) -> None:
    seen: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    run = write_order(tmp_path / "run")
    with gonogo.trainer.attach(run, rank=0, world_size=1) as beat:
        os.kill(os.getpid(), signal.SIGUSR1)
        beat.step(loss=1.0)
    assert seen == [signal.SIGUSR1]
    assert not list(run.glob("*stackdump*"))


@pytest.mark.long
def test_both_ranks_answer_with_the_collectives_that_they_have_entered(tmp_path: Path) -> None:
    run = write_order(tmp_path / "run", steps=5000, world_size=2, train={"step_s": 0.02})
    command = [*LAUNCH, "--nproc-per-node", "2", "-m", f"{LOOPS}.ddp"]
    environ = environment(run, TORCH_FR_BUFFER_SIZE="2000")
    evidence = RunDir(run).evidence
    with subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.PIPE) as launched:
        try:
            wait_until(
                lambda: len(steps_of(lines_of(run, 1), "step_end")) >= 3,
                what="three steps",
                limit_s=200,
            )
            evidence.mkdir()
            (evidence / REQUEST).write_text("which")
            answers = [evidence / f"collectives_rank{rank}.json" for rank in (0, 1)]
            wait_until(lambda: all(path.exists() for path in answers), what="both answers")
        finally:
            RunDir(run).halt.touch()
            launched.communicate(timeout=200)
    for rank, path in enumerate(answers):
        said_by_rank = json.loads(path.read_text())
        assert (said_by_rank["request"], said_by_rank["rank"]) == ("which", rank)
        assert "error" not in said_by_rank
        assert [0, 1] in said_by_rank["groups"].values()
        assert {row["profiling_name"] for row in said_by_rank["entries"]} >= {"gloo:all_reduce"}
