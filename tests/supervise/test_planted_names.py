"""A run directory is its trainer's, too: what lies under a draft's name leads nobody astray."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gonogo.rundir import RunDir, save_json
from gonogo.supervise.evidence.flight_records import REQUEST_NAME, ask_ranks
from gonogo.supervise.evidence.rounds import run_collector
from gonogo.supervise.exit_record import digest_of
from gonogo.supervise.watcher import snapshots
from gonogo.supervise.watcher.metrics_file import save_metrics
from gonogo.supervise.watcher.seals import Seals

PID = os.getpid()
WRITERS: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "record": (
        *("exit.json", f".exit.json.{PID}.tmp"),
        lambda folder: save_json(folder / "exit.json", {"v": 1}),
    ),
    "metrics": (
        *(".metrics.json", f".metrics.json.{PID}.tmp"),
        lambda folder: save_metrics(folder / ".metrics.json", {}),
    ),
    "snapshot": (
        *(snapshots.FOLD_NAME, f"{snapshots.FOLD_NAME}.{PID}.tmp"),
        lambda folder: snapshots._save(folder / snapshots.FOLD_NAME, {}),
    ),
    "request": (
        *(REQUEST_NAME, f"{REQUEST_NAME}.part"),
        lambda folder: ask_ranks(folder, "1"),
    ),
    "evidence": (
        *("proc_rank0.txt", ".proc_rank0.txt.part"),
        lambda folder: run_collector(folder / "proc_rank0.txt", lambda: "stacks"),
    ),
}


@pytest.mark.parametrize(("name", "draft", "write"), WRITERS.values(), ids=WRITERS)
def test_link_under_a_drafts_name_is_not_written_through(
    name: str, draft: str, write: Callable[[Path], object], tmp_path: Path
) -> None:
    kept = tmp_path / "weights.bin"
    kept.write_bytes(b"weights")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / draft).symlink_to(kept)
    write(folder)
    assert kept.read_bytes() == b"weights"
    assert (folder / name).is_file()
    assert not (folder / name).is_symlink()


@pytest.mark.parametrize(("name", "draft", "write"), WRITERS.values(), ids=WRITERS)
def test_pipe_under_a_drafts_name_is_not_waited_for(
    name: str, draft: str, write: Callable[[Path], object], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / draft)
    write(tmp_path)
    assert (tmp_path / name).is_file()


def test_pipe_under_a_records_name_holds_no_tick_up(tmp_path: Path) -> None:
    save_json(tmp_path / "order.json", {"v": 1})
    os.mkfifo(tmp_path / "model.json")
    seals = Seals(RunDir(tmp_path), 1, {})
    assert set(seals.take(last=False)) == {"order.json"}
    assert seals.take(last=True) == {}


def test_file_of_any_size_under_a_records_name_is_not_waited_for(tmp_path: Path) -> None:
    with (tmp_path / "model.json").open("wb") as stream:
        stream.truncate(2**40)
    (tmp_path / "order.json").symlink_to(tmp_path / "model.json")
    seals = Seals(RunDir(tmp_path), 1, {})
    assert (seals.take(last=False), seals.take(last=True)) == ({}, {})
    assert digest_of(tmp_path / "order.json") is None
