"""A seal holds for the first bytes of a file; what cannot be read is named and ends nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gonogo.contract.device import DeviceSample
from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.records import ExitRecord
from gonogo.contract.tick import FileSeal
from gonogo.judge.facts.files import (
    SmallFiles,
    check_findings_seal,
    read_devices,
    watch_seal_holds,
)
from gonogo.rundir import RunDir
from gonogo.watch.watch_record import TOLD_BYTES
from tests.judge.runs import exit_record

TICKS = b"one\ntwo\n"


def seal_of(raw: bytes) -> FileSeal:
    return FileSeal(bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest())


def sealing(*, watch: FileSeal | None = None, findings: FileSeal | None = None) -> ExitRecord:
    return exit_record().model_copy(update={"watch": watch, "findings": findings})


@pytest.mark.parametrize(
    ("raw", "holds"),
    [
        (TICKS, True),
        (TICKS + b"three\n", True),  # the watcher goes on until it has seen the end
        (TICKS[:-1], False),
        (b"one\ntwO\n", False),
        (b"", False),
        (None, False),
    ],
)
def test_watch_jsonl_begins_as_exit_json_says(
    raw: bytes | None, holds: bool, tmp_path: Path
) -> None:
    run_dir = RunDir(tmp_path)
    if raw is not None:
        run_dir.watch.write_bytes(raw)
    assert watch_seal_holds(run_dir, sealing(watch=seal_of(TICKS))) is holds
    assert watch_seal_holds(run_dir, sealing()) is None
    assert watch_seal_holds(run_dir, None) is None


def test_of_a_file_that_is_longer_than_a_read_every_byte_is_sealed(tmp_path: Path) -> None:
    raw = bytes(2**20) + b"end"
    run_dir = RunDir(tmp_path)
    run_dir.watch.write_bytes(raw)
    assert watch_seal_holds(run_dir, sealing(watch=seal_of(raw))) is True
    run_dir.watch.write_bytes(raw[:-1] + b"x")
    assert watch_seal_holds(run_dir, sealing(watch=seal_of(raw))) is False


@pytest.mark.parametrize(
    ("seal", "raw", "named"),
    [
        (seal_of(TICKS), TICKS, False),
        (seal_of(TICKS), b"other\n\n\n", True),
        (seal_of(TICKS), None, True),
        (seal_of(b""), None, False),  # there was none to seal
        (None, b"other", False),
    ],
)
def test_findings_jsonl_that_is_another_one_is_named(
    seal: FileSeal | None, raw: bytes | None, named: bool, tmp_path: Path
) -> None:
    run_dir = RunDir(tmp_path)
    if raw is not None:
        run_dir.findings.write_bytes(raw)
    unreadable: list[Doubt] = []
    check_findings_seal(run_dir, sealing(findings=seal), unreadable)
    assert [row.name for row in unreadable] == ["findings.jsonl"] * named
    check_findings_seal(run_dir, None, [])


def sample(mono: float) -> DeviceSample:
    return DeviceSample(ts=mono, mono=mono, uuid="GPU-a", rank=0, util=50.0)


def test_device_samples_count_once_and_those_that_ticks_carry_are_looked_for(
    tmp_path: Path,
) -> None:
    run_dir, unreadable = RunDir(tmp_path), list[Doubt]()
    first, second, third = (sample(mono) for mono in (1.0, 2.0, 3.0))
    lines = [first, second, first]
    raw = b"\n".join(row.model_dump_json().encode() for row in lines)
    (tmp_path / "devices.jsonl").write_bytes(raw + b"\n\nno sample\n{}\n")
    told = b"".join(row.digest()[:TOLD_BYTES] for row in (first, third))
    found = read_devices(run_dir, told, unreadable)
    seen = b"".join(sorted(row.digest() for row in (first, second)))
    assert found == (hashlib.sha256(seen).hexdigest(), 1)
    assert [(row.name, row.found) for row in unreadable] == [("devices.jsonl", "2 lines")]


def test_without_devices_jsonl_all_that_ticks_carry_is_gone(tmp_path: Path) -> None:
    unreadable: list[Doubt] = []
    found = read_devices(RunDir(tmp_path), sample(1.0).digest()[:TOLD_BYTES], unreadable)
    assert (found, unreadable) == ((None, 1), [])
    (tmp_path / "devices.jsonl").mkdir()
    found = read_devices(RunDir(tmp_path), b"", unreadable)
    assert found == (None, 0)
    assert [row.found for row in unreadable] == ["Is a directory"]


def test_small_files_that_are_there_are_sealed_and_one_that_cannot_be_read_is_named_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "order.json").write_bytes(b"{}")
    (tmp_path / "exit_rank1.json").write_bytes(b"[]")
    (tmp_path / "model.json").mkdir()
    said = Doubt(kind=DoubtKind.UNREADABLE, name="model.json", found="Is a directory")
    unreadable = [said]
    found = SmallFiles(RunDir(tmp_path)).seals((0, 1), unreadable)
    assert found == {"order.json": seal_of(b"{}"), "exit_rank1.json": seal_of(b"[]")}
    assert unreadable == [said]
    SmallFiles(RunDir(tmp_path)).seals((), again := [])
    assert again == unreadable
