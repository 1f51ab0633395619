"""What is said of a rank's end that nobody saw."""

from __future__ import annotations

import pytest

from gonogo.supervise.exit_record import Ended
from gonogo.supervise.keeper.ending import _presumed
from gonogo.supervise.processes import ProcessRef
from gonogo.supervise.rank_record import RankRecord


@pytest.mark.parametrize(
    ("by_shell", "agent", "code"),
    [(False, 0, 0), (True, 0, None), (False, 1, None), (True, 1, None)],
    ids=["a launcher's 0", "a shell's 0", "a launcher's 1", "a shell's 1"],
)
def test_a_launcher_vouches_for_its_ranks_and_a_shell_does_not(
    by_shell: bool, agent: int, code: int | None
) -> None:
    ref = ProcessRef(pid=7, start_ticks=1)
    record = RankRecord(ref=ref, wrapper=6, launched=True, by_shell=by_shell)
    ended = _presumed(record, None, Ended(code=agent, signal=None, at=2.0))
    assert (ended.code, ended.signal) == (code, None)
