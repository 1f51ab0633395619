"""Are growing files read to the right byte?"""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.shipping.parts import load_log_bytes


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
