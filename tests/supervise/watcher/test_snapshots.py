"""A watcher that resumes from a snapshot knows the same as one that folds everything again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.order import Order
from gonogo.contract.records import FileSeal, Tick
from gonogo.rundir import RunDir
from gonogo.supervise.watcher.journal import (
    EVERY_LINES,
    EVERY_S,
    FOLD_NAME,
    Journal,
    Pace,
    Snapshots,
)
from gonogo.timeline.lines import Arrival
from gonogo.watch.fold import dump_state, fold
from tests.supervise.runs import build_test_order
from tests.supervise.watcher.test_journal import beat

ORDER = build_test_order("run_x", world_size=1, steps=10_000)


def steps(first: int, last: int) -> list[bytes]:
    """Heartbeat lines of some steps; the losses of every hundredth are no numbers."""
    found = []
    for step in range(first, last):
        seq = 1 + 3 * step
        loss: Any = "NaN" if step % 100 == 99 else 5.0
        found += [
            beat(seq, "step_start", step),
            beat(seq + 1, "progress", step, loss=loss, grad_norm=1.0, lr=1e-3),
            beat(seq + 2, "step_end", step, dt_step_s=0.2 + step % 7 / 10, tokens=2048),
        ]
    return found


class Run:
    """A run that is watched tick by tick, without processes."""

    def __init__(self, folder: Path, order: Order = ORDER) -> None:
        self.dir, self.order = RunDir(folder), order
        self.journal = Journal(self.dir, order)
        self.state, self.memory = self.journal.state, self.journal.memory
        self.mono = self.memory.mono or 0.0

    def tick(self, lines: list[bytes]) -> None:
        memory = self.memory
        with self.dir.heartbeat(0).open("ab") as stream:
            stream.write(b"".join(lines))
        beats = self.journal.tails.read()
        self.mono += 0.2
        files = {"model.json": FileSeal(bytes=1, sha256="0" * 64)} if memory.number == 1 else {}
        tick = Tick(
            n=memory.number,
            mono=self.mono,
            ts=1e9 + self.mono,
            upto={str(rank): memory.offsets[rank] for rank in beats},
            files=files,
        )
        memory.number += 1
        memory.files.update(files)
        self.state, found = fold(self.state, tick, beats, memory.pace.take)
        self.journal.add_tick(tick, self.state, beats)
        for finding in found:
            self.journal.add_finding(finding)

    def put_down(self) -> None:
        snapshots = Snapshots(self.dir)
        snapshots.start(self.state, self.memory, self.mono)
        snapshots.join()


def recovered(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, whole: bool = False
) -> tuple[dict[str, Any], int]:
    """Return what a new watcher knows, and how many lines it folded for that."""
    kept = (folder / FOLD_NAME).read_bytes() if whole else b""
    if whole:
        (folder / FOLD_NAME).unlink()
    lines = 0

    def take(pace: Pace, rank: int, beat: Heartbeat, arrival: Arrival) -> None:
        nonlocal lines
        lines += 1
        real(pace, rank, beat, arrival)

    real = Pace.take
    with monkeypatch.context() as patch:
        patch.setattr(Pace, "take", take)
        journal = Journal(RunDir(folder), ORDER)
    if whole:
        (folder / FOLD_NAME).write_bytes(kept)
    return {"state": dump_state(journal.state), "memory": journal.memory.model_dump_json()}, lines


@settings(max_examples=12, deadline=None)
@given(before=st.integers(1, 20), after=st.integers(0, 20), size=st.integers(1, 9))
def test_snapshot_and_the_rest_come_to_what_the_whole_comes_to(
    tmp_path_factory: pytest.TempPathFactory, before: int, after: int, size: int
) -> None:
    monkeypatch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("run")
    run = Run(folder)
    run.tick([beat(1, "boot", 0, dim=64), beat(2, "loader_ready", 0, dt=0.1)])
    for number in range(before):
        run.tick(steps(1 + number * size, 1 + (number + 1) * size))
    run.put_down()
    for number in range(before, before + after):
        run.tick(steps(1 + number * size, 1 + (number + 1) * size))
    from_snapshot, few = recovered(folder, monkeypatch)
    from_all, many = recovered(folder, monkeypatch, whole=True)
    assert from_snapshot == from_all
    assert (few, many) == (after * size * 3, 2 + (before + after) * size * 3)


def put_down(folder: Path) -> Run:
    run = Run(folder)
    for number in range(20):
        run.tick(steps(1 + number * 10, 1 + (number + 1) * 10))
    run.put_down()
    run.tick(steps(201, 211))
    return run


def change(key: str, value: Any) -> Callable[[Run], None]:
    def do(run: Run) -> None:
        raw = (run.dir.path / FOLD_NAME).read_bytes()
        document = json.loads(raw.partition(b"\n")[2])
        document["state"]["of"][key] = value
        body = json.dumps(document).encode()
        sealed = hashlib.sha256(body).hexdigest().encode()
        (run.dir.path / FOLD_NAME).write_bytes(sealed + b"\n" + body)

    return do


def cut(run: Run) -> None:
    path = run.dir.path / FOLD_NAME
    path.write_bytes(path.read_bytes()[:-10])


def empty(run: Run) -> None:
    (run.dir.path / FOLD_NAME).write_bytes(b"")


def make_folder(run: Run) -> None:
    (run.dir.path / FOLD_NAME).unlink()
    (run.dir.path / FOLD_NAME).mkdir()


def shorten_heartbeats(run: Run) -> None:
    raw = run.dir.heartbeat(0).read_bytes().splitlines(keepends=True)
    run.dir.heartbeat(0).write_bytes(b"".join(raw[:30]))


def change_the_watch(run: Run) -> None:
    raw = run.dir.watch.read_bytes()
    run.dir.watch.write_bytes(raw.replace(b'"n":19', b'"n":18'))


def lose_the_watch(run: Run) -> None:
    run.dir.watch.unlink()


@pytest.mark.parametrize(
    "harm",
    [cut, empty, make_folder, shorten_heartbeats, change_the_watch, lose_the_watch,
     change("sources", "x"), change("run", "run_y"), change("detectors", [])],
    ids=["torn", "empty", "a folder", "shorter heartbeats", "another watch", "no watch",
         "version", "run", "detectors"],
)  # fmt: skip
def test_snapshot_that_does_not_fit_costs_the_whole_fold_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Run], None]
) -> None:
    run = put_down(tmp_path)
    harm(run)
    found = recovered(tmp_path, monkeypatch)
    path = tmp_path / FOLD_NAME
    path.rmdir() if path.is_dir() else path.unlink()
    assert found == recovered(tmp_path, monkeypatch)


def test_snapshot_that_fits_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_down(tmp_path)
    _, read = recovered(tmp_path, monkeypatch)
    assert read == 30


def test_snapshot_is_due_after_a_while_or_after_many_lines(tmp_path: Path) -> None:
    snapshots = Snapshots(RunDir(tmp_path))
    assert not snapshots.is_due(100.0, EVERY_LINES - 1)
    assert snapshots.is_due(100.0, 1)
    other = Snapshots(RunDir(tmp_path))
    assert not other.is_due(100.0, 0)
    assert not other.is_due(100.0 + EVERY_S - 0.1, 0)
    assert other.is_due(100.0 + EVERY_S, 0)


def test_a_disk_that_takes_no_snapshot_keeps_no_part_of_one(tmp_path: Path) -> None:
    (tmp_path / FOLD_NAME).mkdir()
    put_down(tmp_path)
    assert list(tmp_path.glob(f"{FOLD_NAME}.*")) == []
