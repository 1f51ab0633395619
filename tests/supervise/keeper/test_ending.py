"""What is said of a rank's end that nobody saw."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from gonogo.contract.outcome import Actor, OutcomeCode
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
from gonogo.supervise.keeper import ending as keeper_ending
from gonogo.supervise.keeper.children import Child
from gonogo.supervise.keeper.ending import DEAF_LIMIT_S, Ending, _presumed
from gonogo.supervise.keeper.living import living_keeper
from gonogo.supervise.keeper.oom import OutOfMemory
from gonogo.supervise.keeper.refusals import Refusals
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.node_record import exit_path
from gonogo.supervise.processes import ProcessRef
from gonogo.supervise.rank_record import RankRecord, load_rank_record, save_rank_record
from gonogo.supervise.weather import Reserve
from tests.supervise.runs import NewRun, build_test_order, starting, wait_until

KILLED = {"code": None, "signal": 9, "at": 2.0}


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


@pytest.mark.parametrize(
    ("agent", "end"), [(0, (0, None)), (1, (None, signal.SIGKILL))], ids=["0", "1"]
)
def test_a_rank_of_a_torchrun_that_left_with_0_was_not_killed(
    agent: int, end: tuple[int | None, int | None]
) -> None:
    """Where a disk that failed for a moment took no word of its wrapper."""
    record = RankRecord(ref=ProcessRef(pid=7, start_ticks=1), wrapper=6)
    ended = _presumed(record, None, Ended(code=agent, signal=None, at=2.0))
    assert (ended.code, ended.signal) == end


def test_nobody_is_said_to_be_killed_of_whom_the_disk_took_no_word() -> None:
    """Its wrapper had waited ten seconds to tell it, and left: the program's own NO_GO."""
    record = RankRecord(ref=ProcessRef(pid=7, start_ticks=1), wrapper=6)
    ended = _presumed(record, None, Ended(code=1, signal=None, at=2.0), refused=True)
    assert not ended.is_known


def test_a_clock_that_is_set_back_while_ranks_are_to_leave_renames_no_cause(
    new_run: NewRun,
) -> None:
    """The end of their time was told as an operator's, an hour before the watchdog's request."""
    run = new_run(
        "--allow", "any", entry=None, world_size=1, identity={"world_size": 1}, watch={},
        command=[sys.executable, "-c", "import time; time.sleep(300)"],
    )  # fmt: skip
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
    run = new_run(
        "--allow", "any", entry=None, world_size=1, identity={"world_size": 1}, watch={},
        command=[sys.executable, "-c", "import time; time.sleep(300)"],
    )  # fmt: skip
    record = wait_until(lambda: load_rank_record(run.path, 0), "the program")
    os.kill(record.wrapper if whose == "wrapper" else record.ref.pid, signal.SIGKILL)
    told = run.wait_for_exit()
    if whose == "wrapper":
        assert (told.reason, told.ended_by) == (OutcomeCode.KEEPER_LOST, Actor.INFRA)
        assert told.text == "the wrapper of the command was killed, and the program with it"
    else:
        assert (told.reason, told.ended_by) == (OutcomeCode.NONZERO_EXIT, Actor.TRAINER)
    assert run.living() == []


def test_a_program_that_dies_just_after_its_wrapper_was_noted_is_noted_too(tmp_path: Path) -> None:
    """Nothing of the run lives then: that the command had ended by itself was said at once."""
    with starting(tmp_path, "tests.supervise.keeper.one_at_a_time") as new_run:
        run = new_run(
            "--allow", "any", entry=None, world_size=1, identity={"world_size": 1}, watch={},
            command=[sys.executable, "-c", "import time; time.sleep(300)"],
        )  # fmt: skip
        record = wait_until(lambda: load_rank_record(run.path, 0), "the program")
        os.kill(record.wrapper, signal.SIGKILL)
        told = run.wait_for_exit()
    assert (told.reason, told.ended_by) == (OutcomeCode.KEEPER_LOST, Actor.INFRA)


@pytest.mark.long
def test_a_keeper_that_stood_still_knows_late_that_a_wrapper_was_killed(new_run: NewRun) -> None:
    """As on a host that swaps: the watcher has asked for the end long before the keeper sees it."""
    run = new_run(
        "--allow", "any", entry=None, world_size=1, identity={"world_size": 1}, watch={},
        command=[sys.executable, "-c", "import time; time.sleep(300)"],
    )  # fmt: skip
    record = wait_until(lambda: load_rank_record(run.path, 0), "the program")
    keeper = wait_until(lambda: living_keeper(run.path), "the keeper")
    keeper.send(signal.SIGSTOP)
    os.kill(record.wrapper, signal.SIGKILL)
    asked = wait_until(lambda: load_request(run.path / KILL_NAME), "the watcher's request")
    time.sleep(max(0.0, asked.at + keeper_ending.AFTERMATH_S + 0.5 - time.time()))
    keeper.send(signal.SIGCONT)
    told = run.wait_for_exit()
    assert (told.reason, told.ended_by) == (OutcomeCode.KEEPER_LOST, Actor.INFRA)


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


@pytest.mark.parametrize("late", ["never", "before", "then"])
@pytest.mark.parametrize("first", ["its wrapper", "another rank", "a request"])
def test_a_wrapper_that_torchrun_kills_at_last_is_not_what_ended_the_run(
    tmp_path: Path, first: str, late: str
) -> None:
    """A rank that hangs outlives SIGTERM by 30 s where the plan's grace is longer than that.

    Unless the keeper stood still: then it may have been killed a minute before it was seen dead.
    """
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
    refusals = Refusals(tmp_path / "tried")
    ending = Ending(tmp_path, order, place, frozenset, Reserve(tmp_path), memory, refusals)
    agent = Child(
        ref=ProcessRef(pid=2**22 + 3, start_ticks=1),
        at=900.0,
        ended=Ended(code=1, signal=None, at=1002.0),
    )
    if late != "never":
        ending.late_s[pids[1] if late == "then" else 2**22 + 4] = 60.0
    ending.save_exit(agent, {pids[1]: killed})
    told = load_json(tmp_path / "exit.json")
    assert told is not None
    lost = first == "its wrapper" or late == "then"
    assert told["reason"] == ("keeper_lost" if lost else "nonzero_exit")


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
    monkeypatch.setattr(keeper_ending, "Killer", lambda **parts: made.append(parts) or parts)
    order = build_test_order("run_x", nodes=2, token=7).document()
    if own is not None:
        save_json(tmp_path / "exit_rank0.json", {"code": own, "signal": None, "at": 1.0})
    if other is not None:
        save_json(exit_path(tmp_path, 1), {"v": 1, **other})
    place, reserve = Place.of(order, 0), Reserve(tmp_path)
    refusals = Refusals(tmp_path / "tried")
    ending = Ending(tmp_path, order, place, frozenset, reserve, OutOfMemory(lambda: 0), refusals)
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
    """It trained on for half a minute after Ctrl-C."""
    made: list[object] = []
    monkeypatch.setattr(keeper_ending, "Killer", lambda **parts: made.append(parts) or parts)
    for name in marks:
        (tmp_path / name).touch()
    order = build_test_order("run_x").document() | ({"command": ["x"]} if command else {})
    place, reserve = Place.of(order), Reserve(tmp_path)
    refusals = Refusals(tmp_path / "tried")
    ending = Ending(tmp_path, order, place, frozenset, reserve, OutOfMemory(lambda: 0), refusals)
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


def test_a_run_whose_directory_was_moved_away_has_not_ended_by_itself(new_run: NewRun) -> None:
    """A mount that went, a folder that was tidied up: its lines are where nobody looks."""
    run = new_run(
        "--allow", "any", entry=None, world_size=1, identity={"world_size": 1}, watch={},
        command=[sys.executable, "-c", "import time; time.sleep(3)"],
    )  # fmt: skip
    wait_until(lambda: load_rank_record(run.path, 0), "the program")
    gone = run.path.with_name("gone")
    run.path.rename(gone)
    run.path.mkdir()
    (run.path / "order.json").write_bytes((gone / "order.json").read_bytes())
    told = run.wait_for_exit()
    assert (told.reason, told.ended_by) == (OutcomeCode.KEEPER_LOST, Actor.INFRA), told.text
    assert "moved" in told.text
    assert run.living() == []
