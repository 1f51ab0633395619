"""What is opened as a file, and what that takes."""

import os
import tracemalloc
from pathlib import Path

import pytest

from gonogo.plain_file import MAX_RECORD_BYTES, next_data, read_plain, read_small


def test_a_small_record_takes_as_much_memory_as_it_has_bytes(tmp_path: Path) -> None:
    """16 MB were taken for each: a keeper that was short of memory (`ulimit -v`) died of that as it
    wrote exit.json, and a run that had completed was told as `keeper_lost`."""
    record = tmp_path / "order.json"
    record.write_bytes(b"x" * 200_000)
    tracemalloc.start()
    try:
        assert len(read_small(record)) == 200_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_what_is_larger_than_any_record_is_none(tmp_path: Path) -> None:
    record = tmp_path / "order.json"
    with record.open("wb") as stream:
        stream.truncate(MAX_RECORD_BYTES + 1)
    with pytest.raises(OSError, match="larger than"):
        read_small(record)
    with record.open("r+b") as stream:
        stream.truncate(MAX_RECORD_BYTES)
    assert len(read_small(record)) == MAX_RECORD_BYTES


@pytest.mark.parametrize("hole", [0, 4096])
def test_what_is_added_while_nothing_was_left_is_no_hole(
    hole: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the file's answer that nothing comes and the question for its end a line was printed,
    and passed over: a step, or the one that tells a NaN."""
    log, asked = tmp_path / "rank0.log", os.lseek
    log.write_bytes(b"step 1\n".rjust(4096))
    os.truncate(log, 4096 + hole)

    def printed_behind(descriptor: int, offset: int, how: int) -> int:
        try:
            return asked(descriptor, offset, how)
        finally:
            with log.open("ab") as program:
                program.write(b"step 2\n")

    with read_plain(log) as stream:
        monkeypatch.setattr(os, "lseek", printed_behind)
        begin = next_data(stream.fileno(), 4096)
        monkeypatch.undo()
        stream.seek(begin)
        assert stream.read() == b"step 2\n"
