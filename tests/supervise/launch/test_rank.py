"""The rank wrapper: exit stamps, logs, signals passed on, and death with its parent."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import pytest

from gonogo.supervise.launch import rank
from gonogo.supervise.process_records import load_rank_record
from gonogo.supervise.processes import find_process
from tests.supervise.orders import make_order
from tests.supervise.runs import ROOT, wait_until


def start(
    run_dir: Path,
    program: str,
    rank: int = 1,
    *,
    environ: Mapping[str, str] | None = None,
    stderr: IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gonogo.supervise.launch.rank", "--dir", str(run_dir), "--"]
    environ = {**os.environ, "RANK": str(rank), "PYTHONUNBUFFERED": "1", **(environ or {})}
    command += [sys.executable, "-c", program]
    return subprocess.Popen(command, cwd=ROOT, env=environ, stderr=stderr)


def stamp(run_dir: Path, rank: int = 1) -> dict[str, Any]:
    found = json.loads((run_dir / f"exit_rank{rank}.json").read_text())
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("program", "code", "number"),
    [
        ("print('hello')", 0, None), ("raise SystemExit(7)", 7, None),
        ("import os; os.kill(os.getpid(), 9)", None, 9), ("import os; os.abort()", None, 6),
    ],
    ids=["0", "7", "SIGKILL", "abort"],
)  # fmt: skip
def test_exit_stamp_says_how_the_program_ended(
    tmp_path: Path, program: str, code: int | None, number: int | None
) -> None:
    status = start(tmp_path, program).wait(timeout=120)
    found = stamp(tmp_path)
    assert (found["v"], found["code"], found["signal"]) == (1, code, number)
    assert status == (code if number is None else -number)


def test_how_a_program_ended_is_told_when_the_disk_takes_it_again(tmp_path: Path) -> None:
    """Below torchrun nobody else sees it: it was reported as killed by signal 9."""
    flag = tmp_path / "failing"
    environ = {
        "PYTHONPATH": f"{ROOT / 'tests/supervise/failing_disk'}:{ROOT}",
        "TEST_FAILING": str(flag),
        "TEST_BELOW": f"{tmp_path}/exit_rank",
    }
    (tmp_path / "order.json").write_text("{}")
    fail = f"open({str(flag)!r}, 'w').write('{errno.EIO}'); raise SystemExit(7)"
    log = tmp_path / "wrapper.log"
    with log.open("wb") as stream:
        wrapper = start(tmp_path, fail, environ=environ, stderr=stream)
        wait_until(lambda: "the stamp: [Errno 5]" in log.read_text(), "that it cannot be told")
        flag.unlink()
        assert wrapper.wait(timeout=120) == 7
    assert stamp(tmp_path)["code"] == 7


def test_when_memory_runs_out_the_program_is_to_go_before_whoever_watches_it(
    tmp_path: Path,
) -> None:
    program = "print(open('/proc/self/oom_score_adj').read().strip())"
    start(tmp_path, program).wait(timeout=120)
    ours = int(Path("/proc/self/oom_score_adj").read_text())
    assert int((tmp_path / "rank1.log").read_text()) == 500 > ours


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT])
def test_signal_is_passed_on(tmp_path: Path, number: signal.Signals) -> None:
    program = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(40))\n"
        "print('ready')\n"
        "time.sleep(600)"
    )
    wrapper = start(tmp_path, program)
    wait_until(lambda: "ready" in read(tmp_path / "rank1.log"), "the program")
    wrapper.send_signal(number)
    assert wrapper.wait(timeout=120) == 40
    assert stamp(tmp_path)["code"] == 40


@pytest.mark.parametrize("command", [None, ["train"]], ids=["a trainer of ours", "a command"])
def test_term_of_a_scheduler_ends_no_program_that_leaves_when_asked(
    tmp_path: Path, command: list[str] | None
) -> None:
    order = make_order(command=command).document()
    (tmp_path / "order.json").write_text(json.dumps(order))
    program = "import signal; print(signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # as `--shield` does
    try:
        wrapper = start(tmp_path, program, rank=0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert wrapper.wait(timeout=60) == 0
    assert read(tmp_path / "rank0.log").strip() == str(command is None)


def test_program_dies_with_a_killed_wrapper(tmp_path: Path) -> None:
    wrapper = start(tmp_path, "import time; time.sleep(600)")
    wait_until(lambda: (tmp_path / ".rank1.json").exists(), "the program's start")
    program = find_process(json.loads((tmp_path / ".rank1.json").read_text())["pid"])
    wrapper.kill()
    wrapper.wait()
    assert program is not None
    wait_until(lambda: not program.is_alive(), "the program's end", limit_s=120.0)
    assert not (tmp_path / "exit_rank1.json").exists()


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


STARTER = """
import subprocess, sys
started = subprocess.Popen([sys.executable, *sys.argv[1:]])
sys.exit(started.wait())
"""


@pytest.mark.parametrize(
    ("between", "torchrun", "begins"),
    [
        pytest.param(False, False, True, id="the keeper's own child"),
        pytest.param(True, False, False, id="adopted by another"),
        pytest.param(True, True, True, id="a child of the keeper's torchrun"),
        pytest.param(False, True, False, id="of a dead torchrun, adopted by the keeper"),
    ],
)
def test_nothing_begins_where_the_agent_is_gone_whoever_the_parent_is(
    tmp_path: Path, between: bool, torchrun: bool, begins: bool
) -> None:
    wrapper = ["-m", "gonogo.supervise.launch.rank", "--dir", str(tmp_path)]
    wrapper += ["--keeper", str(os.getpid()), "--", sys.executable, "-c", "print('hello')"]
    command = [sys.executable, *(("-c", STARTER) if between else ()), *wrapper]
    environ = {name: text for name, text in os.environ.items() if name != "TORCHELASTIC_RUN_ID"}
    environ |= {"TORCHELASTIC_RUN_ID": "x"} if torchrun else {}
    done = subprocess.run(command, cwd=ROOT, env=environ, check=False, timeout=60)
    assert (done.returncode, (tmp_path / "rank0.log").exists()) == (int(not begins), begins)


LAUNCHER = """
import os, subprocess, sys, time
environ = {**os.environ, "RANK": "0", "LOCAL_RANK": "0"}
rank = subprocess.Popen([sys.executable, "-c", environ["PROGRAM"]], env=environ)
while rank.poll() is None:
    time.sleep(1)  # to read an end first takes longer on a busy host
sys.exit(1)
"""
UNTIL_FOUND = """
import pathlib, time
record = pathlib.Path({record!r})
while not record.exists() or '"launched"' not in record.read_text():
    time.sleep(0.05)
time.sleep(0.5)
exit(5)
"""


def test_a_launcher_s_end_is_not_its_ranks(tmp_path: Path) -> None:
    order = {"run": "run_x", "command": ["x"], "world_size": 1}
    (tmp_path / "order.json").write_text(json.dumps(order))
    rank = UNTIL_FOUND.format(record=str(tmp_path / ".rank0.json"))
    assert start(tmp_path, LAUNCHER, environ={"PROGRAM": rank}).wait(timeout=120) == 1
    assert stamp(tmp_path, 0)["code"] == 5
    assert load_rank_record(tmp_path, 0).launched  # type: ignore[union-attr]


def test_a_task_that_fails_ends_and_one_that_the_host_refuses_is_tried_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refusals = [OSError(errno.ENFILE, os.strerror(errno.ENFILE))] * 2

    def make() -> list[int]:
        if refusals:
            raise refusals.pop()
        return [7]

    task = rank.Guarded("looking", make)
    assert [task.do(lambda made: made[0], 0) for _ in range(4)] == [0, 0, 7, 7]
    assert [task.do(lambda made: made[1], 0) for _ in range(2)] == [0, 0]
    assert task.made is None
    assert capsys.readouterr().err.splitlines() == [
        "gonogo: looking ended: IndexError('list index out of range')"
    ]
