"""The first of several writers gives a file its name, with hard links and without."""

from __future__ import annotations

import errno
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from gonogo import first_file
from gonogo.first_file import place_first
from gonogo.supervise.end_request import HALT_NAME, EndRequest, ask_halt, load_request


@pytest.fixture(params=[None, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of a file system that has hard links, or that refuses them in one of its ways."""

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


def test_what_has_the_name_outlives_a_power_cut(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty signing.pub kept the service from its next start, and an empty id is another's."""
    real, synced = os.fsync, list[tuple[str, bool]]()

    def sync(descriptor: int) -> None:
        at = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append(("folder" if at == folder else "file", (folder / "name").exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    assert placed(folder, "first")
    assert synced == [("file", False), ("folder", True)]


def test_first_gives_the_name_and_no_other_takes_it(folder: Path) -> None:
    assert [placed(folder, "a"), placed(folder, "b")] == [True, False]
    assert (folder / "name").read_text() == "a"
    assert [path.name for path in folder.iterdir()] == ["name"]


def test_of_many_at_once_one_is_first(folder: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            (folder / "name").unlink(missing_ok=True)
            first = list(pool.map(lambda n: placed(folder, str(n)), range(8)))
            assert first.count(True) == 1
            assert (folder / "name").read_text() == str(first.index(True))


def test_a_link_to_nowhere_is_a_name(folder: Path) -> None:
    (folder / "name").symlink_to("nowhere")
    assert not placed(folder, "a")


def test_who_holds_the_folder_for_ever_keeps_no_end_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a trainer may hold a lock on its own run directory."""
    monkeypatch.setattr(first_file, "LOCK_S", 0.05)
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert [placed(folder, "a"), placed(folder, "b")] == [True, False]
    finally:
        os.close(held)
    assert (folder / "name").read_text() == "a"


def test_what_the_disk_refuses_now_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(spare: Path, path: Path) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="Input/output"):
        placed(tmp_path, "a")
    assert not list(tmp_path.iterdir())


def test_a_run_is_asked_to_end_where_no_file_has_two_names(folder: Path) -> None:
    request = EndRequest(
        reason="stalled", ended_by="watchdog", at=1.0, text="t", key="k", grace_s=2.0
    )
    assert ask_halt(folder, request)
    assert load_request(folder / HALT_NAME) == request
    assert [path.name for path in folder.iterdir()] == [HALT_NAME]
