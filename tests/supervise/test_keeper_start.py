"""Is a keeper that was started never taken for one that was not?"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gonogo.supervise import keeper_start as start
from gonogo.supervise.locks import DeviceLocks
from gonogo.supervise.processes import ProcessRef
from tests.supervise.runs import ROOT


def test_a_directory_that_cannot_be_read_for_a_moment_says_nothing_of_a_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs by then: an exception here would end the run as never begun."""
    looks: list[Path] = []

    def look(run_dir: Path, _: object) -> ProcessRef | None:
        looks.append(run_dir)
        if len(looks) < 3:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return ProcessRef(pid=os.getpid(), start_ticks=1)

    monkeypatch.setattr(start, "living_keeper", look)
    keeper = start.start_keeper(
        tmp_path,
        home=tmp_path,
        locks=DeviceLocks(home=tmp_path),
        devices=(),
        environ=dict(os.environ),
        cwd=ROOT,
        module="tests.supervise.sleeper",
    )
    try:
        assert len(looks) == 3
    finally:
        keeper.kill()
        keeper.wait(60)
