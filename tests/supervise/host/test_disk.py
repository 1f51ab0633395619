"""The room that is left where a run writes, on a real file system."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gonogo.supervise.host.usage import REFUSED_FOR_S, REPEAT_S, UNCOUNTED_MB, Disk


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of two MB."""
    place = tmp_path / "small"
    place.mkdir()
    command = ("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place))
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting takes root and a kernel that lets it")
    yield place
    subprocess.run(("umount", str(place)), check=True)


def test_room_is_what_the_file_system_says(small: Path) -> None:
    subprocess.run(("mount", "-o", "remount,nr_inodes=40", str(small)), check=True)
    assert Disk(small).look(0.0) == {
        "free_mb": 2.0,
        "total_mb": 2.0,
        "free_files": 39,
        "refused": False,
        "checkpoints_mb": None,
        "read_only": False,
    }


def test_a_file_system_that_counts_no_room_is_not_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FUSE's own answer where a store has none: a healthy run was halted at its checkpoint."""
    fields = ("f_bavail", "f_blocks", "f_files", "f_favail", "f_flag")
    nothing = SimpleNamespace(f_frsize=512, **dict.fromkeys(fields, 0))
    monkeypatch.setattr(os, "statvfs", lambda path: nothing)
    seen = Disk(tmp_path).look(0.0) or {}
    assert (seen["free_mb"], seen["total_mb"]) == (UNCOUNTED_MB, 0.0)


def test_it_is_told_again_when_it_changed_and_every_five_seconds(small: Path) -> None:
    disk = Disk(small)
    assert disk.look(0.0) is not None
    assert disk.look(1.0) is None
    (small / "little").write_bytes(b"x" * 50_000)
    assert disk.look(2.0) is None
    (small / "much").write_bytes(b"x" * 500_000)
    seen = disk.look(3.0)
    assert seen is not None
    assert seen["free_mb"] == pytest.approx(2.0 - 0.55, abs=0.1)
    assert disk.look(3.0 + REPEAT_S - 0.1) is None
    assert disk.look(3.0 + REPEAT_S) is not None


def test_checkpoints_on_another_file_system_are_told_by_its_room(
    small: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    assert (Disk(run).look(0.0) or {}).get("checkpoints_mb") is None
    (run / "checkpoints").rmdir()
    (run / "checkpoints").symlink_to(small)
    disk = Disk(run)
    seen = disk.look(0.0) or {}
    assert 0 < seen["checkpoints_mb"] < 4 < seen["free_mb"]
    with pytest.raises(OSError, match="No space left"):
        (small / "all").write_bytes(b"x" * 3_000_000)
    seen = disk.look(1.0) or {}
    assert (seen["checkpoints_mb"], seen["refused"], seen["read_only"]) == (0.0, False, False)


def test_a_file_system_that_nobody_may_write_to_is_told(small: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoints").symlink_to(small)
    disk = Disk(run)
    assert (disk.look(0.0) or {})["read_only"] is False
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    try:
        assert (disk.look(1.0) or {})["read_only"] is True
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(small)], check=True)


def test_a_refused_write_is_told_at_once_and_for_a_minute_after_it(small: Path) -> None:
    disk = Disk(small)
    assert (disk.look(0.0) or {})["refused"] is False
    with pytest.raises(OSError, match="No space left"):
        (small / "all").write_bytes(b"x" * 3_000_000)
    assert (disk.look(REPEAT_S) or {})["refused"] is True
    (small / "all").unlink()
    assert (disk.look(3 * REPEAT_S) or {})["refused"] is True
    assert (disk.look(REPEAT_S + REFUSED_FOR_S) or {})["refused"] is False
    assert list(small.iterdir()) == []
