"""Files that nodes left are sealed or named in exit.json."""

from pathlib import Path

from gonogo.contract.records import ExitRecord, NodeExit, PartSeals
from gonogo.judge.facts.files import RunFiles, load_parts
from gonogo.rundir import RunDir, file_seal, save_json
from tests.judge.runs import exit_record

PART = NodeExit(node=1, host="h", boot_id="b", ended_at=1.0)


def directory(path: Path, *, lines: bytes = b"") -> RunDir:
    run_dir = RunDir(path)
    save_json(run_dir.node_exit(1), PART.model_dump(mode="json"))
    run_dir.node_watch(1).write_bytes(lines)
    return run_dir


def sealed(run_dir: RunDir) -> ExitRecord:
    seals = PartSeals(exit=file_seal(run_dir.node_exit(1)), watch=file_seal(run_dir.node_watch(1)))
    return exit_record().model_copy(update={"nodes": {"1": seals}})


def test_a_part_that_is_the_sealed_one_is_read(tmp_path: Path) -> None:
    run_dir, files = directory(tmp_path, lines=b"a line\n"), RunFiles(tmp_path)
    known = sealed(run_dir)
    run_dir.node_watch(1).write_bytes(b"a line\nand one that came later\n")
    assert load_parts(files, known) == {1: PART}
    assert files.unreadable == []


def test_a_part_that_is_gone_is_told_of(tmp_path: Path) -> None:
    run_dir, files = directory(tmp_path), RunFiles(tmp_path)
    known = sealed(run_dir)
    run_dir.node_exit(1).unlink()
    assert load_parts(files, known) == {}
    assert [row.name for row in files.unreadable] == ["exit_node1.json"]
