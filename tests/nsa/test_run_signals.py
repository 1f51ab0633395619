"""Waiting for `.GO`: how long, and from when."""

import time

import pytest

from nsa import run_signals
from nsa.errors import BadConfig
from nsa.heartbeat import Heartbeat


class LateRanks:
    """Rank 0 of a run whose other rank comes late; then `.GO` is written into `run_dir`, if any."""

    rank = 0

    def __init__(self, late_s, run_dir):
        self._late_s, self._run_dir, self.left_together = late_s, run_dir, False

    def choose(self, value):
        time.sleep(self._late_s)
        self._late_s = 0.0
        if self._run_dir is not None:
            (self._run_dir / ".GO").touch()
        return value

    def leave_together(self):
        self.left_together = True


@pytest.fixture
def heart(tmp_path):
    heart = Heartbeat(tmp_path / "heartbeat", rank=0, boot="b", alive_every_s=60.0)
    yield heart
    heart.close()


def test_nobody_is_blamed_for_another_s_slow_start(tmp_path, heart, monkeypatch):
    """A peer whose imports take minutes: the limit begins when all are here."""
    monkeypatch.setattr(run_signals, "_LIMIT_S", 0.2)
    run_signals.wait_for_go(tmp_path, LateRanks(0.5, tmp_path), heart)


def test_who_is_not_let_begin_in_time_leaves_with_the_others_and_says_why(
    tmp_path, heart, monkeypatch
):
    assert run_signals._LIMIT_S == 120.0
    monkeypatch.setattr(run_signals, "_LIMIT_S", 0.1)
    ranks = LateRanks(0.0, None)
    with pytest.raises(BadConfig, match=r"no \.GO within"):
        run_signals.wait_for_go(tmp_path, ranks, heart)
    assert ranks.left_together
    assert BadConfig.code == 4
