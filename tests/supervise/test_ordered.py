"""Does a run directory say what was ordered, whatever its trainer makes of it?"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gonogo.contract.outcome import OutcomeCode
from gonogo.supervise.ordered import put_back
from gonogo.supervise.processes import send_signal
from tests.supervise.conftest import NewRun

ORDERED = b'{"token": 7}\n'


def _bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(path.parent)
        made.bind(path.name)


@pytest.mark.parametrize(
    "become",
    [
        lambda path: None,
        os.mkfifo,
        os.mkdir,
        _bind,
        lambda path: path.symlink_to(path),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"[" * 10_000),
        lambda path: path.write_bytes(b'{"token": 7, "watch": {}}'),
    ],
    ids=["gone", "pipe", "folder", "socket", "loop", "device", "empty", "nested", "another's"],
)
def test_what_stands_in_its_place_is_kept_beside_what_was_ordered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, become: Callable[[Path], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "order.json"
    become(path)
    stood = os.path.lexists(path)
    assert put_back(tmp_path, ORDERED)
    assert path.read_bytes() == ORDERED
    assert not path.is_symlink()
    assert len(os.listdir(tmp_path)) == 1 + stood
    assert not put_back(tmp_path, ORDERED)


def test_the_order_of_a_newer_claim_stays(tmp_path: Path) -> None:
    (tmp_path / "order.json").write_bytes(b'{"token": 8}')
    assert not put_back(tmp_path, ORDERED)
    assert json.loads((tmp_path / "order.json").read_bytes()) == {"token": 8}


@pytest.mark.long
def test_a_watcher_that_follows_one_that_died_watches_what_was_ordered(new_run: NewRun) -> None:
    """It knew no order, and nobody watched the run to its end, nor told that end."""
    run = new_run(steps=60)
    run.wait_for_step(3)
    run.dir.order.unlink()
    os.mkfifo(run.dir.order)
    assert send_signal(run.pid_of("watcher"), signal.SIGKILL)
    assert run.wait_for_exit().reason is OutcomeCode.COMPLETED
    run.assert_replays()
