"""A log that grows for ever keeps its beginning and its end, and says what it lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gonogo.supervise.keeper.children import LOOK_EVERY_S, LogCap

KB = 1024


@pytest.mark.parametrize("name", ["rank0.log", "torchrun.log", "torchrun_node1.log"])
def test_the_middle_of_a_long_log_is_let_go_and_everybody_goes_on(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    cap = LogCap(tmp_path, cap_bytes=128 * KB, head_bytes=16 * KB)
    with path.open("ab", buffering=0) as program:
        program.write(b"began\n" + b"a" * 100 * KB)
        cap.tend(0.0)
        assert b"gonogo" not in path.read_bytes()
        program.write(b"b" * 400 * KB)
        size = path.stat().st_size
        cap.tend(LOOK_EVERY_S - 0.1)
        assert path.stat().st_blocks * 512 > 256 * KB
        cap.tend(LOOK_EVERY_S)
        assert path.stat().st_blocks * 512 < 128 * KB
        assert path.stat().st_size == size
        program.write(b"c" * KB)
    text = path.read_bytes()
    assert text.startswith(b"began\naaa")
    assert text[-65 * KB :] == b"b" * 64 * KB + b"c" * KB
    assert b"bytes were let go here" in text
    assert text.count(b"gonogo:") == 1
    cap.tend(2 * LOOK_EVERY_S)
    assert path.read_bytes() == text


def test_a_pipe_and_a_link_under_a_logs_name_are_left_alone(tmp_path: Path) -> None:
    """A program may write here, too, and nobody reads the pipe: opening it would block."""
    other = tmp_path / "other"
    other.write_bytes(b"another's\n")
    taken = other.stat().st_blocks
    (tmp_path / "rank1.log").symlink_to(other)
    os.mkfifo(tmp_path / "rank2.log")
    LogCap(tmp_path, cap_bytes=0).tend(0.0)
    assert other.stat().st_blocks == taken
