"""Files of a run: sealed or named, and what nodes left."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gonogo.contract.finding import DoubtKind
from gonogo.contract.observation import DeviceSample
from gonogo.contract.records import ExitRecord, FileSeal, ModelRecord, NodeExit, PartSeals
from gonogo.judge.facts.record import RunFiles, load_parts, read_devices
from gonogo.rundir import RunDir, save_json
from gonogo.watch.offline_fold import TOLD_BYTES
from tests.judge.runs import exit_record

# A seal holds for the first bytes of a file; what cannot be read is named and ends nothing.


TICKS = b"one\ntwo\n"


def seal_of(raw: bytes) -> FileSeal:
    return FileSeal(bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest())


@pytest.mark.parametrize(
    ("raw", "holds"),
    [
        (TICKS, True),
        (TICKS + b"three\n", True),  # the watcher continues until it has seen the end
        (TICKS[:-1], False),
        (b"one\ntwO\n", False),
        (b"", False),
        (None, False),
    ],
)
def test_a_file_begins_as_it_was_sealed(raw: bytes | None, holds: bool, tmp_path: Path) -> None:
    if raw is not None:
        (tmp_path / "watch.jsonl").write_bytes(raw)
    assert RunFiles(tmp_path).begins_with("watch.jsonl", seal_of(TICKS)) is holds


def sample(mono: float) -> DeviceSample:
    return DeviceSample(ts=mono, mono=mono, uuid="GPU-a", rank=0, util=50.0)


def test_device_samples_count_once_and_those_that_ticks_carry_are_looked_for(
    tmp_path: Path,
) -> None:
    files = RunFiles(tmp_path)
    first, second, third = (sample(mono) for mono in (1.0, 2.0, 3.0))
    lines = [first, second, first]
    raw = b"\n".join(row.model_dump_json().encode() for row in lines)
    (tmp_path / "devices.jsonl").write_bytes(raw + b"\n\nno sample\n{}\n")
    told = b"".join(row.digest()[:TOLD_BYTES] for row in (first, third))
    found = read_devices(files, told)
    seen = b"".join(sorted(row.digest() for row in (first, second)))
    assert found == (hashlib.sha256(seen).hexdigest(), 1)
    assert [(row.name, row.found) for row in files.unreadable] == [("devices.jsonl", "2 lines")]


def test_small_files_that_are_there_are_sealed_and_one_that_cannot_be_read_is_named_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "order.json").write_bytes(b"{}")
    (tmp_path / "exit_rank1.json").write_bytes(b"[]")
    (tmp_path / "model.json").mkdir()
    files = RunFiles(tmp_path)
    assert files.record("model.json", ModelRecord) is None
    assert files.record("exit_rank1.json", ModelRecord) is None
    names = ("order.json", "exit_rank0.json", "exit_rank1.json", "model.json")
    found = files.seals(names)
    assert found == {"order.json": seal_of(b"{}"), "exit_rank1.json": seal_of(b"[]")}
    assert [row.name for row in files.unreadable] == ["model.json", "exit_rank1.json"]
    assert {row.kind for row in files.unreadable} == {DoubtKind.UNREADABLE}


# Files that nodes left are sealed or named in exit.json.


PART = NodeExit(node=1, host="h", boot_id="b", ended_at=1.0)


def node_directory(path: Path, *, lines: bytes = b"") -> RunDir:
    run_dir = RunDir(path)
    save_json(run_dir.path / "exit_node1.json", PART.model_dump(mode="json"))
    (run_dir.path / "watch_node1.jsonl").write_bytes(lines)
    return run_dir


def sealed_of(run_dir: RunDir) -> ExitRecord:
    exit_seal = seal_of((run_dir.path / "exit_node1.json").read_bytes())
    watch = seal_of((run_dir.path / "watch_node1.jsonl").read_bytes())
    seals = PartSeals(exit=exit_seal, watch=watch)
    return exit_record().model_copy(update={"nodes": {"1": seals}})


def test_a_part_that_is_the_sealed_one_is_read(tmp_path: Path) -> None:
    run_dir, files = node_directory(tmp_path, lines=b"a line\n"), RunFiles(tmp_path)
    known = sealed_of(run_dir)
    (run_dir.path / "watch_node1.jsonl").write_bytes(b"a line\nand one that came later\n")
    assert load_parts(files, known) == {1: PART}
    assert files.unreadable == []


def test_a_part_that_is_gone_is_told_of(tmp_path: Path) -> None:
    run_dir, files = node_directory(tmp_path), RunFiles(tmp_path)
    known = sealed_of(run_dir)
    (run_dir.path / "exit_node1.json").unlink()
    assert load_parts(files, known) == {}
    assert [row.name for row in files.unreadable] == ["exit_node1.json"]


def test_a_missing_file_is_not_readable(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    assert not files.is_readable("watch.jsonl")
    (tmp_path / "watch.jsonl").write_bytes(TICKS)
    assert files.is_readable("watch.jsonl")
    (tmp_path / "findings.jsonl").mkdir()
    assert not files.is_readable("findings.jsonl")
