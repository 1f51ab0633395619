"""Real failures of our trainer: diagnosed from their evidence, and gone under the named answer.

What fails is never feigned: a child that may have little memory, a disk and a pipe that do not
answer, numbers beyond fp16, an evaluation that decodes token by token. The second run of each test
is the first one with the diagnosis's patch, and nothing else.
"""

from __future__ import annotations

import copy
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gonogo.judge.directory import judge_directory
from gonogo.judge.failures import library
from gonogo.watch.registry import detector_names
from tests.nsa.parquet_folder import write_parquet_folder
from tests.nsa.runs import TINY
from tests.supervise.runs import WATCH, NewRun, SupervisedRun, wait_until

DEADLINES = {
    name: {"suspect_s": 1, "halt_s": 3} for name in ("data", "log", "checkpoint", "out_of_section")
}
UNHURRIED = {"slow": {"warmup_steps": 10_000}}
"""These machines are shared: nothing here is about speed."""
QUIET = {"NSA_TB_DISABLE": "1"}


def started(
    new_run: NewRun,
    *,
    entry: str = "nsa.train",
    env: dict[str, str] | None = None,
    patch: dict[str, Any] | None = None,
    watch: dict[str, Any] | None = None,
    **train: Any,
) -> SupervisedRun:
    """Start one rank of the tiny model; `patch` is laid over it as a remedy would be."""
    whole = laid(copy.deepcopy(TINY), {"steps": 12, **train})
    whole = laid(whole, (patch or {}).get("train", {}))
    environ = {**QUIET, **(env or {}), **(patch or {}).get("env", {})}
    deadlines = {**DEADLINES, "eval": {"suspect_s": 1, "halt_s": 60}}
    return new_run(
        "--allow",
        entry,
        entry=entry,
        world_size=1,
        steps=whole["steps"],
        train=whole,
        env=environ,
        identity={"world_size": 1, "nsa_env": environ},
        detectors=detector_names(),
        watch=laid({**WATCH, **UNHURRIED, "section_deadline": deadlines}, watch or {}),
        checkpoint={"every_steps": 4},
    )


def laid(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return mappings laid over each other, key by key."""
    both = {name: laid(base[name], over[name]) for name in base.keys() & over.keys()
            if isinstance(base[name], dict) and isinstance(over[name], dict)}  # fmt: skip
    return {**base, **over, **both}


def judged(run: SupervisedRun) -> dict[str, Any]:
    """Return the decision on a run, once it has ended."""
    run.wait_for_exit()
    assert run.living() == []
    return judge_directory(run.path)


def assert_completed(run: SupervisedRun) -> None:
    record = run.wait_for_exit()
    assert (record.reason, run.halts()) == ("completed", []), (run.path / "rank0.log").read_text()


def answer_to(name: str) -> dict[str, Any]:
    """Return the patch that the table names."""
    row = library().get(name)
    assert row is not None
    assert row.patch
    return row.patch


@pytest.mark.long
def test_too_little_memory_is_named_and_checkpointing_answers_it(new_run: NewRun) -> None:
    more = {"model": {"layers": 16, "seq_len": 256}, "batch": {"global_seqs": 8}, "steps": 2}
    limited = "tests.real.limited"
    watch = {"stall": {"early_s": 300}}
    decision = judged(started(new_run, entry=limited, watch=watch, **more))
    assert (decision["verdict"], decision["diagnosis"]) == ("NO_GO", "out_of_memory")
    assert "can't allocate memory" in decision["cause"]["line"]
    patch = answer_to("out_of_memory")
    assert_completed(started(new_run, entry=limited, watch=watch, patch=patch, **more))


@pytest.mark.long
def test_fp16_that_overflows_is_named_and_bf16_answers_it(new_run: NewRun) -> None:
    env = {"NSA_SCALER_INIT_SCALE": "1e36", "NSA_SCALER_BACKOFF_FACTOR": "0.99"}
    first = started(new_run, env=env, dtype="fp16", steps=60)
    decision = judged(first)
    assert (decision["verdict"], decision["diagnosis"]) == ("NO_GO", "fp16_overflow")
    assert decision["findings"][-1]["detector"] == "non_finite"
    assert any(row.get("grad_norm") in ("Infinity", "NaN") for row in first.beats(0))
    patch = answer_to("fp16_overflow")
    assert_completed(started(new_run, env=env, dtype="fp16", patch=patch))


def pipe(path: Path) -> None:
    """Put a pipe that nobody reads in a file's place: opening it to write waits for ever."""
    made = path.with_name(f".{path.name}.pipe")
    os.mkfifo(made)
    made.replace(path)


@pytest.mark.long
def test_statistics_that_hang_are_named_and_switching_them_off_answers_it(new_run: NewRun) -> None:
    run = started(new_run)
    pipe(run.path / "gate_health.csv")
    decision = judged(run)
    assert (decision["verdict"], decision["diagnosis"]) == ("NO_GO", "aux_stats_hang")
    assert_stood_in_log(run, step=1)
    again = started(new_run, patch=answer_to("aux_stats_hang"))
    pipe(again.path / "gate_health.csv")
    assert_completed(again)


@pytest.mark.long
def test_logging_that_hangs_later_is_named_and_switching_it_off_answers_it(new_run: NewRun) -> None:
    run = started(new_run, steps=4000)
    run.wait_for_step(2)
    pipe(run.path / "training.csv")
    decision = judged(run)
    assert (decision["verdict"], decision["diagnosis"]) == ("NO_GO", "step_boundary_hang"), (
        decision["cause"]
    )
    assert_stood_in_log(run, step=run.step() + 1)
    again = started(new_run, patch=answer_to("step_boundary_hang"))
    pipe(again.path / "training.csv")
    assert_completed(again)


def assert_stood_in_log(run: SupervisedRun, step: int) -> None:
    halt = run.halts()[0]
    assert (halt.detector, halt.section, halt.step) == ("section_deadline", "log", step)
    stacks = [path for path in halt.evidence if path.endswith("stacks_rank0.txt")]
    assert "_append" in (run.path / stacks[-1]).read_text()


@pytest.mark.long
def test_sequential_prefill_is_named_and_batched_prefill_answers_it(new_run: NewRun) -> None:
    more = {"model": {"seq_len": 512}, "eval": {"every_steps": 3, "batches": 60}, "steps": 4}
    watch = {"section_deadline": {"eval": {"halt_s": 12}}, "stall": {"early_s": 60}}
    env = {"NSA_PREFILL_BATCHED": "0"}
    run = started(new_run, env=env, watch=watch, **more)
    decision = judged(run)
    assert (decision["verdict"], decision["diagnosis"]) == ("NO_GO", "sequential_prefill")
    assert decision["findings"][-1]["section"] == "eval"
    patch = answer_to("sequential_prefill")
    assert_completed(started(new_run, env=env, watch=watch, patch=patch, **more))


@pytest.fixture
def silent_files(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Parquet files below `tmp_path`/data; the function puts silent pipes in their place."""
    folder = tmp_path / "data"
    texts = [f"{number} " * 400 for number in range(120)]
    files = write_parquet_folder(folder, texts, files=40, rows_per_group=1)

    def fall_silent() -> None:
        for file in files:
            pipe(file)

    yield fall_silent
    for file in files:  # a waiting reader gets an end
        subprocess.run(("dd", "if=/dev/null", f"of={file}", "oflag=nonblock"), check=False,
                       capture_output=True)  # fmt: skip


@pytest.mark.long
def test_a_loader_that_stalls_is_named_and_synthetic_data_isolates_it(
    new_run: NewRun, tmp_path: Path, silent_files: Callable[[], None]
) -> None:
    data = f"parquet:{tmp_path / 'data'}"
    run = started(new_run, data=data, steps=4000)
    run.wait_for_step(2)
    silent_files()
    decision = judged(run)
    assert (decision["verdict"], decision["diagnosis"]) == ("NO_GO", "loader_stall")
    halt = decision["findings"][-1]
    assert (halt["detector"], halt["rank"], halt["section"]) == ("section_deadline", 0, "data")
    assert_completed(started(new_run, data="synthetic"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for a few kilobytes; skips where none can be mounted."""
    place = tmp_path / "small"
    place.mkdir()
    command = ("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place))
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system is not allowed here")
    yield place
    subprocess.run(("umount", "-l", str(place)), check=True)


@pytest.mark.long
def test_a_disk_that_is_full_is_named(new_run: NewRun, small_disk: Path) -> None:
    run = started(new_run, steps=4000)
    wait_until(run.path.is_dir, "the run directory")
    (run.path / "checkpoints").symlink_to(small_disk)
    decision = judged(run)
    assert (decision["verdict"], decision["diagnosis"]) == ("NO_GO", "disk_full")
    errors = [row for row in run.beats(0) if row["msg"] == "error"]
    assert "No space left on device" in errors[0]["text"]
