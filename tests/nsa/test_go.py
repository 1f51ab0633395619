"""Waiting for `.GO`: how long, and from when."""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nsa import go
from nsa.errors import BadConfig, Halted
from nsa.heartbeat import Heartbeat
from nsa.ranks import Ranks


class LateRanks:
    """Rank 0 of a run whose other rank comes to its first collective late.

    Args:
        late_s: how late.
        run_dir: gets its `.GO` as soon as all ranks are here, as from a watcher that has seen
            their boot lines; None: nobody gives it.
    """

    rank = 0

    def __init__(self, late_s: float, run_dir: Path | None) -> None:
        self._late_s, self._run_dir = late_s, run_dir
        self.left_together = False

    def choose(self, value: int) -> int:
        late_s, self._late_s = self._late_s, 0.0
        time.sleep(late_s)
        if self._run_dir is not None:
            (self._run_dir / ".GO").touch()
        return value

    def leave_together(self) -> None:
        self.left_together = True


@pytest.fixture
def heart(tmp_path: Path) -> Any:
    heart = Heartbeat(tmp_path / "heartbeat", rank=0, boot="b", alive_every_s=60.0)
    yield heart
    heart.close()


def wait(run_dir: Path, ranks: LateRanks, heart: Heartbeat) -> None:
    go.wait_for_go(run_dir, cast(Ranks, ranks), heart)


def test_nobody_is_blamed_for_another_s_slow_start(
    tmp_path: Path, heart: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer whose imports take minutes: the limit begins when all are here."""
    monkeypatch.setattr(go, "_LIMIT_S", 0.2)
    wait(tmp_path, LateRanks(0.5, tmp_path), heart)


def test_who_is_not_let_begin_in_time_leaves_with_the_others_and_says_why(
    tmp_path: Path, heart: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert go._LIMIT_S == 120.0
    monkeypatch.setattr(go, "_LIMIT_S", 0.1)
    ranks = LateRanks(0.0, None)
    with pytest.raises(BadConfig, match=r"no \.GO within"):
        wait(tmp_path, ranks, heart)
    assert ranks.left_together
    assert BadConfig.code == 4


def test_while_a_job_is_suspended_nobody_could_let_it_begin(
    tmp_path: Path, heart: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its watcher is, too: it wakes no sooner, and gives `.GO` a moment later."""
    went, naps = time.monotonic, itertools.count(1)
    suspended_s = 0.0

    def sleep(_: float) -> None:
        nonlocal suspended_s
        nap = next(naps)
        suspended_s += 10800.0 if nap == 3 else 0.0
        if nap == 5:
            (tmp_path / ".GO").touch()

    clock = SimpleNamespace(monotonic=lambda: went() + suspended_s, sleep=sleep)
    monkeypatch.setattr(go, "time", clock)
    wait(tmp_path, LateRanks(0.0, None), heart)


def refuse_looks(monkeypatch: pytest.MonkeyPatch, *, first: int, last: int, number: int) -> None:
    """Have a disk refuse some of the looks at `.GO` and `.HALT`; numbered from 1."""
    lstat, looks = os.lstat, itertools.count(1)

    def look(path: str | Path, **how: Any) -> os.stat_result:
        if Path(path).name in (".GO", ".HALT") and first <= next(looks) <= last:
            raise OSError(number, os.strerror(number), str(path))
        return lstat(path, **how)

    monkeypatch.setattr(os, "lstat", look)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_disk_that_does_not_answer_for_a_moment_ends_no_training(
    monkeypatch: pytest.MonkeyPatch,
    train_here: Callable[..., list[dict[str, Any]]],
    number: int,
) -> None:
    """The look for `.HALT` after each step ended the rank, as the program's own failure."""
    refuse_looks(monkeypatch, first=1, last=5, number=number)
    assert train_here(steps=4)[-1]["msg"] == "done"


def test_halt_that_is_a_link_to_nowhere_says_so_too(tmp_path: Path, heart: Heartbeat) -> None:
    """The keeper obeys it: a trainer that did not was killed, without a checkpoint."""
    (tmp_path / ".HALT").symlink_to(tmp_path / "none")
    with pytest.raises(Halted):
        wait(tmp_path, LateRanks(0.0, None), heart)


def test_who_was_told_to_end_is_not_told_that_nobody_answered(
    tmp_path: Path, heart: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the disk says after that."""
    (tmp_path / ".HALT").touch()
    refuse_looks(monkeypatch, first=3, last=10**6, number=errno.ESTALE)
    with pytest.raises(Halted):
        wait(tmp_path, LateRanks(0.0, None), heart)
