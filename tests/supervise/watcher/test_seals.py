"""What the watcher says it has seen of the small records."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from gonogo.contract.records import FileSeal
from gonogo.rundir import RunDir, save_json
from gonogo.supervise.watcher.look import Seals


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    save_json(tmp_path / "order.json", {"v": 1})
    return RunDir(tmp_path)


def seal(path: Path) -> FileSeal:
    content = path.read_bytes()
    return FileSeal(bytes=len(content), sha256=sha256(content).hexdigest())


def test_record_is_sealed_once_when_it_is_first_seen(run_dir: RunDir) -> None:
    seals = Seals(run_dir, 2, {})
    assert seals.take(last=False) == {"order.json": seal(run_dir.order)}
    assert seals.take(last=False) == {}
    save_json(run_dir.preflight, {"v": 1, "passed": True})
    save_json(run_dir.rank_exit(1), {"code": 0})
    assert set(seals.take(last=False)) == {"preflight/preflight.json", "exit_rank1.json"}
    assert seals.take(last=False) == {}


def test_every_node_that_was_checked_is_sealed(run_dir: RunDir) -> None:
    seals = Seals(run_dir, 2, {}, nodes=2)
    seals.take(last=False)
    for node in range(3):
        save_json(run_dir.preflight_of(node), {"v": 1, "passed": True})
    found = seals.take(last=False)
    assert set(found) == {"preflight/preflight.json", "preflight/node1/preflight.json"}


def test_torn_record_waits_until_it_is_whole(run_dir: RunDir) -> None:
    seals = Seals(run_dir, 1, {})
    seals.take(last=False)
    run_dir.model.write_bytes(b'{"v": 1,')
    assert seals.take(last=False) == {}
    run_dir.model.write_bytes(b'{"v": 1, "dim": 64}')
    assert seals.take(last=False) == {"model.json": seal(run_dir.model)}


def test_what_stayed_as_it_was_is_not_sealed_again(run_dir: RunDir) -> None:
    """Not at the end, and not by a watcher that starts again."""
    known: dict[str, FileSeal] = {}
    seals = Seals(run_dir, 1, known)
    save_json(run_dir.model, {"dim": 64})
    assert "model.json" in seals.take(last=False)
    assert seals.take(last=True) == {}
    assert Seals(run_dir, 1, dict(known)).take(last=False) == {}
    save_json(run_dir.rank_exit(0), {"code": 0})
    assert set(Seals(run_dir, 1, dict(known)).take(last=False)) == {"exit_rank0.json"}
    run_dir.model.unlink()
    assert set(Seals(run_dir, 1, known).take(last=True)) == {"exit_rank0.json"}


def test_record_that_a_new_process_writes_again_is_sealed_again(run_dir: RunDir) -> None:
    seals = Seals(run_dir, 1, {})
    save_json(run_dir.model, {"dim": 64})
    seals.take(last=False)
    save_json(run_dir.model, {"dim": 64})
    assert seals.take(last=False) == {}
    save_json(run_dir.model, {"dim": 65})
    assert seals.take(last=False) == {"model.json": seal(run_dir.model)}


def test_record_that_no_process_writes_again_keeps_its_first_seal(run_dir: RunDir) -> None:
    known: dict[str, FileSeal] = {}
    seals = Seals(run_dir, 1, known)
    save_json(run_dir.preflight, {"passed": False})
    first = seal(run_dir.preflight)
    seals.take(last=False)
    save_json(run_dir.preflight, {"passed": True})
    save_json(run_dir.order, {"v": 2})
    assert seals.take(last=False) == {}
    assert known["preflight/preflight.json"] == first


def test_nothing_is_sealed_after_the_end(run_dir: RunDir) -> None:
    known: dict[str, FileSeal] = {}
    seals = Seals(run_dir, 1, known)
    save_json(run_dir.exit, {"code": 0})
    assert "exit.json" in seals.take(last=True)
    assert seals.closed
    save_json(run_dir.exit, {"code": 1})
    save_json(run_dir.order, {"v": 2})
    assert seals.take(last=True) == {}
    assert Seals(run_dir, 1, known).take(last=True) == {}


def test_what_was_written_before_exit_json_is_sealed_with_it(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were exit.json looked at last, what comes between two looks would never be sealed."""
    seals = Seals(run_dir, 1, {})
    seals.take(last=False)
    looked = Seals._look

    def look(self: Seals, name: str, path: Path) -> FileSeal | None:
        found = looked(self, name, path)
        if name == "exit_rank0.json":  # written, and the end after it, just behind the look
            save_json(run_dir.rank_exit(0), {"code": 0})
            save_json(run_dir.exit, {"code": 0})
        return found

    monkeypatch.setattr(Seals, "_look", look)
    found = {**seals.take(last=True), **seals.take(last=True)}
    assert set(found) == {"exit_rank0.json", "exit.json"}
    assert seals.closed


def test_the_end_is_sealed_by_the_last_tick_alone(run_dir: RunDir) -> None:
    """What came between it and exit.json could be cut off unseen."""
    seals = Seals(run_dir, 1, {})
    save_json(run_dir.exit, {"code": 0})
    save_json(run_dir.rank_exit(0), {"code": 0})
    assert set(seals.take(last=False)) == {"order.json", "exit_rank0.json"}
    assert not seals.closed
    assert set(seals.take(last=True)) == {"exit.json"}
