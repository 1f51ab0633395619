"""Waiting for `.GO`: how long, and from when."""

import time
from pathlib import Path
from typing import Any, cast

import pytest

from nsa import run_signals
from nsa.errors import BadConfig
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
    run_signals.wait_for_go(run_dir, cast(Ranks, ranks), heart)


def test_nobody_is_blamed_for_another_s_slow_start(
    tmp_path: Path, heart: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer whose imports take minutes: the limit begins when all are here."""
    monkeypatch.setattr(run_signals, "_LIMIT_S", 0.2)
    wait(tmp_path, LateRanks(0.5, tmp_path), heart)


def test_who_is_not_let_begin_in_time_leaves_with_the_others_and_says_why(
    tmp_path: Path, heart: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_signals._LIMIT_S == 120.0
    monkeypatch.setattr(run_signals, "_LIMIT_S", 0.1)
    ranks = LateRanks(0.0, None)
    with pytest.raises(BadConfig, match=r"no \.GO within"):
        wait(tmp_path, ranks, heart)
    assert ranks.left_together
    assert BadConfig.code == 4
