"""Are growing files read to the right byte?"""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.rundir import RunDir
from worker.shipping.parts import load_log_bytes, log_names


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (0, (6, b"6789")),  # more than the lag behind: the tail
        (5, (5, b"5678")),
        (8, (8, b"89")),
        (10, None),
        (99, None),
    ],
)
def test_a_reader_too_far_behind_jumps_to_the_tail(
    tmp_path: Path, offset: int, expected: tuple[int, bytes] | None
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    assert load_log_bytes(path, offset, most=4, lag=6) == expected
    assert load_log_bytes(tmp_path / "missing", 0, most=4, lag=6) is None


def test_the_log_of_a_rank_that_never_said_a_line_is_sent(tmp_path: Path) -> None:
    for name in ("torchrun.log", "rank0.log", "rank11.log", "rank.log", "rank01.log", "rank2.txt"):
        (tmp_path / name).write_text("No module named 'mine'\n")
    (tmp_path / "heartbeat_rank3.jsonl").touch()
    assert log_names(RunDir(tmp_path)) == ["torchrun.log", "rank0.log", "rank11.log"]
