"""A disk that refuses for a moment what a rank needs to begin is no fault of the run."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsa import at_length as module
from nsa.at_length import at_length
from nsa.errors import BadConfig
from nsa.heartbeat import Heartbeat
from nsa.launch import launch_from_order
from nsa.settings import load_settings
from nsa.stacks import StackDumps


def refusing(work: Callable[..., Any], times: int, number: int) -> Callable[..., Any]:
    """Return `work` as a disk answers that refuses it some times."""
    left = list(range(times))

    def tried(*args: Any, **named: Any) -> Any:
        if left:
            left.pop()
            raise OSError(number, os.strerror(number))
        return work(*args, **named)

    return tried


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL_S", 0.01)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOSPC])
def test_a_rank_begins_as_soon_as_the_disk_lets_it(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    make_order: Callable[..., Path],
    number: int,
) -> None:
    """Its order could not be read: it was the user's bad configuration."""
    order = make_order()
    monkeypatch.setattr(Path, "read_text", refusing(Path.read_text, 3, number))
    assert launch_from_order(order, load_settings({})).run_dir == order.parent
    said = capsys.readouterr().err
    assert said == f"the order is waited for: [Errno {number}] {os.strerror(number)}\n"
    monkeypatch.setattr(os, "open", refusing(os.open, 3, number))
    Heartbeat(order.parent / "heartbeat", rank=0, boot="b", alive_every_s=60.0).close()
    monkeypatch.setattr(Path, "open", refusing(Path.open, 3, number))
    StackDumps(order.parent, 0).close()


def test_what_is_not_there_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="cannot read order"):
        launch_from_order(tmp_path / "order.json", load_settings({}))


def test_a_disk_that_goes_on_refusing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.LIMIT_S == 60.0
    monkeypatch.setattr(module, "LIMIT_S", 0.05)
    with pytest.raises(OSError, match="Stale"):
        at_length("it", refusing(int, 10**6, errno.ESTALE))
