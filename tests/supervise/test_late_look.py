"""Is a run judged by what it did whose keeper died before the watch had seen its end?"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gonogo.rundir import RunDir, load_all_lines, save_json
from gonogo.supervise.late_look import look_late
from gonogo.supervise.watcher.recording import WATCHED_NAME
from gonogo.watch import refold
from tests.supervise.runs import (
    ROOT,
    NewRun,
    SupervisedRun,
    kill_before_the_last_look,
    wait_until,
)


@pytest.fixture
def unseen(new_run: NewRun) -> SupervisedRun:
    """A run that completed, and whose end nobody saw."""
    run = new_run(steps=15)
    kill_before_the_last_look(run.path)
    assert run.wait_for_exit().reason == "completed"
    assert not (run.path / WATCHED_NAME).exists()
    return run


def test_one_more_watcher_sees_the_end_and_says_how_late_it_comes(unseen: SupervisedRun) -> None:
    before = load_all_lines(unseen.dir.watch)
    seen = refold(unseen.path).watch
    assert seen is not None
    assert not seen.reaches
    look_late(unseen.dir, os.environ)
    unseen.assert_replays()
    ticks = load_all_lines(unseen.dir.watch)
    assert ticks[: len(before)] == before
    first = json.loads(ticks[len(before)])
    assert first["start"]["run"] == unseen.order.run
    last = json.loads(before[-1])
    assert first["late_s"] == pytest.approx(first["mono"] - last["mono"] - 0.2, abs=0.01)
    look_late(unseen.dir, os.environ)
    assert load_all_lines(unseen.dir.watch) == ticks


REAPER = """
import os, sys
from pathlib import Path
from gonogo.rundir import RunDir
from gonogo.supervise.late_look import look_late
look_late(RunDir(Path(sys.argv[1])), os.environ)
"""


@pytest.mark.long
def test_whoever_is_killed_while_it_looks_leaves_no_watcher_behind(unseen: SupervisedRun) -> None:
    before = unseen.dir.watch.read_bytes()
    with subprocess.Popen([sys.executable, "-c", REAPER, unseen.path], cwd=ROOT) as reaper:
        below = Path(f"/proc/{reaper.pid}/task/{reaper.pid}/children")
        (child,) = wait_until(lambda: below.read_text().split(), "the watcher")
        reaper.kill()  # the watcher has not come as far as to ask for its parent's end
    wait_until(lambda: not Path("/proc", child).exists(), "the watcher's end")
    assert unseen.dir.watch.read_bytes() == before
    assert not (unseen.path / WATCHED_NAME).exists()
    look_late(unseen.dir, os.environ)
    unseen.assert_replays()


def loaded(path: Path) -> Any:
    return json.loads(path.read_bytes())


def edit(run_dir: RunDir) -> None:
    """Change what the last line says, and nothing of its length."""
    text = run_dir.heartbeat(0).read_bytes()
    at = text.rindex(b'"ts": ') + 8
    digit = b"1" if text[at : at + 1] != b"1" else b"2"
    run_dir.heartbeat(0).write_bytes(text[:at] + digit + text[at + 1 :])


def add(run_dir: RunDir) -> None:
    """Add a line."""
    with run_dir.heartbeat(1).open("ab") as stream:
        stream.write(load_all_lines(run_dir.heartbeat(1))[-1] + b"\n")


def add_rank(run_dir: RunDir) -> None:
    """Add a rank that was never there."""
    run_dir.heartbeat(7).write_bytes(b"{}\n")


def lose(run_dir: RunDir) -> None:
    """Have somebody else write the end."""
    save_json(run_dir.exit, {**loaded(run_dir.exit), "reason": "keeper_lost"})


def uncount(run_dir: RunDir) -> None:
    """Have an end as releases before this wrote it."""
    end = loaded(run_dir.exit)
    for row in end["heartbeats"].values():
        del row["sha256"]
    save_json(run_dir.exit, end)


def boot(run_dir: RunDir) -> None:
    """Have the host started again meanwhile."""
    keeper = run_dir.path / "keeper.json"
    save_json(keeper, {**loaded(keeper), "boot_id": "another"})


def never_watched(run_dir: RunDir) -> None:
    """Have nobody watched before."""
    end = loaded(run_dir.exit)
    save_json(run_dir.exit, {**end, "watch": {**end["watch"], "bytes": 0}})


WAYS = (edit, add, add_rank, lose, uncount, boot, never_watched)


@pytest.mark.long
def test_what_may_have_been_written_since_is_not_looked_at(
    unseen: SupervisedRun, tmp_path: Path
) -> None:
    for way in WAYS:
        copy = RunDir(tmp_path / way.__name__)
        shutil.copytree(unseen.path, copy.path)
        way(copy)
        before = copy.watch.read_bytes()
        look_late(copy, os.environ)
        assert copy.watch.read_bytes() == before, way.__name__
        assert not (copy.path / WATCHED_NAME).exists()


@pytest.mark.long
def test_a_look_that_fails_is_made_once(
    unseen: SupervisedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gonogo.supervise.late_look.WATCHER_MODULE", "gonogo.nothing")
    before = unseen.dir.watch.read_bytes()
    look_late(unseen.dir, os.environ)
    monkeypatch.undo()
    look_late(unseen.dir, os.environ)
    assert unseen.dir.watch.read_bytes() == before
