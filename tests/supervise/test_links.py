"""What does a trainer gain by a link, or a pipe, where keeper and watcher write? Nothing."""

import logging
import multiprocessing
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gonogo.contract.finding import Finding
from gonogo.files import NoPlainFile, append_plain
from gonogo.rundir import RunDir
from gonogo.supervise.exit_record import Ended
from gonogo.supervise.keeper.children import open_log, start_child
from gonogo.supervise.keeper.staff import Staff
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.watcher.journal import Journal
from gonogo.supervise.weather import Reserve, Weather

LIMIT_S = 30.0

FOUND = Finding(
    detector="D1",
    severity="warn",
    key="D1:0",
    act="page",
    at=1.0,
    step=1,
    ranks=(0,),
    cause="stall",
    text="no step",
)


def _child(folder: Path) -> None:
    child = start_child([sys.executable, "-c", "print(1)"], env={}, log=folder / "rank0.log")
    os.waitpid(child.ref.pid, 0)


def _log(folder: Path) -> None:
    with open_log(folder / "drained.log") as stream:
        stream.write(b"said")


WRITERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a child's output": ("rank0.log", _child),
    "a log": ("drained.log", _log),
    "a finding": ("findings.jsonl", lambda at: Journal(RunDir(at)).add_finding(FOUND)),
    "room": (".reserve", lambda at: Reserve(at).hold()),
}


@pytest.mark.parametrize("what", WRITERS)
def test_a_link_is_not_followed(tmp_path: Path, what: str) -> None:
    name, write = WRITERS[what]
    run, others = tmp_path / "run", tmp_path / "others"
    run.mkdir()
    others.write_bytes(b"somebody else's\n")
    (run / name).symlink_to(others)
    with suppress(OSError):
        write(run)
    assert others.read_bytes() == b"somebody else's\n"


@pytest.mark.parametrize("what", WRITERS)
def test_a_pipe_is_not_waited_for(tmp_path: Path, what: str) -> None:
    name, write = WRITERS[what]
    os.mkfifo(tmp_path / name)

    def attempt() -> None:
        with suppress(OSError):
            write(tmp_path)

    process = multiprocessing.get_context("fork").Process(target=attempt)
    process.start()
    process.join(LIMIT_S)
    waits = process.is_alive()
    process.kill()
    process.join()
    assert not waits


@pytest.mark.parametrize("opened", [append_plain])
def test_what_is_no_file_is_said_to_be_none(
    tmp_path: Path, opened: Callable[[Path], object]
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "link", tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(NoPlainFile, match="no regular file"):
            append_plain(path)
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(IsADirectoryError):
        append_plain(tmp_path)


def test_what_is_added_is_behind_what_another_adds(tmp_path: Path) -> None:
    with append_plain(tmp_path / "log") as one, append_plain(tmp_path / "log") as other:
        for stream, word in ((one, b"a"), (other, b"b"), (one, b"c")):
            stream.write(word)
    assert (tmp_path / "log").read_bytes() == b"abc"


def test_a_program_has_a_log_as_its_output_that_it_may_wait_for(tmp_path: Path) -> None:
    """Whoever opens it waits for no pipe in its place; what is inherited tells nothing of that."""
    with append_plain(tmp_path / "log") as stream:
        assert os.get_blocking(stream.fileno())


def test_a_watcher_is_started_whatever_its_log_has_become(tmp_path: Path) -> None:
    """One that had died had none after it, for ever: a run that hung went on."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch()
    (tmp_path / "watcher.log").symlink_to(elsewhere)
    staff = Staff(
        run_dir=tmp_path,
        order={},
        ordered=b"{}",
        slots=(),
        environ={},
        watcher="this",
        place=Place.of({"world_size": 1}, 0),
        weather=Weather(logging.getLogger()),
        tell=lambda: None,
    )
    staff.tend(0.0)
    (pid,) = staff.pids()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    staff.note(pid, Ended(code=0, signal=None, at=0.0), 0.0)
    assert elsewhere.read_bytes() == b""
