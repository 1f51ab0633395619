"""Which process a rank is, as the run directory records."""

import json
from pathlib import Path

import pytest

from gonogo.supervise.process_records import (
    RankRecord,
    RankRecords,
    load_rank_record,
    recorded_ranks,
    save_rank_record,
)
from gonogo.supervise.processes import ProcessRef


def record(pid: int, **said: bool) -> RankRecord:
    return RankRecord(ref=ProcessRef(pid=pid, start_ticks=pid + 1), wrapper=pid + 2, **said)


@pytest.mark.parametrize("said", [{}, {"launched": True}, {"launched": True, "by_shell": True}])
def test_a_record_comes_back_as_it_was(tmp_path: Path, said: dict[str, bool]) -> None:
    save_rank_record(tmp_path, 3, record(7, **said), at=1.5)
    save_rank_record(tmp_path, 12, record(8), at=1.5)
    assert load_rank_record(tmp_path, 3) == record(7, **said)
    assert list(recorded_ranks(tmp_path)) == [3, 12]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": "x"}', '{"pid": null}'])
def test_what_is_no_record_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / ".rank0.json").write_text(text)
    assert load_rank_record(tmp_path, 0) is None
    assert load_rank_record(tmp_path, 1) is None
    assert RankRecords(tmp_path).of(0) is None


def test_a_record_is_read_again_when_it_changes_and_kept_when_it_goes(tmp_path: Path) -> None:
    records = RankRecords(tmp_path)
    assert records.of(0) is None
    save_rank_record(tmp_path, 0, record(7), at=1.5)
    assert records.of(0) == record(7)
    save_rank_record(tmp_path, 0, record(9, launched=True), at=1.5)
    assert records.of(0) == record(9, launched=True)
    (tmp_path / ".rank0.json").write_text(json.dumps({"pid": "torn"}))
    assert records.of(0) == record(9, launched=True)
    (tmp_path / ".rank0.json").unlink()
    assert records.of(0) == record(9, launched=True)
