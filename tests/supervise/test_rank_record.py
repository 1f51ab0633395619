"""Which process a rank is, as the run directory records."""

from pathlib import Path

import pytest

from gonogo.supervise.process_records import (
    RankRecord,
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
