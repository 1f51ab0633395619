"""Which release a run is supervised by, and what the next one makes of its directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gonogo.git_commit import load_commit

ROOT = Path(__file__).parents[2]


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
    return subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_checkout_tells_its_commit_and_an_installation_none(tmp_path: Path) -> None:
    assert load_commit(tmp_path) is None
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    git(checkout, "init", "-q", "-b", "main")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "first")
    sha = git(checkout, "rev-parse", "HEAD")
    assert load_commit(checkout) == sha
    git(checkout, "worktree", "add", "-q", "-b", "other", str(tmp_path / "worktree"))
    assert load_commit(tmp_path / "worktree") == sha
    git(checkout, "pack-refs", "--all")
    assert load_commit(checkout) == sha
    git(checkout, "checkout", "-q", "--detach")
    assert load_commit(checkout) == sha


def test_what_a_run_starts_stays_in_the_folder_that_the_link_named(tmp_path: Path) -> None:
    first, second = tmp_path / "releases" / "a", tmp_path / "releases" / "b"
    for folder in (first, second):
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").symlink_to(sys.executable)
    link = tmp_path / "current"
    link.symlink_to(first)
    code = "from gonogo.supervise.processes import own_python; print(own_python())"
    found = subprocess.run(
        [str(link / "bin" / "python"), "-c", code],
        env={"PYTHONPATH": str(ROOT)}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert found.stdout.strip() == str(first / "bin" / "python")
