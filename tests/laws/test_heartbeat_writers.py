"""Do both writers keep the protocol? The workload's own and the library, by the same rules.

`nsa/heartbeat.py` is read from a real training of a tiny model, `gonogo.trainer` from a script of
the same shape: four steps, an evaluation after every second, a checkpoint at the end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

import gonogo.trainer
from gonogo.contract.heartbeat import MAX_LINE_BYTES, Heartbeat, Msg, Section, parse_heartbeat
from gonogo.rundir import RunDir
from gonogo.timeline.rank_steps import read_lines
from gonogo.trainer.heartbeat_writer import HeartbeatWriter
from gonogo.trainer.run_dir import RunDir as TrainerRunDir
from nsa.heartbeat import Heartbeat as WorkloadHeartbeat
from tests.nsa.runs import TINY
from tests.trainer.runs import write_order

ROOT = Path(__file__).parents[2]
STEPS = 4
ALWAYS = ("v", "ts", "mono", "pid", "rank", "boot", "seq", "step", "msg", "section", "section_seq")


def by_the_workload(folder: Path) -> None:
    """Train the tiny model as `python -m nsa.train` does."""
    config = {**TINY, "steps": STEPS, "eval": {"every_steps": 2, "batches": 1}}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(config))
    arguments = ["--config", str(folder / "tiny.yaml"), "--out", str(folder)]
    arguments += ["--checkpoint-every", str(STEPS)]
    subprocess.run(
        [sys.executable, "-m", "nsa.train", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
    )


def by_the_library(folder: Path) -> None:
    """Train nothing, and say so in the same shape."""
    write_order(folder, steps=STEPS)
    with gonogo.trainer.attach(folder, rank=0, world_size=1) as beat:
        for step in range(1, STEPS + 1):
            for name in ("data", "forward", "backward", "optimizer"):
                with beat.section(name):  # type: ignore[arg-type]
                    time.sleep(0.001)
            beat.step(loss=1.0 / step, tokens=10, grad_norm=1.0)
            if step % 2 == 0:
                with beat.section("eval"):
                    time.sleep(0.001)
                    beat.eval(2.0 / 3.0)
        with beat.section("checkpoint"):
            time.sleep(0.001)
            beat.checkpoint(folder / "checkpoints" / "step_000004")


@pytest.fixture(scope="module", params=[by_the_workload, by_the_library], ids=["nsa", "library"])
def raw(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The lines of one writer, as they stand in the file."""
    folder = tmp_path_factory.mktemp("run")
    write: Callable[[Path], None] = request.param
    write(folder)
    return RunDir(folder).heartbeat(0).read_bytes().splitlines(keepends=True)


@pytest.fixture
def lines(raw: list[bytes]) -> list[Heartbeat]:
    return [parse_heartbeat(line) for line in raw]


def steps_of(lines: list[Heartbeat], msg: Msg) -> list[int]:
    return [line.step for line in lines if line.msg == msg]


def test_every_line_is_one_object_with_all_that_every_line_has(raw: list[bytes]) -> None:
    for line in raw:
        assert line.endswith(b"\n")
        assert len(line) <= MAX_LINE_BYTES
        assert set(ALWAYS) <= json.loads(line).keys()
        assert json.loads(line)["v"] == 1


def test_one_process_numbers_its_lines_without_gaps(lines: list[Heartbeat]) -> None:
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
    assert len({(line.boot, line.pid, line.rank) for line in lines}) == 1


def test_its_clock_runs_on(lines: list[Heartbeat]) -> None:
    assert all(earlier.mono <= later.mono for earlier, later in pairwise(lines))
    assert all(abs((line.ts - line.mono) - (lines[0].ts - lines[0].mono)) < 5 for line in lines)


def test_the_first_line_says_what_runs(lines: list[Heartbeat]) -> None:
    boot = lines[0]
    assert (boot.msg, boot.section, boot.step) == (Msg.BOOT, Section.BOOT, 0)
    assert boot.world_size == 1
    assert boot.backend == "single"


def test_every_step_starts_tells_and_ends_in_this_order(lines: list[Heartbeat]) -> None:
    for step in range(1, STEPS + 1):
        said = [line.msg for line in lines if line.step == step]
        order = [msg for msg in said if msg in (Msg.STEP_START, Msg.PROGRESS, Msg.STEP_END)]
        assert list(dict.fromkeys(order)) == [Msg.STEP_START, Msg.PROGRESS, Msg.STEP_END]
        assert order.count(Msg.PROGRESS) == order.count(Msg.STEP_END) == 1
    assert max(line.step for line in lines) == STEPS


def test_sections_are_of_the_vocabulary_and_their_changes_are_counted(
    lines: list[Heartbeat],
) -> None:
    assert {line.section for line in lines} <= {None, *map(str, Section)}
    for earlier, later in pairwise(lines):
        assert later.section_seq >= earlier.section_seq
        if later.section != earlier.section:
            assert later.section_seq > earlier.section_seq


def test_a_step_lasts_from_its_last_start_to_its_end(lines: list[Heartbeat]) -> None:
    for end in (line for line in lines if line.msg == Msg.STEP_END):
        starts = [row.mono for row in lines if row.msg == Msg.STEP_START and row.step == end.step]
        assert end.dt_step_s == pytest.approx(end.mono - starts[-1], abs=0.02)
        assert end.step_sections is not None
        parts = end.step_sections.model_dump()
        assert sum(parts.values()) <= (end.dt_step_s or 0.0) + 1e-3
        assert min(parts[name] for name in ("data", "forward", "backward", "optimizer")) > 0


def test_evaluation_and_checkpoint_belong_to_the_step_before(lines: list[Heartbeat]) -> None:
    assert steps_of(lines, Msg.EVAL) == [2, 4]
    assert steps_of(lines, Msg.CHECKPOINT) == [STEPS]
    for line in lines:
        if line.msg in (Msg.EVAL, Msg.CHECKPOINT):
            assert line.section == line.msg
            assert line.dt is not None
            assert line.dt > 0
    (told,) = (line.path for line in lines if line.msg == Msg.CHECKPOINT)
    assert told == "checkpoints/step_000004"


def test_it_ends_with_done_at_the_last_step(lines: list[Heartbeat]) -> None:
    assert (lines[-1].msg, lines[-1].step) == (Msg.DONE, STEPS)
    assert [line.msg for line in lines].count(Msg.DONE) == 1


def test_losses_keep_their_digits(raw: list[bytes]) -> None:
    told = [json.loads(line)["loss"] for line in raw if b'"progress"' in line]
    assert len(told) == STEPS
    assert all(float(f"{loss:.9g}") == pytest.approx(loss, rel=1e-9) for loss in told)
    assert any(len(repr(loss)) > 10 for loss in told)


def test_the_judge_reads_every_step_of_it(raw: list[bytes]) -> None:
    read = read_lines(0, raw)
    assert (read.unreadable, read.record.conflicts, read.steps.gaps) == (0, 0, 0)
    assert (read.steps.last_step, read.steps.done_step) == (STEPS, STEPS)
    assert sorted(read.steps.steps.step_times()) == list(range(1, STEPS + 1))


# What the file system or a number refuses: both writers, without a training


Say = Callable[..., None]


@pytest.fixture(params=["nsa", "library"])
def say(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Say]:
    """Write a line as rank 0 of `tmp_path`."""
    if request.param == "nsa":
        heart = WorkloadHeartbeat(RunDir(tmp_path).heartbeat(0), rank=0, boot="b", alive_every_s=30)
        yield heart.beat
        heart.close()
    else:
        writer = HeartbeatWriter(TrainerRunDir(path=tmp_path), 0)
        yield writer.write
        writer.close()


def test_numbers_that_are_not_finite_are_named(tmp_path: Path, say: Say) -> None:
    file = RunDir(tmp_path).heartbeat(0)
    say("progress", loss=float("nan"), grad_norm=float("inf"), lr=-float("inf"))
    line: dict[str, Any] = json.loads(file.read_bytes())
    assert (line["loss"], line["grad_norm"], line["lr"]) == ("NaN", "Infinity", "-Infinity")
    assert parse_heartbeat(file.read_bytes()).lr == -float("inf")


def test_a_refused_line_is_counted_and_raises_nothing(
    tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, real = RunDir(tmp_path).heartbeat(0), os.write
    say("alive")

    def refuse(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", refuse)
    say("alive")
    monkeypatch.setattr(os, "write", real)
    say("alive")
    last = json.loads(file.read_bytes().splitlines()[-1])
    assert (last["seq"], last["write_failures"]) == (3, 1)
