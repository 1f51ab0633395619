"""How a keeper ends its run, and what it writes about ends that nobody saw."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.supervise.durable import Reserve
from gonogo.supervise.end_request import HALT_LIMIT_S, HALT_NAME, KILL_NAME, load_request
from gonogo.supervise.keeper import run_end
from gonogo.supervise.keeper.children import Child
from gonogo.supervise.keeper.run_end import DEAF_LIMIT_S, OutOfMemory, RunEnd, presumed_end
from gonogo.supervise.last_lines import Ended
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.process_records import RankRecord
from gonogo.supervise.processes import ProcessRef
from tests.supervise.runs import NewRun, build_test_order


@pytest.mark.parametrize(
    ("launched", "by_shell", "agent", "end"),
    [
        pytest.param(True, False, 0, (0, None), id="a launcher's 0"),
        pytest.param(True, True, 0, (None, None), id="a shell's 0"),
        pytest.param(True, False, 1, (None, None), id="a launcher's 1"),
        pytest.param(False, False, 0, (0, None), id="torchrun's 0"),
        pytest.param(False, False, 1, (None, signal.SIGKILL), id="torchrun's 1"),
    ],
)
def test_a_launcher_that_left_with_0_vouches_for_its_ranks(
    launched: bool, by_shell: bool, agent: int, end: tuple[int | None, int | None]
) -> None:
    ref = ProcessRef(pid=7, start_ticks=1)
    record = RankRecord(ref=ref, wrapper=6, launched=launched, by_shell=by_shell)
    ended = presumed_end(record, None, Ended(code=agent, signal=None, at=2.0))
    assert (ended.code, ended.signal) == end


def test_a_program_that_kills_its_process_group_has_ended_by_itself(new_run: NewRun) -> None:
    """As launch scripts do that leave nothing behind; its wrapper, in the group, went first."""
    script = "import os, signal; os.killpg(0, signal.SIGKILL)"
    run = new_run(
        "--allow", "any", entry=None, world_size=1, identity={"world_size": 1}, watch={},
        command=[sys.executable, "-c", script], detectors=["stall"],
    )  # fmt: skip
    told = run.wait_for_exit()
    assert (told.reason, told.ended_by) == (OutcomeCode.NONZERO_EXIT, Actor.TRAINER)
    assert told.text == "the command ended by signal 9"


@pytest.mark.parametrize(
    ("command", "marks", "shield", "leave_s"),
    [
        pytest.param(True, ("heartbeat_rank0.jsonl", ".read"), False, 0.0, id="unchanged"),
        pytest.param(True, (), False, 0.0, id="a silent command"),
        pytest.param(True, (".read",), True, DEAF_LIMIT_S, id="it was sent the signal, too"),
        pytest.param(True, ("heartbeat_rank0.jsonl",), False, HALT_LIMIT_S, id="attached"),
        pytest.param(False, (), False, DEAF_LIMIT_S, id="an entry that has not spoken"),
    ],
)
def test_a_program_that_looks_for_no_halt_gets_no_time_to_leave(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: bool,
    marks: tuple[str, ...],
    shield: bool,
    leave_s: float,
) -> None:
    made: list[object] = []
    monkeypatch.setattr(run_end, "Killer", lambda **parts: made.append(parts) or parts)
    for name in marks:
        (tmp_path / name).touch()
    order = build_test_order("run_x").document() | ({"command": ["x"]} if command else {})
    place, reserve = Place.of(order), Reserve(tmp_path)
    ending = RunEnd(tmp_path, order, place, frozenset, reserve, OutOfMemory(lambda: 0))
    ending.ask_to_leave("halted", "operator", "the keeper was asked to stop", shield=shield)
    asked = load_request(tmp_path / HALT_NAME)
    assert asked is not None
    assert asked.leave_s == leave_s
    agent = Child(ref=ProcessRef(pid=2**22 + 3, start_ticks=1), at=900.0)
    ending.obey(time.monotonic(), agent, at_once=False)
    assert bool(made) is (leave_s == 0.0)
    killed = load_request(tmp_path / KILL_NAME)
    assert (killed is not None) is (leave_s == 0.0)
