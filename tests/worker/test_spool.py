"""Are growing files read to the right byte?"""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.contract.lifecycle import RunEvent
from worker.spool import Reported, load_reported, load_tail


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
    assert load_tail(path, offset, most=4, lag=6) == expected
    assert load_tail(tmp_path / "missing", 0, most=4, lag=6) is None


def test_what_was_reported_is_remembered(tmp_path: Path) -> None:
    reported = Reported(
        events=[RunEvent.CHECK], stepped_at=1.5, findings_bytes=7, evidence={"a": 1}
    )
    reported.save(tmp_path)
    assert load_reported(tmp_path) == reported
    (tmp_path / ".reported.json").write_text("torn")
    assert load_reported(tmp_path) == Reported()


def test_a_disk_that_refuses_does_not_stop_the_shipping(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.touch()
    Reported(findings_bytes=7).save(blocked)
    assert load_reported(blocked) == Reported()
