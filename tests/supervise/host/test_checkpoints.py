"""Checkpoints are verified: truncated, changed, deleted and half written ones."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.observation import CheckpointSeen, Kind, checkpoints_of
from gonogo.contract.records import Tick
from gonogo.rundir import RunDir, load_sealed
from gonogo.supervise.host.checkpoints import Checkpoints, verify
from gonogo.supervise.watcher.look import Observations
from tests.supervise.runs import no_threads, wait_until

FAST = float("inf")
FILES = {"model.pt": b"m" * 5_000_000, "state.json": b"{}", "rng.pt": b""}


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def save(run_dir: RunDir, step: int, *, name: str | None = None, **manifest: Any) -> Path:
    """Write a checkpoint that holds, unless `manifest` says otherwise."""
    folder = run_dir.checkpoints / (name or f"step_{step:06d}")
    folder.mkdir(parents=True)
    for file, data in FILES.items():
        (folder / file).write_bytes(data)
    files = {
        file: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for file, data in FILES.items()
    }
    document = {"v": 1, "step": step, "files": files, **manifest}
    (folder / "manifest.json").write_text(json.dumps(document))
    return folder


def test_a_whole_checkpoint_holds(run_dir: RunDir) -> None:
    folder = save(run_dir, 20)
    assert verify(run_dir, folder, bytes_per_s=FAST) == CheckpointSeen(
        step=20,
        path="checkpoints/step_000020",
        verified=True,
        manifest_sha256=hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest(),
        bytes=5_000_002,
    )


def truncate(folder: Path) -> None:
    (folder / "model.pt").write_bytes(b"m" * 4_999_999)


def flip(folder: Path) -> None:
    (folder / "model.pt").write_bytes(b"m" * 4_999_999 + b"n")


def lose(folder: Path) -> None:
    (folder / "model.pt").unlink()


def tear_manifest(folder: Path) -> None:
    raw = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").write_bytes(raw[: len(raw) // 2])


def name_no_file(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"v": 1, "step": 20, "files": {}}')


def link_outside(folder: Path) -> None:
    (folder / "rng.pt").unlink()
    (folder / "rng.pt").symlink_to("/dev/null")


def replace_by_pipe(folder: Path) -> None:
    (folder / "rng.pt").unlink()
    os.mkfifo(folder / "rng.pt")
    seal = {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}
    document = {"v": 1, "step": 20, "files": {"rng.pt": seal}}
    (folder / "manifest.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (truncate, "model.pt has 4999999 of 5000000 bytes"), (flip, "model.pt has another SHA-256"),
        (lose, "model.pt is missing"), (tear_manifest, "manifest.json"),
        (name_no_file, "names no file"), (link_outside, "leads out"),
        (replace_by_pipe, "no regular file"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_a_damaged_checkpoint_does_not(
    run_dir: RunDir, damage: Callable[[Path], None], text: str
) -> None:
    folder = save(run_dir, 20)
    damage(folder)
    seen = verify(run_dir, folder, bytes_per_s=FAST)
    assert seen is not None
    assert (seen.verified, seen.bytes) == (False, 0)
    assert text in seen.text


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO])
def test_one_whose_disk_fails_for_a_moment_is_told_once_as_it_is(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """No disk fails when it is asked to."""
    fails = [OSError(code, os.strerror(code))] * 2

    def failing(*args: Any) -> Any:
        if fails:
            raise fails.pop()
        return load_sealed(*args)

    monkeypatch.setattr("gonogo.supervise.host.checkpoints.load_sealed", failing)
    source = Checkpoints(run_dir, bytes_per_s=FAST)
    save(run_dir, 20)
    assert [row.verified for row in look_until(source, 1)] == [True]
    assert [source.look(0.0) for _ in range(3)] == [None] * 3


def test_what_is_deleted_meanwhile_is_told_as_gone(run_dir: RunDir) -> None:
    folder = save(run_dir, 20)
    shutil.rmtree(folder)
    gone = CheckpointSeen(path="checkpoints/step_000020", verified=False, gone=True)
    assert verify(run_dir, folder, bytes_per_s=FAST) == gone
    folder = save(run_dir, 40)
    (folder / "manifest.json").unlink()
    assert verify(run_dir, folder, bytes_per_s=FAST).gone


def look_until(source: Checkpoints, count: int) -> list[CheckpointSeen]:
    """Look until so many checkpoints were reported, as the watcher's ticks carry them."""
    found: list[CheckpointSeen] = []

    def enough() -> bool:
        payload = source.look(0.0)
        tick = Tick(n=0, mono=0, ts=0, observations={"checkpoints": payload})
        found.extend(checkpoints_of(tick.observations.get(Kind.CHECKPOINTS)) or ())
        return len(found) >= count

    wait_until(enough, f"{count} checkpoint(s)")
    return found


def test_each_is_verified_once(run_dir: RunDir) -> None:
    source = Checkpoints(run_dir, bytes_per_s=FAST)
    for step in (20, 40):
        save(run_dir, step)
    assert {row.step for row in look_until(source, 2)} == {20, 40}
    save(run_dir, 60)
    assert [row.step for row in look_until(source, 1)] == [60]
    assert [source.look(0.0) for _ in range(3)] == [None] * 3


def test_a_manifest_that_still_grows_is_waited_for(run_dir: RunDir) -> None:
    folder = save(run_dir, 20)
    whole = (folder / "manifest.json").read_bytes()
    source = Checkpoints(run_dir, bytes_per_s=FAST)
    for size in range(10, 60, 10):
        (folder / "manifest.json").write_bytes(whole[:size])
        assert not source.look(0.0)
    (folder / "manifest.json").write_bytes(whole)
    assert [row.verified for row in look_until(source, 1)] == [True]


def test_a_new_watcher_leaves_out_what_was_told_last(run_dir: RunDir) -> None:
    for step in (20, 40):
        save(run_dir, step)
    source = Checkpoints(run_dir, bytes_per_s=FAST)
    source.resume([{"path": "checkpoints/step_000040"}, {"path": 7}, None])
    assert [row.step for row in look_until(source, 1)] == [20]
    source.resume("nonsense")


def test_one_that_is_saved_anew_under_its_name_is_looked_at_again(run_dir: RunDir) -> None:
    """A training that begins again at step 0 writes the same names."""
    source = Checkpoints(run_dir, bytes_per_s=FAST)
    folder = save(run_dir, 20)
    assert [row.verified for row in look_until(source, 1)] == [True]
    shutil.rmtree(folder)
    assert [source.look(0.0) for _ in range(3)] == [None] * 3
    truncate(save(run_dir, 20))
    assert [row.verified for row in look_until(source, 1)] == [False]
    manifest = folder / "manifest.json"
    (folder / "model.pt").write_bytes(FILES["model.pt"])
    os.utime(manifest, ns=(0, manifest.stat().st_mtime_ns + 1))
    assert source.owes()
    assert [row.verified for row in look_until(source, 1)] == [True]
    assert [source.look(0.0) for _ in range(3)] == [None] * 3


def test_one_that_is_saved_anew_while_it_is_read_is_gone(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(run_dir, 20)
    flip(folder)

    def meanwhile(*args: Any) -> Any:
        found = load_sealed(*args)
        os.utime(folder / "manifest.json", ns=(0, 0))
        return found

    monkeypatch.setattr("gonogo.supervise.host.checkpoints.load_sealed", meanwhile)
    assert verify(run_dir, folder, bytes_per_s=FAST).gone
    assert not verify(run_dir, folder, bytes_per_s=FAST).gone


def test_a_last_checkpoint_is_owed_until_it_is_told(run_dir: RunDir) -> None:
    observations = Observations([Checkpoints(run_dir, bytes_per_s=FAST)])
    assert not observations.owes()
    save(run_dir, 20)
    told: list[Any] = []
    while observations.owes():  # and at each tick, not once a second
        told += observations.take(0.0).get("checkpoints", [])
    assert [row["step"] for row in told] == [20]
    shutil.rmtree(save(run_dir, 40))
    assert not observations.owes()


def test_where_no_thread_is_to_be_had_a_checkpoint_is_verified_later(run_dir: RunDir) -> None:
    """A watcher that died of it, one after the other, ended a healthy run."""
    save(run_dir, 20)
    source = Checkpoints(run_dir, bytes_per_s=FAST)
    source.look(0.0)
    with no_threads():
        for _ in range(2):
            with pytest.raises(OSError, match="no thread can be started"):
                source.look(1.0)
        assert source.owes()
    wait_until(lambda: source.look(2.0), what="a checkpoint")
