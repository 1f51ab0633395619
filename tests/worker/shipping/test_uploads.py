"""Which evidence is uploaded: whole, within limits, never from outside the directory?"""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from gonogo.rundir import RunDir
from worker.shipping import reports
from worker.shipping.reports import EvidenceFile, build_evidence, pending_evidence


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    (tmp_path / "evidence" / "round1").mkdir(parents=True)
    (tmp_path / "evidence" / "round1" / "stack.txt").write_text("frames")
    (tmp_path / "stackdump_rank0_1.txt").write_text("dump")
    (tmp_path / "rank0.log").write_text("not evidence")
    (tmp_path / "evidence" / ".half.txt.1.tmp").write_text("half")
    (tmp_path / "evidence" / "link.txt").symlink_to("/etc/passwd")
    return RunDir(tmp_path)


def names(found: list[EvidenceFile]) -> list[str]:
    return [item.path for item in found]


def test_evidence_and_stack_dumps_are_found_and_nothing_else(run_dir: RunDir) -> None:
    found = pending_evidence(run_dir, {}, ended=True)
    assert names(found) == ["evidence/round1/stack.txt", "stackdump_rank0_1.txt"]


def test_the_trainers_tables_go_at_the_end_after_the_evidence(run_dir: RunDir) -> None:
    for name in ("profile.json", "k_stats.csv", "training.csv"):
        (run_dir.path / name).write_text("x")
    (run_dir.path / "gate_health.csv").symlink_to("/etc/passwd")
    evidence = ["evidence/round1/stack.txt", "stackdump_rank0_1.txt"]
    later = (run_dir.path / "profile.json").stat().st_mtime + 60
    assert names(pending_evidence(run_dir, {}, ended=False, now=later)) == evidence
    assert names(pending_evidence(run_dir, {}, ended=True)) == [
        *evidence, "k_stats.csv", "profile.json",
    ]  # fmt: skip


def test_a_file_just_written_waits_while_the_run_lives(run_dir: RunDir) -> None:
    written = (run_dir.path / "stackdump_rank0_1.txt").stat().st_mtime
    assert pending_evidence(run_dir, {}, ended=False, now=written + 0.5) == []
    assert len(pending_evidence(run_dir, {}, ended=False, now=written + 5)) == 2


def test_an_uploaded_file_goes_again_only_when_it_grew(run_dir: RunDir) -> None:
    uploaded = {"evidence/round1/stack.txt": 6, "stackdump_rank0_1.txt": 3}
    assert names(pending_evidence(run_dir, uploaded, ended=True)) == ["stackdump_rank0_1.txt"]


def test_the_whole_run_stays_within_the_limit(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "MAX_EVIDENCE_BYTES", 7)
    assert names(pending_evidence(run_dir, {}, ended=True)) == ["evidence/round1/stack.txt"]


def test_a_large_file_is_cut_and_says_so(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MAX_FILE_BYTES", 4)
    (item, *_) = pending_evidence(run_dir, {}, ended=True)
    report = build_evidence(run_dir, 1, item)
    assert report is not None
    assert (base64.b64decode(report.content_b64), report.truncated) == (b"fram", True)


@pytest.mark.parametrize("path", ["../secret.txt", "evidence/link.txt", "evidence/gone.txt"])
def test_nothing_outside_the_directory_is_read(run_dir: RunDir, path: str) -> None:
    (run_dir.path.parent / "secret.txt").write_text("secret")
    assert build_evidence(run_dir, 1, EvidenceFile(path=path, bytes=6)) is None
    os.unlink(run_dir.path.parent / "secret.txt")
