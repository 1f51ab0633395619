"""Lines that a file system refuses are kept, in order, whole, and bounded."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gonogo.trainer import heartbeat_writer
from gonogo.trainer.heartbeat_writer import HeartbeatWriter, LineFile, Taken
from gonogo.trainer.run_dir import RunDir

REAL_WRITE = os.write


class Disk:
    """A disk with room for some bytes more."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, fd: int, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = REAL_WRITE(fd, data[: self.room])
        self.room -= written
        return written


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(10**9)
    monkeypatch.setattr(os, "write", disk.write)
    return disk


@pytest.mark.parametrize("room", [0, 1, 3, 4, 6])
def test_what_a_full_disk_refused_stands_there_once_it_has_room(
    tmp_path: Path, disk: Disk, room: int
) -> None:
    file = LineFile(tmp_path / "h")
    disk.room = room
    file.append(b"one\n")
    file.append(b"two\n")
    assert file.failures >= 1
    disk.room = 10**9
    file.append(b"three\n")
    file.close()
    assert (tmp_path / "h").read_bytes() == b"one\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("last_s", "found"), [(60.0, b"one\ntwo\n"), (0.2, b"one\nt")], ids=["in time", "for longer"]
)
def test_a_program_that_leaves_waits_a_moment_for_a_disk_that_refuses_its_last_lines(
    tmp_path: Path, disk: Disk, last_s: float, found: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They went with it: a whole run whose disk failed in its last second had ended early."""
    monkeypatch.setattr(heartbeat_writer, "LAST_S", last_s)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        disk.room = 10**9 if last_s > 1 and len(waits) == 3 else disk.room

    monkeypatch.setattr(time, "sleep", sleep)
    file = LineFile(tmp_path / "h")
    disk.room = 5
    file.append(b"one\n")
    file.append(b"two\n")
    file.finish()
    assert (tmp_path / "h").read_bytes() == found
    assert len(waits) >= 3
    waits.clear()
    LineFile(tmp_path / "none").finish()
    assert not waits


@pytest.mark.parametrize("room", [0, 2], ids=["between lines", "within a line"])
def test_a_disk_that_stays_full_costs_the_oldest_lines_and_never_half_of_one(
    tmp_path: Path, disk: Disk, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat_writer, "KEPT_BYTES", 20_000)
    file = LineFile(tmp_path / "h")
    disk.room = room
    lines = [b"%06d%s\n" % (number, b"x" * 993) for number in range(60)]
    for line in lines:
        file.append(line)
    disk.room = 10**9
    file.append(b"last\n")
    file.close()
    found = (tmp_path / "h").read_bytes().splitlines(keepends=True)
    assert found[-1] == b"last\n"
    assert set(found) <= {*lines, b"last\n"}
    assert found == sorted(found)
    assert 18_000 < sum(map(len, found)) < 22_000
    assert (found[0] == lines[0]) is (room == 2)
    assert file.failures >= 60


def test_a_line_that_a_killed_process_left_torn_does_not_spoil_ours(tmp_path: Path) -> None:
    (tmp_path / "h").write_bytes(b'{"v": 1}\n{"v": 1, "ts"')
    file = LineFile(tmp_path / "h")
    file.append(b"ours\n")
    file.close()
    assert (tmp_path / "h").read_bytes().splitlines()[-1] == b"ours"


def test_a_file_that_another_process_writes_is_taken_until_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat_writer, "_LOCK_WAIT_S", 0.1)
    code = (
        "import sys, pathlib; from gonogo.trainer.heartbeat_writer import LineFile;"
        "file = LineFile(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "h")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(Taken):
            LineFile(tmp_path / "h")
        other.kill()
    file = LineFile(tmp_path / "h")
    file.append(b"ours\n")
    file.close()
    assert (tmp_path / "h").read_bytes() == b"ours\n"


def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return what grows by one for each time that a file is really synced."""
    calls: list[int] = []
    sync = os.fdatasync

    def counted(descriptor: int) -> None:
        sync(descriptor)
        calls.append(descriptor)

    monkeypatch.setattr(os, "fdatasync", counted)
    return calls


def test_other_hosts_are_shown_what_is_new_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, file = synced(monkeypatch), LineFile(tmp_path / "heartbeat_rank0.jsonl")
    file.show()
    assert calls == []
    file.append(b"{}\n")
    file.show()
    file.show()
    assert len(calls) == 1
    file.close()
    file.show()
    assert len(calls) == 1


@pytest.mark.parametrize(("nodes", "shown"), [(1, False), (2, True)])
def test_lines_are_shown_where_the_watcher_may_be_on_another_host(
    nodes: int, shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = synced(monkeypatch)
    writer = HeartbeatWriter(RunDir(path=tmp_path, order={"nodes": nodes}), 0)
    writer.start()
    writer.write("boot")
    deadline = time.monotonic() + (10.0 if shown else 0.5)
    while not calls and time.monotonic() < deadline:
        time.sleep(0.01)
    writer.close()
    assert bool(calls) is shown
