import hashlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from gonogo.supervise.preflight.code import load_git_sha
from nsa.identity import driver_version, git_sha


def _git(folder: Path, *arguments: str) -> bytes:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, check=True).stdout


def test_a_dirty_checkout_has_another_identity_than_its_commit(tmp_path: Path) -> None:
    assert git_sha(tmp_path) is None
    _git(tmp_path, "init", "-q")
    assert git_sha(tmp_path) is None
    (tmp_path / "a").write_text("1\n")
    _git(tmp_path, "add", "a")
    _git(tmp_path, "commit", "-qm", "one")
    clean = git_sha(tmp_path)
    assert clean == _git(tmp_path, "rev-parse", "HEAD").decode().strip()
    (tmp_path / "a").write_text("2\n")
    diff = _git(tmp_path, "diff", "HEAD")
    assert git_sha(tmp_path) == f"{clean}+{hashlib.sha256(diff).hexdigest()[:12]}"
    (tmp_path / "a").write_text("1\n")
    assert git_sha(tmp_path) == clean


def make_checkout(folder: Path) -> None:
    _git(folder, "init", "-q")
    (folder / "nsa").mkdir()
    (folder / "nsa" / "a.py").write_text("1\n")
    (folder / ".gitignore").write_text("*.log\nhidden/\n")
    _git(folder, "add", ".")
    _git(folder, "commit", "-qm", "one")


def clean(folder: Path) -> None:
    """Nothing is changed."""


def edit(folder: Path) -> None:
    (folder / "nsa" / "a.py").write_text("2\n")


def stage(folder: Path) -> None:
    edit(folder)
    _git(folder, "add", ".")


def add_source(folder: Path) -> None:
    (folder / "new.py").write_text("3\n")


def add_strange_name(folder: Path) -> None:
    (folder / "nsa" / "ü \n'\".yaml").write_text("x: 1\n")


def edit_and_add(folder: Path) -> None:
    edit(folder)
    add_source(folder)


def add_no_source(folder: Path) -> None:
    (folder / "notes.txt").write_text("x")
    (folder / "a.log").write_text("x")
    (folder / "hidden").mkdir()
    (folder / "hidden" / "b.py").write_text("x")


def lose_git(folder: Path) -> None:
    shutil.rmtree(folder / ".git")


def lose_everything(folder: Path) -> None:
    lose_git(folder)
    shutil.rmtree(folder / "nsa")


CHANGES = (
    clean, edit, stage, add_source, add_strange_name, edit_and_add, add_no_source, lose_git,
    lose_everything,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_trainer_and_worker_say_the_same_of_the_code(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    make_checkout(tmp_path)
    change(tmp_path)
    assert git_sha(tmp_path) == load_git_sha(tmp_path)
    if change is not lose_everything:
        assert git_sha(tmp_path) is not None


def test_every_change_of_the_code_changes_what_is_said_of_it(tmp_path: Path) -> None:
    said = {}
    for change in CHANGES:
        folder = tmp_path / change.__name__
        folder.mkdir()
        make_checkout(folder)
        change(folder)
        found = git_sha(folder)
        said[change.__name__] = (found or "").partition("+")[2] or found
    assert len(said["clean"] or "") == 40
    dirty = {name: mark for name, mark in said.items() if name not in ("clean", "add_no_source")}
    assert len(set(dirty.values())) == len(dirty) - 1
    assert {name for name, mark in dirty.items() if mark and len(mark) == 40} == set()
    assert said["edit"] == said["stage"]


@pytest.mark.parametrize(
    ("say", "module"),
    [(git_sha, "nsa.identity"), (load_git_sha, "gonogo.supervise.preflight.code")],
)
@pytest.mark.parametrize("call", [0, 2])
def test_code_is_unknown_and_no_other_where_git_does_not_answer(
    say: Callable[[Path], str | None],
    module: str,
    call: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_checkout(tmp_path)
    assert len(say(tmp_path) or "") == 40
    run, calls = subprocess.run, iter(range(99))

    def hang(command: Sequence[str], **options: Any) -> "subprocess.CompletedProcess[bytes]":
        if next(calls) == call:
            raise subprocess.TimeoutExpired(command, 20.0)
        return run(command, **options)

    monkeypatch.setattr(f"{module}.subprocess.run", hang)
    assert say(tmp_path) is None


def test_sources_without_git_are_known_by_name_and_content(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name / "nsa" / "deep").mkdir(parents=True)
        (tmp_path / name / "nsa" / "deep" / "a.py").write_text("1\n")
    (tmp_path / "two" / "nsa" / "deep" / "a.pyc").write_text("compiled")
    (tmp_path / "three" / "nsa" / "deep" / "a.py").rename(tmp_path / "three" / "nsa" / "a.py")
    one, two, three = (git_sha(tmp_path / name) for name in ("one", "two", "three"))
    assert one is not None
    assert one.startswith("tree-")
    assert (one == two, one == three) == (True, False)


@pytest.mark.parametrize("say", [git_sha, load_git_sha])
def test_sources_that_a_checkout_ignores_are_known_by_what_they_hold(
    tmp_path: Path, say: Callable[[Path], str | None]
) -> None:
    """As of an environment in the folder of a project: its commit says nothing of our code."""
    make_checkout(tmp_path)
    root = tmp_path / "hidden" / "site-packages"
    (root / "nsa").mkdir(parents=True)
    (root / "nsa" / "a.py").write_text("1\n")
    installed = say(root)
    assert installed is not None
    assert installed.startswith("tree-")
    edit(tmp_path)
    assert say(root) == installed
    edit(root)
    assert say(root) not in (None, installed)


def test_a_driver_is_named_by_its_version_where_there_is_one(tmp_path: Path) -> None:
    gpu, said_by = torch.device("cuda", 0), tmp_path / "version"
    assert driver_version(gpu, said_by) is None
    said_by.write_text("570.86.15\n")
    assert driver_version(gpu, said_by) == "570.86.15"
    assert driver_version(torch.device("cpu"), said_by) is None
