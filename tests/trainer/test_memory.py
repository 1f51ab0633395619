"""Resident memory is reported without the pages of mapped files."""

import mmap
from pathlib import Path

import pytest

from gonogo.trainer.heartbeat_writer import held_mb, memory_mb

SIZE = 64 * 2**20


def test_what_is_held_counts_and_what_is_mapped_does_not(tmp_path: Path) -> None:
    place = tmp_path / "tokens.bin"
    place.write_bytes(b"\x01" * SIZE)
    before = memory_mb()["host_rss_mb"]
    with place.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[::4096]) == SIZE // 4096
        assert memory_mb()["host_rss_mb"] - before < 20
    with mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:
        held.write(b"\x01" * SIZE)  # not of the heap: what tests before freed of that is still held
        assert 55 < memory_mb()["host_rss_mb"] - before < 84


def test_shared_memory_is_held(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_bytes(
        b"VmRSS:\t9999 kB\nRssAnon:\t2048 kB\nRssFile:\t512 kB\nRssShmem:\t1024 kB\n"
    )
    assert held_mb(status) == 3.0
    status.write_bytes(b"Name:\nVmRSS:\t9999 kB\n")
    with pytest.raises(KeyError):
        held_mb(status)
