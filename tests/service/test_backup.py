"""Is a home whole again after a restore, and does it continue where the backup was made?"""

from __future__ import annotations

import io
import shutil
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.errors import Conflict, Corrupt, NotFound, Rejected
from gonogo.ledger.sign import Trust
from gonogo.ledger.verify import verify_folder
from gonogo.signing import load_public_key
from service.backup import LIST, make_backup, restore_backup
from service.context import open_context
from service.db.store import migrate
from service.http.auth import load_local_keys
from service.settings import Settings
from tests.service.conftest import Plane, serving


def home_at(path: Path) -> Settings:
    return Settings(home=path, database_url=f"sqlite:///{path}/gonogo.db")


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@contextmanager
def restored(path: Path, file: Path) -> Iterator[Plane]:
    """A service that works with what a backup holds."""
    there = home_at(path)
    restore_backup(there, file)
    migrate(there.database_url)
    context = open_context(there)
    load_local_keys(context)
    with serving(context) as http:
        yield Plane(context=context, http=http, home=there.home)


def passed(view: dict[str, Any]) -> int:
    return sum(phase["verdict"] == "GO" for phase in view["phases"])


def test_a_restored_home_goes_on(plane: Plane, tmp_path: Path) -> None:
    experiment = plane.submit()
    worker = plane.worker()
    worker.run_through(plane.next_order(worker))
    plane.wait(lambda: passed(plane.experiment(experiment)) == 1, "a first GO")
    living = plane.next_order(worker)
    worker.start(living)
    folder = plane.home / "runs" / living.run
    folder.parent.mkdir(exist_ok=True)
    (folder.parent / ".runs_folder.json").write_text("{}")  # is a file of it, and no run
    folder.mkdir(parents=True)
    (folder / "order.json").write_text("{}")
    file = tmp_path / "b.tar"
    made = make_backup(plane.context.settings, file, time.time(), runs=True)
    assert (made["decisions"], made["runs"], made["database"]) == (1, 1, "sqlite")
    assert file.stat().st_mode & 0o777 == 0o600
    # What happens afterwards is lost with it, whole and without a trace.
    worker.run_through(living)
    plane.wait(lambda: passed(plane.experiment(experiment)) == 2, "a second GO")

    there = home_at(tmp_path / "there")
    restored = restore_backup(there, file)
    assert restored["decisions"] == 1
    for name in ("key", "worker_key", "signing.key"):
        assert (there.home / name).read_bytes() == (plane.home / name).read_bytes()
        assert (there.home / name).stat().st_mode & 0o777 == 0o600
    assert (there.home / "runs" / living.run / "order.json").read_text() == "{}"
    migrate(there.database_url)
    context = open_context(there)
    load_local_keys(context)
    with serving(context) as http:
        again = Plane(context=context, http=http, home=there.home)
        assert passed(again.experiment(experiment)) == 1
        back = replace(worker, http=http)
        back.run_through(living)
        again.wait(lambda: passed(again.experiment(experiment)) == 2, "a second GO")
        later = again.next_order(back)
        assert later.token > living.token
        back.run_through(later)
        again.wait(lambda: passed(again.experiment(experiment)) == 3, "a third GO")
        again.wait(lambda: len(list(there.decisions.glob("dec_*.json"))) == 3, "its file")
    trust = Trust([load_public_key(there.home / "signing.pub")])
    assert verify_folder(there.decisions, trust).problems == []


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A home where nothing was done yet."""
    settings = home_at(tmp_path_factory.mktemp("first"))
    migrate(settings.database_url)
    context = open_context(settings)
    load_local_keys(context)
    context.store.close()
    return settings


@pytest.fixture
def kept(first: Settings, tmp_path: Path) -> Path:
    """Its backup."""
    make_backup(first, tmp_path / "b.tar", 0.0, runs=False)
    return tmp_path / "b.tar"


def test_nothing_is_written_over(first: Settings, kept: Path) -> None:
    with pytest.raises(Conflict, match="is there already"):
        make_backup(first, kept, 0.0, runs=False)
    with pytest.raises(Conflict, match=r"has gonogo\.db, key, signing"):
        restore_backup(first, kept)


def test_runs_that_go_on_in_a_home_stay_in_it_where_the_backup_brings_none(
    first: Settings, tmp_path: Path
) -> None:
    """To put them aside would take a living run's directory from under it."""
    home, there = home_at(tmp_path / "home"), home_at(tmp_path / "there")
    shutil.copytree(first.home, home.home)
    folder = home.home / "runs" / "run_1"
    folder.mkdir(parents=True)
    (folder / "order.json").write_text("{}")
    for runs in (False, True):
        make_backup(home, tmp_path / f"{runs}.tar", 0.0, runs=runs)
    shutil.copytree(home.home / "runs", there.home / "runs")
    (there.home / "runs" / "run_1" / "order.json").write_text("its own")
    with pytest.raises(Conflict, match=r"has runs; restore into"):
        restore_backup(there, tmp_path / "True.tar")
    restore_backup(there, tmp_path / "False.tar")
    assert (there.home / "runs" / "run_1" / "order.json").read_text() == "its own"
    assert (there.home / "gonogo.db").exists()


def test_what_is_not_there_is_said(kept: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has no database yet"):
        make_backup(home_at(tmp_path / "none"), tmp_path / "c.tar", 0.0, runs=False)
    with pytest.raises(NotFound, match="no such backup"):
        restore_backup(home_at(tmp_path / "none"), tmp_path / "c.tar")
    elsewhere = Settings(home=tmp_path / "none", database_url="postgresql+psycopg://db/gonogo")
    with pytest.raises(Rejected, match="unset GONOGO_DATABASE_URL"):
        restore_backup(elsewhere, kept)
    assert [path.name for path in (tmp_path / "none").iterdir()] == []


def rewritten(kept: Path, change: str) -> bytes:
    """The bytes of a backup that something has happened to."""
    if change == "text":
        return b"a letter\n" * 200
    if change == "cut":
        return kept.read_bytes()[: kept.stat().st_size // 2]
    target = io.BytesIO()
    with tarfile.open(kept) as source, tarfile.open(fileobj=target, mode="w") as archive:
        for member in source:
            stream = source.extractfile(member)
            assert stream is not None
            content = stream.read()
            if change == "missing" and member.name == "signing.key":
                continue
            if change == "newer" and member.name == LIST:
                content = content.replace(b'"revision": "', b'"revision": "f')
            if change == "unlisted" and member.name == LIST:
                continue
            if change == "outside" and member.name == "key":
                member.name = "decisions/../../key"
            if change == "link" and member.name == "key":
                member.type, member.linkname, content = tarfile.SYMTYPE, "/etc", b""
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("text", "not a whole backup"), ("cut", "not a whole backup"),
        ("missing", r"not as it was made: signing\.key"), ("unlisted", "backup.json is missing"),
        ("outside", "not a whole backup"), ("link", "not a whole backup"),
        ("newer", "newer than this one"),
    ],
)  # fmt: skip
def test_what_is_not_whole_brings_nothing_back(
    kept: Path, tmp_path: Path, change: str, says: str
) -> None:
    broken = tmp_path / "broken.tar"
    broken.write_bytes(rewritten(kept, change))
    there = home_at(tmp_path / "there")
    with pytest.raises((Corrupt, Rejected), match=says):
        restore_backup(there, broken)
    assert list(there.home.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "b.tar", "broken.tar", "there",
    ]  # fmt: skip
