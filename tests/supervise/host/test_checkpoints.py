"""Does a checkpoint hold? Real folders, truncated, changed, deleted and half written."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.observation import CheckpointSeen, checkpoints_in
from gonogo.contract.tick import Tick
from gonogo.rundir import RunDir, load_sealed
from gonogo.supervise.host.checkpoints import Checkpoints, verify
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


def replace_by_folder(folder: Path) -> None:
    (folder / "rng.pt").unlink()
    (folder / "rng.pt").mkdir()


def tear_manifest(folder: Path) -> None:
    raw = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").write_bytes(raw[: len(raw) // 2])


def empty_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b"")


def name_no_file(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"v": 1, "step": 20, "files": {}}')


def name_a_file_outside(folder: Path) -> None:
    seal = {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}
    (folder.parent.parent / "outside").write_bytes(b"")
    document = {"v": 1, "step": 20, "files": {"../../outside": seal}}
    (folder / "manifest.json").write_text(json.dumps(document))


def link_outside(folder: Path) -> None:
    (folder / "rng.pt").unlink()
    (folder / "rng.pt").symlink_to("/dev/null")


def replace_by_pipe(folder: Path) -> None:
    (folder / "rng.pt").unlink()
    os.mkfifo(folder / "rng.pt")
    seal = {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}
    document = {"v": 1, "step": 20, "files": {"rng.pt": seal}}
    (folder / "manifest.json").write_text(json.dumps(document))


def huge_manifest(folder: Path) -> None:
    with (folder / "manifest.json").open("wb") as stream:
        stream.truncate(17 * 2**20)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (truncate, "model.pt has 4999999 of 5000000 bytes"),
        (flip, "model.pt has another SHA-256"),
        (lose, "model.pt is missing"),
        (replace_by_folder, "rng.pt has"),
        (tear_manifest, "manifest.json"),
        (empty_manifest, "manifest.json"),
        (name_no_file, "names no file"),
        (name_a_file_outside, "leads out"),
        (link_outside, "leads out"),
        (replace_by_pipe, "no regular file"),
        (huge_manifest, "manifest.json has 17825792 bytes"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_damaged_checkpoint_does_not(
    run_dir: RunDir, damage: Callable[[Path], None], text: str
) -> None:
    folder = save(run_dir, 20)
    damage(folder)
    seen = verify(run_dir, folder, bytes_per_s=FAST, again_s=(1e6,))  # it is told at once
    assert seen is not None
    assert (seen.verified, seen.bytes) == (False, 0)
    assert text in seen.text


@contextmanager
def no_file_descriptor_left() -> Iterator[Callable[[], None]]:
    """Nothing can be opened, until what is yielded is called."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)

    def give_back() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield give_back
    finally:
        give_back()


@pytest.mark.parametrize("damage", [None, flip])
def test_what_cannot_be_read_for_a_moment_is_looked_at_again(
    run_dir: RunDir, damage: Callable[[Path], None] | None
) -> None:
    folder = save(run_dir, 20)
    if damage is not None:
        damage(folder)
    with no_file_descriptor_left() as give_back:
        later = threading.Timer(0.5, give_back)
        later.start()
        seen = verify(run_dir, folder, bytes_per_s=FAST, again_s=(0.1,) * 600)
        later.join()
    assert seen.verified is (damage is None)
    assert ("SHA-256" in seen.text) is (damage is not None)


def test_what_can_never_be_read_is_told_after_so_many_looks(run_dir: RunDir) -> None:
    folder = save(run_dir, 20)
    with no_file_descriptor_left():
        seen = verify(run_dir, folder, bytes_per_s=FAST, again_s=(0.01, 0.01))
    assert (seen.verified, seen.gone) == (False, False)
    assert os.strerror(errno.EMFILE) in seen.text


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
    source = Checkpoints(run_dir, bytes_per_s=FAST, again_s=(0.01, 0.01))
    save(run_dir, 20)
    assert [row.verified for row in look_until(source, 1)] == [True]
    assert [source.look(0.0) for _ in range(3)] == [None] * 3


@pytest.mark.parametrize("step", [-1, 2**60])
def test_a_step_that_can_be_none_is_not_told(run_dir: RunDir, step: int) -> None:
    seen = verify(run_dir, save(run_dir, step, name="odd"), bytes_per_s=FAST)
    assert seen is not None
    assert seen.step is None


def test_sizes_beyond_all_bounds_do_not_hold(run_dir: RunDir) -> None:
    files = {"model.pt": {"bytes": 2**70, "sha256": ""}}
    seen = verify(run_dir, save(run_dir, 1, files=files), bytes_per_s=FAST)
    assert seen is not None
    assert not seen.verified


def test_what_is_deleted_meanwhile_is_told_as_gone(run_dir: RunDir) -> None:
    folder = save(run_dir, 20)
    shutil.rmtree(folder)
    gone = CheckpointSeen(path="checkpoints/step_000020", verified=False, gone=True)
    assert verify(run_dir, folder, bytes_per_s=FAST) == gone
    folder = save(run_dir, 40)
    (folder / "manifest.json").unlink()
    assert verify(run_dir, folder, bytes_per_s=FAST).gone


def look_until(source: Checkpoints, count: int) -> list[CheckpointSeen]:
    """Look until so many checkpoints were told, as the watcher's ticks carry them."""
    found: list[CheckpointSeen] = []

    def enough() -> bool:
        payload = source.look(0.0)
        tick = Tick(n=0, mono=0, ts=0, observations={"checkpoints": payload})
        found.extend(checkpoints_in(tick) or ())
        return len(found) >= count

    wait_until(enough, f"{count} checkpoint(s)")
    return found


def test_the_first_look_says_that_it_looks(run_dir: RunDir) -> None:
    source = Checkpoints(run_dir, bytes_per_s=FAST)
    assert source.look(0.0) == []
    assert source.look(1.0) is None


def test_each_is_verified_once_oldest_first(run_dir: RunDir) -> None:
    source = Checkpoints(run_dir, bytes_per_s=FAST)
    for step in (20, 40):
        save(run_dir, step)
    assert [row.step for row in look_until(source, 2)] == [20, 40]
    save(run_dir, 60)
    assert [row.step for row in look_until(source, 1)] == [60]
    assert [source.look(0.0) for _ in range(3)] == [None] * 3


def test_a_damaged_one_is_told_and_the_next_one_still_counts(run_dir: RunDir) -> None:
    source = Checkpoints(run_dir, bytes_per_s=FAST)
    truncate(save(run_dir, 20))
    save(run_dir, 40)
    assert [(row.step, row.verified) for row in look_until(source, 2)] == [(20, False), (40, True)]


def test_a_defect_of_what_looks_is_told_as_one_and_the_next_is_looked_at(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(run_dir: RunDir, folder: Path, **more: Any) -> CheckpointSeen:
        if folder.name.endswith("20"):
            raise TypeError("no")
        return verify(run_dir, folder, **more)

    monkeypatch.setattr("gonogo.supervise.host.checkpoints.verify", broken)
    source = Checkpoints(run_dir, bytes_per_s=FAST)
    save(run_dir, 20)
    save(run_dir, 40)
    defect, whole = look_until(source, 2)
    assert (defect.verified, defect.gone, defect.text) == (False, True, "TypeError: no")
    assert (whole.step, whole.verified) == (40, True)


def test_drafts_stray_files_and_folders_without_a_manifest_claim_nothing(run_dir: RunDir) -> None:
    save(run_dir, 20, name=".step_000020.draft")
    (run_dir.checkpoints / "notes.txt").write_text("x")
    (run_dir.checkpoints / "manifest.json").write_text("{}")
    (run_dir.checkpoints / "step_000040").mkdir()
    (run_dir.checkpoints / "step_000060" / "manifest.json").mkdir(parents=True)
    source = Checkpoints(run_dir, bytes_per_s=FAST)
    assert [source.look(float(n)) for n in range(4)] == [[], None, None, None]
    save(run_dir, 70, name=os.fsdecode(b"step_\xe9"))  # a name that can be told to nobody
    save(run_dir, 80)
    assert [row.step for row in look_until(source, 1)] == [80]
    assert not source.owes()


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


def test_of_many_each_is_looked_at_again_in_its_turn(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gonogo.supervise.host.checkpoints._KNOWN_AT_ONCE", 2)
    source = Checkpoints(run_dir, bytes_per_s=FAST)
    for step in range(20, 120, 20):
        save(run_dir, step)
    assert len(look_until(source, 5)) == 5
    for step in range(20, 120, 20):
        os.utime(run_dir.checkpoints / f"step_{step:06d}" / "manifest.json", ns=(0, 0))
    assert sorted(row.step or 0 for row in look_until(source, 5)) == [20, 40, 60, 80, 100]


def test_one_that_is_saved_faster_than_it_is_read_waits_once(run_dir: RunDir) -> None:
    """Else the watcher were owed more and more of it, long after the end of the run."""
    source = Checkpoints(run_dir, bytes_per_s=1e7)
    manifest = save(run_dir, 20, name="best") / "manifest.json"
    told = [*(source.look(0.0) or ())]
    for number in range(6):
        told += [*(source.look(0.0) or ()), *(source.look(0.0) or ())]
        os.utime(manifest, ns=(0, number))

    def nothing_is_owed() -> bool:
        told.extend(source.look(0.0) or ())
        return not source.owes()

    wait_until(nothing_is_owed, "nothing is owed")
    assert [row["verified"] for row in told] == [True, True]


def test_a_new_watcher_looks_at_what_was_saved_anew_after_it_came(run_dir: RunDir) -> None:
    folder = save(run_dir, 20)
    source = Checkpoints(run_dir, bytes_per_s=FAST)
    source.resume([{"path": "checkpoints/step_000020"}, {"path": "checkpoints/no\0name"}])
    assert [source.look(0.0) for _ in range(3)] == [[], None, None]
    shutil.rmtree(folder)
    save(run_dir, 20)
    assert [row.step for row in look_until(source, 1)] == [20]


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


def test_a_folder_that_vanishes_between_looks_is_forgotten(run_dir: RunDir) -> None:
    source = Checkpoints(run_dir, bytes_per_s=FAST)
    assert source.look(0.0) == []
    shutil.rmtree(save(run_dir, 20))
    assert source.look(1.0) is None
    shutil.rmtree(run_dir.checkpoints)
    assert source.look(2.0) is None
    run_dir.checkpoints.write_text("a file in its place")
    assert source.look(3.0) is None


def test_a_last_checkpoint_is_owed_until_it_is_told(run_dir: RunDir) -> None:
    source = Checkpoints(run_dir, bytes_per_s=FAST)
    assert not source.owes()
    save(run_dir, 20)
    told: list[Any] = []
    while source.owes():
        told += source.look(0.0) or []
    assert [row["step"] for row in told] == [20]
    shutil.rmtree(save(run_dir, 40))
    assert not source.owes()


def test_looking_never_waits_for_a_file_that_is_being_read(run_dir: RunDir) -> None:
    """At one byte a second the first file takes two months; looks return all the same."""
    save(run_dir, 20)
    source = Checkpoints(run_dir, bytes_per_s=1.0)
    done = threading.Event()

    def looks() -> None:
        for n in range(20):
            source.look(float(n))
        done.set()

    threading.Thread(target=looks, daemon=True).start()
    assert done.wait(60.0)


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


@pytest.mark.long
def test_one_that_takes_long_to_read_is_told_when_that_begins(run_dir: RunDir) -> None:
    folder = save(run_dir, 20)
    told: list[CheckpointSeen] = []
    seen = verify(run_dir, folder, bytes_per_s=250_000.0, tell=told.append)
    path = "checkpoints/step_000020"
    assert told == [CheckpointSeen(path=path, verified=False, reads_bytes=5_000_002)]
    assert (seen.verified, seen.reads_bytes) == (True, 0)


def test_one_of_another_size_is_not_read_at_all(run_dir: RunDir) -> None:
    folder = save(run_dir, 20)
    truncate(folder)
    told: list[CheckpointSeen] = []
    assert not verify(run_dir, folder, bytes_per_s=1.0, tell=told.append).verified
    assert told == []


def test_one_that_was_being_read_is_read_anew_by_the_next_watcher(run_dir: RunDir) -> None:
    save(run_dir, 20)
    reading = {"path": "checkpoints/step_000020", "verified": False, "reads_bytes": 5_000_002}
    source = Checkpoints(run_dir, bytes_per_s=FAST)
    source.resume([reading])
    assert source.owes()
    assert [row.step for row in look_until(source, 1)] == [20]


def test_one_that_is_being_read_is_told_and_still_owed(run_dir: RunDir) -> None:
    save(run_dir, 20)
    source = Checkpoints(run_dir, bytes_per_s=100_000.0)
    assert [row.reads_bytes for row in look_until(source, 1)] == [5_000_002]
    assert source.owes()


def test_a_new_watcher_reads_what_comes_before_what_was_there(run_dir: RunDir) -> None:
    """Thirty kept ones of 84 GB take hours to read again, and the next is due in minutes."""
    for step in (20, 40, 60):
        manifest = save(run_dir, step) / "manifest.json"
        os.utime(manifest, (step, step))
    source = Checkpoints(run_dir, bytes_per_s=FAST)
    source.resume([{"path": "checkpoints/step_000060", "verified": True}])
    assert source.look(0.0) == []
    with no_threads():
        for step in (80, 100):
            save(run_dir, step)
            for _ in range(2):
                with pytest.raises(OSError, match="no thread can be started"):
                    source.look(1.0)
    assert [row.step for row in look_until(source, 4)] == [80, 100, 40, 20]
