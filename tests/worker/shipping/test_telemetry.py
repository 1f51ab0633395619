"""Growing files are read from the right byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.rundir import RunDir
from worker.shipping import telemetry
from worker.shipping.telemetry import build_log_part, log_names


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (0, (6, "6789")),  # further behind than the lag: the tail
        (5, (5, "5678")),
        (8, (8, "89")),
        (10, None),
        (99, None),
    ],
)
def test_reader_too_far_behind_jumps_to_the_tail(
    tmp_path: Path, offset: int, expected: tuple[int, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "MAX_LOG_BYTES", 4)
    monkeypatch.setattr(telemetry, "LOG_LAG_BYTES", 6)
    (tmp_path / "rank0.log").write_bytes(b"0123456789")
    part = build_log_part(RunDir(tmp_path), "rank0.log", offset)
    assert (None if part is None else (part.start, part.text)) == expected
    assert build_log_part(RunDir(tmp_path), "rank1.log", 0) is None


def test_log_of_a_rank_without_heartbeats_is_sent(tmp_path: Path) -> None:
    for name in ("torchrun.log", "rank0.log", "rank11.log", "rank.log", "rank01.log", "rank2.txt"):
        (tmp_path / name).write_text("No module named 'mine'\n")
    (tmp_path / "heartbeat_rank3.jsonl").touch()
    assert log_names(RunDir(tmp_path)) == ["torchrun.log", "rank0.log", "rank11.log"]
