"""Are growing files read to the right byte?"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.lifecycle import RunEvent
from worker import spool
from worker.spool import Reported, complete_bytes, load_reported, load_tail


@given(data=st.lists(st.sampled_from([b"\n", b"a", b"bc\n", b"\r", b"\x00"])).map(b"".join))
def test_complete_bytes_end_after_the_last_newline(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("lines") / "f"
    path.write_bytes(data)
    assert complete_bytes(path) == data.rfind(b"\n") + 1


def test_a_long_torn_line_is_read_over_block_by_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "_TAIL_BYTES", 4)
    path = tmp_path / "f"
    path.write_bytes(b"one\ntwo\n" + b"x" * 1000)
    assert complete_bytes(path) == 8
    path.write_bytes(b"x" * 1000)
    assert complete_bytes(path) == 0
    assert complete_bytes(tmp_path / "missing") == 0


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
