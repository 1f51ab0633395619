"""Readers take complete lines only, and nothing leads out of the run directory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo import files, rundir
from gonogo.contract.errors import Corrupt, Rejected
from gonogo.contract.heartbeat import MAX_LINE_BYTES
from gonogo.contract.records import ExitRecord
from gonogo.rundir import RunDir, complete_bytes, load_all_lines, load_lines, load_record, save_json


def test_a_torn_last_line_waits_for_its_end(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\ntwo\nthr")
    first = load_lines(file)
    assert (first.lines, first.offset) == ([b"one", b"two"], 8)
    with file.open("ab") as stream:
        stream.write(b"ee\n")
    assert load_lines(file, first.offset).lines == [b"three"]


def test_a_line_that_never_ends_does_not_block_the_reader(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"x" * (MAX_LINE_BYTES + 1))
    assert load_lines(file).offset == MAX_LINE_BYTES + 1


@given(
    parts=st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\r", b"")), max_size=8),
    data=st.data(),
)
@settings(deadline=None, max_examples=50)
def test_reading_in_pieces_gives_the_lines_of_the_whole(
    parts: list[bytes], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("x") / "lines"
    whole = b"\n".join(parts)
    lines: list[bytes] = []
    offset = 0
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    for end in [*cuts, len(whole)]:
        file.write_bytes(whole[:end])
        part = load_lines(file, offset)
        lines += part.lines
        offset = part.offset
    assert lines == load_all_lines(file)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "link/x"])
def test_an_artifact_cannot_lie_outside(path: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "link").symlink_to(tmp_path)
    with pytest.raises(Rejected, match="out of the run directory"):
        RunDir(run).inside(path)
    assert RunDir(run).inside("evidence/x").name == "x"


def test_ranks_are_those_with_a_heartbeat_file(tmp_path: Path) -> None:
    for name in ("heartbeat_rank10.jsonl", "heartbeat_rank2.jsonl", "heartbeat_rankx.jsonl"):
        (tmp_path / name).touch()
    assert RunDir(tmp_path).ranks() == [2, 10]
    assert RunDir(tmp_path / "none").ranks() == []


def test_a_small_record_is_there_whole_absent_or_corrupt(tmp_path: Path) -> None:
    file = tmp_path / "exit.json"
    assert load_record(file, ExitRecord) is None
    save_json(file, {"ended_at": 1.0, "ended_by": "trainer", "reason": "completed"})
    found = load_record(file, ExitRecord)
    assert found is not None
    assert found.reason == "completed"
    file.write_text('{"ended_at": 1')
    with pytest.raises(Corrupt, match=r"exit\.json"):
        load_record(file, ExitRecord)


def test_saving_replaces_a_file_in_one_move_and_leaves_nothing_beside(tmp_path: Path) -> None:
    file = tmp_path / "a" / "x.json"
    save_json(file, {"a": float("inf")})
    save_json(file, {"a": 2})
    assert json.loads(file.read_text()) == {"a": 2}
    assert [path.name for path in file.parent.iterdir()] == ["x.json"]


@given(data=st.lists(st.sampled_from([b"\n", b"a", b"bc\n", b"\r", b"\x00"])).map(b"".join))
def test_complete_bytes_end_after_the_last_newline(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("lines") / "f"
    path.write_bytes(data)
    assert complete_bytes(path) == data.rfind(b"\n") + 1


def _grow(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(files.MAX_RECORD_BYTES + 1)


NO_RECORDS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path),
    "too large": _grow,
}


@pytest.mark.parametrize("make", NO_RECORDS.values(), ids=NO_RECORDS)
def test_what_is_no_record_at_any_time_is_corrupt(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    """It was taken for a busy disk, so the run's end was reported to nobody."""
    make(tmp_path / "model.json")
    with pytest.raises(Corrupt, match=r"model\.json"):
        load_record(tmp_path / "model.json", ExitRecord)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ("{", "it was pruned"),
        (
            '{"what": "checkpoints", "at": 86400, "policy": "30 days"}',
            "its checkpoints were pruned on 1970-01-02 (30 days)",
        ),
        (None, None),
    ],
)
def test_a_pruned_directory_says_so(record: str | None, text: str | None, tmp_path: Path) -> None:
    if record is not None:
        (tmp_path / rundir.PRUNED_NAME).write_text(record)
    assert rundir.pruned_text(tmp_path) == text
