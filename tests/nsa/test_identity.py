import hashlib
import shutil
import subprocess

import pytest

from gonogo.supervise.preflight.code import load_git_sha
from nsa.identity import git_sha


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, check=True).stdout


def make_checkout(folder):
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    assert git_sha(folder) is None
    (folder / "nsa").mkdir()
    (folder / "nsa" / "a.py").write_text("1\n")
    (folder / ".gitignore").write_text("*.log\nhidden/\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    return folder


def add_no_source(folder):
    (folder / "notes.txt").write_text("x")
    (folder / "a.log").write_text("x")
    (folder / "hidden").mkdir()
    (folder / "hidden" / "b.py").write_text("x")


CHANGES = {
    "edit": lambda folder: (folder / "nsa" / "a.py").write_text("2\n"),
    "source": lambda folder: (folder / "new.py").write_text("3\n"),
    "strange": lambda folder: (folder / "nsa" / "ü \n'\".yaml").write_text("x: 1\n"),
    "no source": add_no_source,
    "stage": lambda folder: git(folder, "add", "."),
    "no git": lambda folder: shutil.rmtree(folder / ".git"),
    "nothing": lambda folder: shutil.rmtree(folder / "nsa"),
}


@pytest.fixture
def after(tmp_path):
    """What trainer and worker say of the code after some changes; they say the same."""

    def say(*changes):
        folder = make_checkout(tmp_path / "-".join(("code", *changes)))
        for change in changes:
            CHANGES[change](folder)
        assert git_sha(folder) == load_git_sha(folder)
        return git_sha(folder), folder

    return say


def test_a_changed_checkout_has_another_identity_than_its_commit(after):
    clean, folder = after()
    assert clean == git(folder, "rev-parse", "HEAD").decode().strip()
    edited, folder = after("edit")
    diff = git(folder, "diff", "HEAD")
    assert edited.partition("+")[2] == hashlib.sha256(diff).hexdigest()[:12]
    (folder / "nsa" / "a.py").write_text("1\n")
    assert git_sha(folder) == load_git_sha(folder) == git(folder, "rev-parse", "HEAD").decode()[:40]


def test_every_change_of_the_code_changes_what_is_said_of_it(after):
    different = [
        ("edit",), ("source",), ("strange",), ("edit", "source"), ("no git",), ("no git", "nothing")
    ]  # fmt: skip
    said = {changes: after(*changes)[0] for changes in different}
    assert said.pop(("no git", "nothing")) is None
    assert said.pop(("no git",)).startswith("tree-")
    dirty = {told.partition("+")[2] for told in said.values()}
    assert (len(dirty), {len(mark) for mark in dirty}) == (4, {12})
    assert after("edit", "stage")[0].partition("+")[2] == said["edit",].partition("+")[2]
    assert len(after("no source")[0]) == 40


@pytest.mark.parametrize(
    ("say", "module"),
    [(git_sha, "nsa.identity"), (load_git_sha, "gonogo.supervise.preflight.code")],
)
@pytest.mark.parametrize("call", [0, 2])
def test_code_is_unknown_where_git_does_not_answer(say, module, call, after, monkeypatch):
    _, folder = after()
    run, calls = subprocess.run, iter(range(99))

    def hang(command, **options):
        if next(calls) == call:
            raise subprocess.TimeoutExpired(command, 20.0)
        return run(command, **options)

    monkeypatch.setattr(f"{module}.subprocess.run", hang)
    assert say(folder) is None


def test_sources_without_git_are_known_by_name_and_content(tmp_path):
    for name in ("one", "two", "three"):
        (tmp_path / name / "nsa" / "deep").mkdir(parents=True)
        (tmp_path / name / "nsa" / "deep" / "a.py").write_text("1\n")
    (tmp_path / "two" / "nsa" / "deep" / "a.pyc").write_text("compiled")
    (tmp_path / "three" / "nsa" / "deep" / "a.py").rename(tmp_path / "three" / "nsa" / "a.py")
    one, two, three = (git_sha(tmp_path / name) for name in ("one", "two", "three"))
    assert (one == two, one == three) == (True, False)


@pytest.mark.parametrize("say", [git_sha, load_git_sha])
def test_sources_that_a_checkout_ignores_are_known_by_what_they_hold(after, say):
    """As of an environment in the folder of a project: its commit says nothing of our code."""
    _, folder = after()
    root = folder / "hidden" / "site-packages"
    (root / "nsa").mkdir(parents=True)
    (root / "nsa" / "a.py").write_text("1\n")
    installed = say(root)
    assert installed.startswith("tree-")
    CHANGES["edit"](folder)
    assert say(root) == installed
    CHANGES["edit"](root)
    assert say(root) not in (None, installed)
