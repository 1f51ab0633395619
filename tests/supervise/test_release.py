"""Which release a run is supervised by, and what the next one makes of its directory."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gonogo import __version__
from gonogo.contract.finding import Severity
from gonogo.contract.order import Order
from gonogo.contract.tick import Tick
from gonogo.rundir import RunDir, load_all_lines, load_record
from gonogo.supervise.release import load_release
from gonogo.supervise.watcher.entry import main
from gonogo.supervise.watcher.shipping import Offline
from gonogo.supervise.watcher.watcher import Watcher
from gonogo.watch import refold, tick_digest

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
RELEASES = sorted((DATA / "releases").glob("*/*/runs/run_*"))


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
    return subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_checkout_tells_its_commit_and_an_installation_none(tmp_path: Path) -> None:
    assert load_release(tmp_path) == {"version": __version__, "git_sha": None}
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    git(checkout, "init", "-q", "-b", "main")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "first")
    sha = git(checkout, "rev-parse", "HEAD")
    assert load_release(checkout)["git_sha"] == sha
    git(checkout, "worktree", "add", "-q", "-b", "other", str(tmp_path / "worktree"))
    assert load_release(tmp_path / "worktree")["git_sha"] == sha
    git(checkout, "pack-refs", "--all")
    assert load_release(checkout)["git_sha"] == sha
    git(checkout, "checkout", "-q", "--detach")
    assert load_release(checkout)["git_sha"] == sha


def test_what_a_run_starts_stays_in_the_folder_that_the_link_named(tmp_path: Path) -> None:
    first, second = tmp_path / "releases" / "a", tmp_path / "releases" / "b"
    for folder in (first, second):
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").symlink_to(sys.executable)
    link = tmp_path / "current"
    link.symlink_to(first)
    code = "from gonogo.supervise.release import own_python; print(own_python())"
    found = subprocess.run(
        [str(link / "bin" / "python"), "-c", code],
        env={"PYTHONPATH": str(ROOT)}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert found.stdout.strip() == str(first / "bin" / "python")


@pytest.fixture(params=RELEASES, ids=lambda path: f"{path.parents[2].name}-{path.name[-6:]}")
def left_over(request: pytest.FixtureRequest, tmp_path: Path) -> RunDir:
    """The directory of a run that an earlier release supervised."""
    path = tmp_path / request.param.name
    shutil.copytree(request.param, path)
    return RunDir(path)


def living(run_dir: RunDir) -> None:
    """Make it the directory of a run that goes on: an upgrade came under it."""
    for path in (run_dir.exit, *run_dir.path.glob("exit_rank*.json"), run_dir.findings):
        path.unlink(missing_ok=True)
    lines = load_all_lines(run_dir.watch)
    run_dir.watch.write_bytes(b"".join(line + b"\n" for line in lines[: len(lines) // 2]))


def test_a_watcher_of_this_release_takes_an_earlier_one_s_run_up(left_over: RunDir) -> None:
    """It folds what is recorded, goes on from there, and ends no run that was healthy."""
    living(left_over)
    order = load_record(left_over.order, Order)
    assert order is not None
    before = len(load_all_lines(left_over.watch))
    last = json.loads(load_all_lines(left_over.watch)[-1])
    watcher = Watcher(left_over, order, Offline(), last["mono"] + 1.0)
    watcher.tick(last["mono"] + 1.2)
    assert watcher.failures == 0
    ticks = [Tick.model_validate_json(line) for line in load_all_lines(left_over.watch)]
    assert len(ticks) == before + 1
    assert ticks[-1].prev == tick_digest(ticks[-2])
    assert ticks[-1].start is not None
    found = refold(left_over.path)
    if order.fault is None:
        assert not [row for row in found.findings if row.severity is Severity.HALT]


def test_an_earlier_release_s_end_is_the_end(left_over: RunDir) -> None:
    assert main([str(left_over.path)]) == 0
