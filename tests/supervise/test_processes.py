"""Processes as /proc shows them, found by token and by descent."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import NoReturn

import pytest

from gonogo.supervise.keeper.kill import find_processes
from gonogo.supervise.processes import (
    ProcessRef,
    find_descendants,
    find_process,
    load_stat,
    send_signal,
)
from tests.supervise.runs import wait_until

ORPHAN = """
import subprocess, time
from gonogo.supervise.processes import die_with_parent
child = subprocess.Popen(["sleep", "60"], preexec_fn={prepare})
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    environ = {"GONOGO_RUN": f"run_of_{os.getpid()}", "PATH": os.environ["PATH"]}
    with subprocess.Popen(["sleep", "60"], env=environ) as process:
        yield process
        process.kill()


def test_process_is_found_by_its_token_alone(sleeper: subprocess.Popen[bytes]) -> None:
    token = f"run_of_{os.getpid()}"
    wait_until(lambda: find_processes(token) == {sleeper.pid}, "the sleeper")
    assert find_processes(token[:-1]) == frozenset()
    assert find_processes(f"{token}0") == frozenset()


def test_child_is_a_descendant_unless_its_tree_is_left_out(
    sleeper: subprocess.Popen[bytes],
) -> None:
    assert sleeper.pid in find_descendants(os.getpid())
    assert sleeper.pid not in find_descendants(os.getpid(), leave=frozenset({sleeper.pid}))


@pytest.mark.parametrize("handles", [True, False], ids=["by a handle", "by its pid"])
def test_a_process_that_is_not_ours_to_end_ends_nobody_who_tries(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, handles: bool
) -> None:
    """A program that has become another user (setuid), under a keeper that is not root."""

    def refuse(*_: object) -> NoReturn:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    ref = find_process(sleeper.pid)
    assert ref is not None
    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    monkeypatch.setattr(os, "kill", refuse)
    if not handles:
        monkeypatch.setattr(os, "pidfd_open", refuse)
    assert ref.send(signal.SIGKILL) is False
    assert ref.is_alive()


def test_zombie_and_a_later_process_of_the_same_pid_are_not_alive(
    sleeper: subprocess.Popen[bytes],
) -> None:
    ref = find_process(sleeper.pid)
    assert ref is not None
    assert ref.is_alive()
    assert not ProcessRef(pid=ref.pid, start_ticks=ref.start_ticks + 1).is_alive()
    os.kill(sleeper.pid, signal.SIGKILL)
    wait_until(lambda: (stat := load_stat(sleeper.pid)) and stat.state == "Z", "the zombie")
    assert not ref.is_alive()
    assert ref.send(signal.SIGTERM) is False
    sleeper.wait()
    assert load_stat(sleeper.pid) is None
    assert send_signal(sleeper.pid, signal.SIGTERM) is False


@pytest.mark.parametrize(
    ("prepare", "dies"), [("die_with_parent", True), ("None", False)], ids=["asked", "not asked"]
)
def test_child_dies_with_its_parent_when_it_asked_for_it(prepare: str, dies: bool) -> None:
    command = [sys.executable, "-c", ORPHAN.format(prepare=prepare)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = find_process(int(parent.stdout.readline()))
        parent.kill()
    assert child is not None
    if dies:
        wait_until(lambda: not child.is_alive(), "the child's end", limit_s=20.0)
    assert child.is_alive() is not dies
    child.send(signal.SIGKILL)


HALF_DEAD = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).pthread_exit(0)
"""


def test_a_process_of_which_threads_live_has_not_ended() -> None:
    """Its first thread has, so /proc calls it a zombie; it holds its memory all the same."""
    with subprocess.Popen([sys.executable, "-c", HALF_DEAD]) as process:
        wait_until(lambda: (stat := load_stat(process.pid)) and stat.state == "Z", "the zombie")
        stat = load_stat(process.pid)
        assert stat is not None
        assert stat.threads > 1
        assert not stat.ended
        process.kill()
        wait_until(lambda: (stat := load_stat(process.pid)) and stat.ended, "its end")
