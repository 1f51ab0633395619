"""The last tick of a run: it comes behind every line, and seals exit.json."""

from __future__ import annotations

import errno
import json
import os
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import pytest

from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.rundir import RunDir, load_all_lines, load_record
from gonogo.supervise.watcher.metrics_file import Shipping
from gonogo.supervise.watcher.watcher import OWED_S, Watcher

ENDED = Path(__file__).parents[2] / "data" / "runs" / "healthy"


class Clock:
    """Seconds that pass while the watcher sleeps; what is due then is done."""

    def __init__(self, run_dir: RunDir, late: list[bytes]) -> None:
        self.now, self._dir, self._late = 1e6, run_dir, late

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.01)
        if self._late:
            with self._dir.heartbeat(0).open("ab") as stream:
                stream.write(self._late.pop(0) + b"\n")


@pytest.fixture
def ended(tmp_path: Path) -> RunDir:
    """A run that has ended, and that nobody has watched yet."""
    shutil.copytree(ENDED, tmp_path / ENDED.name)
    run_dir = RunDir(tmp_path / ENDED.name)
    run_dir.watch.unlink()
    run_dir.findings.unlink(missing_ok=True)
    return run_dir


def watched(run_dir: RunDir, late: list[bytes]) -> tuple[list[dict[str, Any]], float]:
    """Return the ticks of a watcher that comes after the end, and how long it looked."""
    order = load_record(run_dir.order, Order)
    assert order is not None
    clock = Clock(run_dir, late)
    Watcher(run_dir, order, Shipping(), clock.now).watch(clock.read, clock.sleep)
    return [json.loads(line) for line in load_all_lines(run_dir.watch)], clock.now - 1e6


def test_who_cannot_read_which_order_it_is_watches_under_none(
    ended: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper starts another; a whole run was open, as one that was watched under another."""
    order = load_record(ended.order, Order)
    assert order is not None
    real = os.open

    def refuse(path: Any, *args: Any, **named: Any) -> int:
        if Path(path) == ended.order:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real(path, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(OSError, match="Stale"):
            Watcher(ended, order, Shipping(), 1e6)
    ticks, _ = watched(ended, [])
    assert ticks[0]["start"]["order_sha256"] == sha256(ended.order.read_bytes()).hexdigest()


def test_lines_that_come_after_exit_json_stand_before_its_seal(ended: RunDir) -> None:
    lines = load_all_lines(ended.heartbeat(0))
    ended.heartbeat(0).write_bytes(b"".join(line + b"\n" for line in lines[:-3]))
    ticks, _ = watched(ended, lines[-3:])
    assert len(ticks) >= 4
    assert ["exit.json" in tick.get("files", {}) for tick in ticks] == [False] * (
        len(ticks) - 1
    ) + [True]
    assert sum(len(line) + 1 for line in lines) in [tick["upto"].get("0") for tick in ticks[:-1]]


def test_an_end_that_cannot_be_read_is_waited_for_no_longer_than_what_is_owed(
    ended: RunDir,
) -> None:
    ended.exit.write_text("{")
    ticks, looked_s = watched(ended, [])
    assert not any("exit.json" in tick.get("files", {}) for tick in ticks)
    assert looked_s < OWED_S + 30.0


class Told(Shipping):
    """Remembers the findings that no disk took."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def tell(self, finding: Finding) -> None:
        self.findings.append(finding)


@pytest.mark.parametrize("refuses", [True, False])
def test_a_finding_that_the_disk_does_not_take_is_told_at_once(
    ended: RunDir, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    order = load_record(ended.order, Order)
    assert order is not None
    clock, told = Clock(ended, [b"no line"]), Told()
    watcher = Watcher(ended, order, told, clock.now)
    if refuses:
        monkeypatch.setattr("gonogo.supervise.watcher.journal.append_line", refuse_all)
    watcher.watch(clock.read, clock.sleep)
    written = [Finding.model_validate_json(line) for line in load_all_lines(ended.findings)]
    somewhere, nowhere = (told.findings, written) if refuses else (written, told.findings)
    assert [row.detector for row in somewhere] == ["hygiene"]
    assert nowhere == []


def refuse_all(path: Path, _line: bytes) -> NoReturn:
    raise OSError(errno.EROFS, "Read-only file system", str(path))
