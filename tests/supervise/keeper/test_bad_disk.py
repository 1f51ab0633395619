"""A disk that is full, read-only or gone for a while ends no healthy run, and hides no end."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from gonogo import rundir
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.supervise import durable
from gonogo.supervise.durable import PIECES, RESERVE_NAME, Reserve
from tests.supervise.runs import ROOT, NewRun, SupervisedRun, starting, wait_until

SHIM = Path(__file__).parents[1] / "failing_disk"
SCRIPT = """
import sys, time
import gonogo.trainer
steps, step_s, told = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
with gonogo.trainer.attach() as beat:
    for step in range(1, steps + 1):
        time.sleep(step_s)
        beat.step(loss=1.0 / step, tokens=10)
        with open(told, "w") as stream:
            stream.write(str(step))
"""

LEAVING = """
import os, time
import gonogo.trainer
with gonogo.trainer.attach() as beat:
    while not os.path.exists(os.environ["NSA_FULL"]):
        time.sleep(0.05)
        beat.step(loss=1.0, tokens=10)
    for _ in range(10):
        beat.step(loss=1.0, tokens=10)
    os._exit(int(os.environ["NSA_CODE"]))
"""


def start_script(
    new_run: NewRun, folder: Path, *, steps: int, watch: object = None, **environ: str
) -> SupervisedRun:
    """Start an attached program of one process that reports its step outside of the run's disk."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(steps), "0.05", str(folder / "told")]
    return new_run(
        "--allow", "any", "--allow-env", "any",  # the program is to feel the failures, too
        environ={"PYTHONPATH": f"{SHIM}:{ROOT}", **environ}, entry=None, command=command,
        world_size=1, steps=steps, identity={"world_size": 1}, watch=watch or {},
    )  # fmt: skip


def told(folder: Path) -> int:
    """Return the step that the program says it has come to."""
    try:
        return int((folder / "told").read_text() or 0)
    except FileNotFoundError:
        return 0


def completes(run: SupervisedRun, steps: int) -> None:
    """The run ends as it would have: every line there, nobody blamed."""
    record = run.wait_for_exit()
    assert (record.reason, record.ended_by) == (OutcomeCode.COMPLETED, Actor.TRAINER), record.text
    assert run.halts() == []
    beats = run.beats(0)
    assert [beat["seq"] for beat in beats] == list(range(1, len(beats) + 1))
    assert run.step() == steps
    assert run.living() == []
    assert not list(run.path.glob(f"{RESERVE_NAME}*"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of six megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if mounted.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take every byte that is left."""
    filler = folder / "filler"
    with filler.open("wb") as stream, pytest.raises(OSError, match="No space left"):
        os.posix_fallocate(stream.fileno(), 0, 2**30)
    with filler.open("ab", buffering=0) as stream, contextlib.suppress(OSError):
        while stream.write(b"\0" * 4096):
            pass
    return filler


def test_a_full_disk_that_is_emptied_again_costs_nothing(tmp_path: Path, small_disk: Path) -> None:
    with starting(small_disk) as new_run:
        run = start_script(new_run, tmp_path, steps=100)
        run.wait_for_step(10)
        filler = fill(small_disk)
        full_at = told(tmp_path)
        wait_until(lambda: told(tmp_path) >= full_at + 40, "two seconds on a full disk")
        assert run.keeper is not None
        assert run.keeper.poll() is None
        filler.unlink()
        completes(run, 100)


@pytest.mark.parametrize("save", [durable.save_json, durable.create_json, rundir.save_json])
def test_what_a_full_disk_refuses_leaves_nothing_behind(
    small_disk: Path, save: Callable[[Path, object], object]
) -> None:
    """It is tried again and again: what each try left would take every name of the disk."""
    path, document = small_disk / "record.json", {"text": "x" * 5000}
    filler = fill(small_disk)
    for _ in range(5):
        with pytest.raises(OSError, match="No space left"):
            save(path, document)
    assert list(small_disk.iterdir()) == [filler]
    filler.unlink()
    save(path, document)
    assert list(small_disk.iterdir()) == [path]


@pytest.mark.long
def test_how_a_rank_below_torchrun_ended_is_told_on_a_full_disk(
    tmp_path: Path, small_disk: Path
) -> None:
    """Only its wrapper sees it; it was reported as killed, and as the program's own failure."""
    script, full = tmp_path / "script.py", tmp_path / "full"
    script.write_text(LEAVING)
    with starting(small_disk) as new_run:
        run = new_run(
            "--allow", "any", entry=str(script), world_size=1, steps=100, train={}, watch={},
            identity={"world_size": 1}, env={"NSA_FULL": str(full), "NSA_CODE": "7"},
            environ={"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        run.wait_for_step(10)
        fill(small_disk)
        full.touch()
        record = run.wait_for_exit()
        assert record.ranks["0"].code == 7
        assert (record.reason, record.signal) == (OutcomeCode.DISK_FULL, None), record.text
        assert run.living() == []
        assert not list(run.path.glob(f"{RESERVE_NAME}*"))


def test_a_run_on_a_full_disk_can_be_ended(tmp_path: Path, small_disk: Path) -> None:
    with starting(small_disk) as new_run:
        run = start_script(new_run, tmp_path, steps=10_000)
        run.wait_for_step(10)
        fill(small_disk)
        assert run.keeper is not None
        for _ in range(2):
            run.keeper.send_signal(signal.SIGINT)
            time.sleep(0.2)
        record = run.wait_for_exit()
        assert (record.reason, record.ended_by) == (OutcomeCode.HALTED, Actor.OPERATOR)
        assert run.living() == []


@pytest.mark.long
def test_a_file_system_that_fails_everyone_for_seconds_costs_nothing(
    new_run: NewRun, tmp_path: Path
) -> None:
    """Keeper, watcher, wrapper and trainer: every look and every write of theirs."""
    flag = tmp_path / "failing"
    sky = {"TEST_FAILING": str(flag), "TEST_BELOW": f"{tmp_path}/run_"}
    run = start_script(new_run, tmp_path, steps=150, **sky)
    run.wait_for_step(10)
    since = told(tmp_path)
    flag.write_text(str(errno.EIO))
    wait_until(lambda: told(tmp_path) >= since + 60, "three seconds of failures")
    flag.unlink()
    completes(run, 150)
    assert run.beats(0)[-1]["write_failures"] > 0


def test_the_reserve_is_freed_piece_by_piece(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path)
    reserve.hold()
    reserve.write(lambda: None)
    assert len(list(tmp_path.iterdir())) == PIECES

    def write(left: int) -> None:
        if len(list(tmp_path.iterdir())) > left:
            raise OSError(errno.EDQUOT, "no more files")

    reserve.write(partial(write, 2))
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(OSError, match="no more files"):
        reserve.write(partial(write, -1))
    assert not list(tmp_path.iterdir())
