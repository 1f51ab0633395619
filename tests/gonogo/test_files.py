"""Opening small files, and placing the first of several writers."""

from __future__ import annotations

import errno
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from gonogo.files import MAX_RECORD_BYTES, open_private, place_first, read_small


@pytest.fixture(params=[None, errno.EPERM, errno.EOPNOTSUPP])
def folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of a file system with hard links, or without."""

    def refuse(spare: Path, path: Path) -> NoReturn:
        raise OSError(request.param, os.strerror(request.param), str(path))

    if request.param is not None:
        monkeypatch.setattr(os, "link", refuse)
    return tmp_path


def placed(folder: Path, text: str) -> bool:
    spare = folder / f".{text}.tmp"
    spare.write_text(text)
    try:
        return place_first(spare, folder / "name")
    finally:
        spare.unlink(missing_ok=True)


def test_only_the_first_writer_places_its_file(folder: Path) -> None:
    assert [placed(folder, "a"), placed(folder, "b")] == [True, False]
    assert (folder / "name").read_text() == "a"
    assert [path.name for path in folder.iterdir()] == ["name"]


def test_of_many_writers_at_once_one_is_first(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            (tmp_path / "name").unlink(missing_ok=True)
            first = list(pool.map(lambda n: placed(tmp_path, str(n)), range(8)))
            assert first.count(True) == 1
            assert (tmp_path / "name").read_text() == str(first.index(True))


def test_file_and_name_are_synced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, synced = os.fsync, list[tuple[str, bool]]()

    def sync(descriptor: int) -> None:
        at = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append(("folder" if at == folder else "file", (folder / "name").exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    assert placed(folder, "first")
    assert synced == [("file", False), ("folder", True)]


@pytest.mark.parametrize("before", [None, 0o644, 0o666])
def test_no_other_user_may_open_a_private_file(before: int | None, tmp_path: Path) -> None:
    path = tmp_path / "up.lock"
    if before is not None:
        path.write_bytes(b"kept")
        path.chmod(before)
    with open_private(path) as stream:
        assert path.stat().st_mode & 0o777 == 0o600
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open_private(path) as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert path.read_bytes() == (b"" if before is None else b"kept")


def test_a_file_above_the_limit_is_no_record(tmp_path: Path) -> None:
    record = tmp_path / "order.json"
    with record.open("wb") as stream:
        stream.truncate(MAX_RECORD_BYTES + 1)
    with pytest.raises(OSError, match="larger than"):
        read_small(record)
