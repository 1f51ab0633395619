"""How a keeper ends its run, and what it writes about ends that nobody saw."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.supervise.disk_reserve import Reserve
from gonogo.supervise.durable import load_json, save_json
from gonogo.supervise.end_request import (
    HALT_LIMIT_S,
    HALT_NAME,
    KILL_NAME,
    EndRequest,
    ask_halt,
    load_request,
    until_after,
)
from gonogo.supervise.exit_record import Ended
from gonogo.supervise.keeper import run_end
from gonogo.supervise.keeper.children import Child
from gonogo.supervise.keeper.oom import OutOfMemory
from gonogo.supervise.keeper.run_end import DEAF_LIMIT_S, RunEnd, presumed_end
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.node_record import exit_path
from gonogo.supervise.processes import ProcessRef
from gonogo.supervise.rank_record import RankRecord, load_rank_record, save_rank_record
from tests.supervise.runs import NewRun, SupervisedRun, build_test_order, wait_until

KILLED = {"code": None, "signal": 9, "at": 2.0}


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


SLEEPS = "import time; time.sleep(300)"


def start_command(new_run: NewRun, script: str = SLEEPS) -> SupervisedRun:
    """Start a run of one Python program that knows nothing of gonogo."""
    return new_run(
        "--allow", "any", entry=None, world_size=1, identity={"world_size": 1}, watch={},
        command=[sys.executable, "-c", script],
    )  # fmt: skip


def test_a_clock_that_is_set_back_while_ranks_are_to_leave_renames_no_cause(
    new_run: NewRun,
) -> None:
    """The cause stays that of the first request."""
    run = start_command(new_run)
    wait_until(lambda: (run.path / ".rank0.json").exists(), "the program")
    asked = EndRequest(
        reason="diverged",
        ended_by="watchdog",
        at=time.time() + 3600,
        text="the loss has diverged",
        until_mono=until_after(1.0),
    )
    assert ask_halt(run.path, asked)
    record = run.wait_for_exit()
    assert (record.reason, record.ended_by) == (OutcomeCode.DIVERGED, Actor.WATCHDOG)
    kill = load_request(run.path / KILL_NAME)
    assert kill is not None
    assert kill.text == "asked to leave, the ranks did not"


@pytest.mark.parametrize("whose", ["wrapper", "program"])
def test_who_is_killed_tells_whether_a_command_ended_by_itself(new_run: NewRun, whose: str) -> None:
    """The wrapper takes its program along; it is a part of the supervision, as the keeper is."""
    run = start_command(new_run)
    record = wait_until(lambda: load_rank_record(run.path, 0), "the program")
    os.kill(record.wrapper if whose == "wrapper" else record.ref.pid, signal.SIGKILL)
    told = run.wait_for_exit()
    if whose == "wrapper":
        assert (told.reason, told.ended_by) == (OutcomeCode.KEEPER_LOST, Actor.INFRA)
        assert told.text == "the wrapper of the command was killed, and the program with it"
    else:
        assert (told.reason, told.ended_by) == (OutcomeCode.NONZERO_EXIT, Actor.TRAINER)
    assert run.living() == []


@pytest.mark.long
def test_a_wrapper_below_torchrun_that_is_killed_is_no_rank_that_failed(new_run: NewRun) -> None:
    run = new_run(steps=2000)
    run.wait_for_step(3)
    record = load_rank_record(run.path, 1)
    assert record is not None
    os.kill(record.wrapper, signal.SIGKILL)
    told = run.wait_for_exit()
    assert (told.reason, told.ended_by) == (OutcomeCode.KEEPER_LOST, Actor.INFRA)
    assert told.text == "the wrapper of rank 1 was killed, and the program with it"
    assert run.living() == []


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


@pytest.mark.parametrize("first", ["its wrapper", "another rank", "a request"])
def test_a_wrapper_that_torchrun_kills_at_last_is_not_what_ended_the_run(
    tmp_path: Path, first: str
) -> None:
    """A rank that hangs outlives SIGTERM by 30 s where the plan's grace is longer than that."""
    order = build_test_order("run_1").document()
    killed = Ended(code=None, signal=9, at=1000.0)
    pids = {0: os.getpid(), 1: 2**22 + 1}
    for rank, pid in pids.items():
        ref = ProcessRef(pid=pid, start_ticks=1)
        save_rank_record(tmp_path, rank, RankRecord(ref=ref, wrapper=2**22 + 2), 900.0)
    at = 969.0 if first == "another rank" else 1001.0
    missed = Ended(code=1, signal=None, at=at, lost_peer=True)
    save_json(tmp_path / "exit_rank0.json", missed.document())
    if first == "a request":
        text = "rank 0 ended with exit code 1"
        asked = EndRequest(reason="nonzero_exit", ended_by="trainer", at=969.0, text=text)
        assert ask_halt(tmp_path, asked)
    place, memory = Place.of(order), OutOfMemory(lambda: 0)
    ending = RunEnd(tmp_path, order, place, frozenset, Reserve(tmp_path), memory)
    agent = Child(
        ref=ProcessRef(pid=2**22 + 3, start_ticks=1),
        at=900.0,
        ended=Ended(code=1, signal=None, at=1002.0),
    )
    ending.save_exit(agent, {pids[1]: killed})
    told = load_json(tmp_path / "exit.json")
    assert told is not None
    assert told["reason"] == ("keeper_lost" if first == "its wrapper" else "nonzero_exit")


@pytest.mark.parametrize(
    ("other", "own", "waits_in_vain"),
    [
        pytest.param({"token": 7, "agent": KILLED}, 0, True, id="its launcher was killed"),
        pytest.param({"token": 7, "agent": None}, 0, True, id="it started none"),
        pytest.param({"token": 7, "agent": KILLED}, None, False, id="a rank here goes on"),
        pytest.param({"token": 7, "agent": KILLED}, 1, False, id="a rank here missed another"),
        pytest.param({"token": 7, "agent": {**KILLED, "code": 0}}, 0, False, id="it has met"),
        pytest.param({"token": 6, "agent": KILLED}, 0, False, id="an older attempt"),
        pytest.param(None, 0, False, id="its ranks go on"),
    ],
)
def test_a_launcher_is_ended_that_waits_for_one_that_will_not_come(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    other: dict[str, object] | None,
    own: int | None,
    waits_in_vain: bool,
) -> None:
    made: list[object] = []
    monkeypatch.setattr(run_end, "Killer", lambda **parts: made.append(parts) or parts)
    order = build_test_order("run_x", nodes=2, token=7).document()
    if own is not None:
        save_json(tmp_path / "exit_rank0.json", {"code": own, "signal": None, "at": 1.0})
    if other is not None:
        save_json(exit_path(tmp_path, 1), {"v": 1, **other})
    place, reserve = Place.of(order, 0), Reserve(tmp_path)
    ending = RunEnd(tmp_path, order, place, frozenset, reserve, OutOfMemory(lambda: 0))
    agent = Child(ref=ProcessRef(pid=2**22 + 3, start_ticks=1), at=900.0)
    ending.obey(1.0, agent, at_once=False)
    assert bool(made) is waits_in_vain


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
    ending.ask_to_leave("halted", "operator", "the keeper was told to stop", shield=shield)
    asked = load_request(tmp_path / HALT_NAME)
    assert asked is not None
    assert asked.leave_s == leave_s
    agent = Child(ref=ProcessRef(pid=2**22 + 3, start_ticks=1), at=900.0)
    ending.obey(time.monotonic(), agent, at_once=False)
    assert bool(made) is (leave_s == 0.0)
    killed = load_request(tmp_path / KILL_NAME)
    assert (None if killed is None else killed.text) == (
        "the program does not leave when asked, and was ended" if leave_s == 0.0 else None
    )
