"""Is a home whole again after a restore, and does it go on where the backup was made?"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.errors import Conflict, Corrupt, NotFound, Rejected
from gonogo.contract.ids import Kind, new_id
from gonogo.ledger.sign import Trust
from gonogo.ledger.verify import verify_folder
from gonogo.rundir import save_json
from gonogo.signing import load_public_key
from service import backup
from service.backup import LIST, make_backup
from service.context import open_context
from service.db.migrate import migrate
from service.http.auth import load_local_keys
from service.restore import restore_backup
from service.settings import Settings
from tests.servers import PostgresServer
from tests.service.conftest import Plane, serving
from tests.service.fake_worker import FakeWorker, beats


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


def test_what_was_claimed_after_the_backup_goes_on_where_it_is(
    plane: Plane, tmp_path: Path
) -> None:
    """It waited in the queue at that moment, and its worker has room for more."""
    experiment, file = plane.submit(), tmp_path / "b.tar"
    make_backup(plane.context.settings, file, time.time(), runs=False)
    worker = plane.worker(devices=("cpu:0", "cpu:1"))
    living = plane.next_order(worker)
    worker.start(living)

    with restored(tmp_path / "there", file) as again:
        back = replace(worker, http=again.http, active=[living.run])
        assert back.claim() is None, "it was given out beside itself, and its directory put aside"
        assert again.get(f"/runs/{living.run}")["state"] == "queued"
        assert back.telemetry(living).status_code == 200
        assert again.get(f"/runs/{living.run}")["state"] == "claimed"
        back.run_through(living)
        again.wait(lambda: passed(again.experiment(experiment)) == 1, "a GO")
        assert again.next_order(back).token > living.token


def asked(worker: FakeWorker, *active: str) -> tuple[list[str], Any]:
    """What a claim is answered: the runs that are asked for, and an order."""
    body = {
        "worker": worker.name, "host": worker.host, "boot_id": worker.boot_id, "pid": 1,
        "version": "0", "devices": list(worker.devices), "free": list(worker.devices),
        "active": list(active), "tells_again": True,
    }  # fmt: skip
    answer = worker.post("/claims", body).json()
    return answer.get("untold") or [], answer["order"]


def test_what_waited_in_the_queue_and_ended_after_the_backup_has_ended(
    plane: Plane, tmp_path: Path
) -> None:
    """It was given out anew: a run that had been NO_GO had another chance, and nobody was told."""
    experiment, file = plane.submit(), tmp_path / "b.tar"
    make_backup(plane.context.settings, file, time.time(), runs=False)
    worker = plane.worker()
    ended = plane.next_order(worker)
    lines = {rank: beats(ended, rank, upto=0, done=False) for rank in range(ended.world_size)}

    def tell(worker: FakeWorker) -> None:
        worker.ship(ended, lines)
        assert worker.end(ended, lines, code=1, reason="nonzero_exit").status_code == 200

    worker.start(ended)
    tell(worker)
    plane.wait_state(experiment, "finished")
    with restored(tmp_path / "there", file) as again:
        back, other = replace(worker, http=again.http), replace(again.worker("w2"), host="host-2")
        assert asked(other) == ([ended.run], None)
        assert asked(back) == ([ended.run], None)
        assert asked(back, ended.run) == ([], None)
        tell(back)
        view = again.wait_state(experiment, "finished")
        assert (view["verdict"], len(view["phases"][0]["runs"])) == ("NO_GO", 1)
        later = again.submit()
        untold, order = asked(other)
        assert (untold, order["experiment"]) == ([], later), "it is of after the start"


def test_what_no_worker_has_begun_is_given_out_after_each_was_asked(
    plane: Plane, tmp_path: Path
) -> None:
    plane.submit()
    file = tmp_path / "b.tar"
    make_backup(plane.context.settings, file, time.time(), runs=False)
    for name in ("first", "second"):  # the rows of the second say that the worker was asked
        with restored(tmp_path / name, file) as again:
            worker = again.worker(boot_id=name)  # and its host has booted anew
            (run,), order = asked(worker)
            assert order is None
            file = tmp_path / f"{name}.tar"
            make_backup(again.context.settings, file, time.time(), runs=False)
            untold, order = asked(worker)
            assert (untold, order["run"]) == ([], run)


@contextmanager
def busy(*works: Callable[[], object]) -> Iterator[None]:
    """Do things again and again, each in a thread of its own; what one raises fails the test."""
    over = threading.Event()

    def repeat(work: Callable[[], object]) -> None:
        while not over.is_set():
            work()

    with ThreadPoolExecutor(len(works)) as pool:
        doing = [pool.submit(repeat, work) for work in works]
        try:
            yield
        finally:
            over.set()
        for done in doing:
            done.result(120)


def test_a_backup_made_while_everything_is_written_holds_one_moment(
    plane: Plane, tmp_path: Path
) -> None:
    """Submissions, telemetry, ends, judgements, and run directories that grow, shrink and go."""
    acknowledged: list[str] = []
    worker = plane.worker(devices=("cpu:0",))
    run = plane.home / "runs" / new_id(Kind.RUN)
    run.mkdir(parents=True)
    log, record, gone = (run / name for name in ("rank0.log", "order.json", "gone"))
    for path in (log, record, gone):
        path.write_bytes(b"{}")

    def work() -> None:
        order = worker.claim()
        if order is not None:
            worker.run_through(order)

    def write() -> None:
        with log.open("r+b") as stream:  # as a log whose middle is let go
            stream.truncate(0)
            stream.write(b"x" * 2**21)
        save_json(record, {"n": time.monotonic()})
        gone.unlink()
        gone.touch()

    files = [tmp_path / f"{n}.tar" for n in range(2)]
    settings, before = plane.context.settings, []
    with busy(lambda: acknowledged.append(plane.submit()), work, write):
        for n, file in enumerate(files):
            plane.wait(lambda n=n: len(list(settings.decisions.glob("dec_*"))) > 2 * n, "work", 60)
            before.append(len(acknowledged))
            make_backup(settings, file, time.time(), runs=True)
    for n, file in enumerate(files):
        there = home_at(tmp_path / f"there{n}")
        restore_backup(there, file)
        restored = there.home / "runs" / run.name
        json.loads((restored / record.name).read_bytes())
        assert set((restored / log.name).read_bytes()) <= set(b"x{}")
        with closing(sqlite3.connect(there.home / "gonogo.db")) as database:
            database.row_factory = lambda _, row: row[0] if len(row) == 1 else row
            ask = database.execute
            assert ask("PRAGMA integrity_check").fetchall() == ["ok"]
            assert ask("PRAGMA foreign_key_check").fetchall() == []
            experiments = set(ask("SELECT id FROM experiments"))
            assert set(acknowledged[: before[n]]) <= experiments, "nothing acknowledged is missing"
            counts = "SELECT count(*) = max(seq) AND min(seq) = 1 FROM events GROUP BY experiment"
            assert set(ask(counts)) == {1}, "an experiment's events have no gap"
            decided = set(ask("SELECT id FROM decisions"))
        written = {path.stem for path in there.decisions.glob("dec_*.json")}
        assert written <= decided, "no decision of after the moment"
        trust = Trust([load_public_key(there.home / "signing.pub")])
        assert decided
        migrate(there.database_url)
        context = open_context(there)
        load_local_keys(context)
        with serving(context) as http:
            again = Plane(context=context, http=http, home=there.home)
            again.wait(
                lambda have=there, of=decided: (
                    of <= {path.stem for path in have.decisions.glob("dec_*.json")}
                ),
                "every decision's file",
                60,
            )
            assert len(again.get("/experiments")["items"]) > 0
        assert verify_folder(there.decisions, trust).problems == []


def test_a_log_whose_middle_is_let_go_while_it_is_read_is_begun_anew(
    first: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_at(tmp_path / "home")
    shutil.copytree(first.home, home.home)
    log, after = (home.home / "runs" / "run_1" / name for name in ("a.log", "b.json"))
    log.parent.mkdir(parents=True)
    log.write_bytes(b"x" * 2**20)
    after.write_bytes(b"{}")
    real = backup._Listed.read

    def read(self: backup._Listed, size: int) -> bytes:
        piece = real(self, size)
        if piece.startswith(b"x") and log.stat().st_size == 2**20:
            log.write_bytes(b"y" * 100)
        return piece

    monkeypatch.setattr(backup._Listed, "read", read)
    make_backup(home, tmp_path / "b.tar", 0.0, runs=True)
    there = home_at(tmp_path / "there")
    restore_backup(there, tmp_path / "b.tar")
    for path in (log, after):
        restored = there.home / path.relative_to(home.home)
        assert restored.read_bytes() == path.read_bytes()


def test_a_file_that_grows_shorter_all_the_time_is_named(
    first: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup._Listed, "read", lambda self, size: shrink())

    def shrink() -> bytes:
        raise backup._ShrunkError

    with pytest.raises(Rejected, match="grew shorter 5 times"):
        make_backup(first, tmp_path / "b.tar", 0.0, runs=False)
    assert list(tmp_path.iterdir()) == []


def test_a_postgresql_database_comes_back_with_its_home(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    url, there_url = (postgres_server.new_database() for _ in range(2))
    home = Settings(home=tmp_path / "here", database_url=url)
    home.home.mkdir()
    migrate(url)
    context = open_context(home)
    load_local_keys(context)
    file, dump = tmp_path / "b.tar", tmp_path / "gonogo.dump"
    with serving(context) as http:
        here = Plane(context=context, http=http, home=home.home)
        experiment, worker = here.submit(), here.worker()
        worker.run_through(here.next_order(worker))
        here.wait(lambda: passed(here.experiment(experiment)) == 1, "a first GO")
        made = make_backup(home, file, time.time(), runs=False)
        assert (made["decisions"], made["database"]) == (1, "postgresql")
        # Between the two a decision more is made: the database has it, and no file.
        worker.run_through(here.next_order(worker))
        here.wait(lambda: passed(here.experiment(experiment)) == 2, "a second GO")
        dumped = postgres_server.client("pg_dump", "-Fc", "-f", str(dump), url)
        assert dumped.returncode == 0, dumped.stderr
        living = here.next_order(worker)
    restored = postgres_server.client("pg_restore", str(dump), "-d", there_url)
    assert restored.returncode == 0, restored.stderr

    there = Settings(home=tmp_path / "there", database_url=there_url)
    with pytest.raises(Rejected, match="set GONOGO_DATABASE_URL"):
        restore_backup(home_at(tmp_path / "there"), file)
    restore_backup(there, file)
    migrate(there_url)
    context = open_context(there)
    load_local_keys(context)
    with serving(context) as http:
        again = Plane(context=context, http=http, home=there.home)
        assert passed(again.experiment(experiment)) == 2
        back = replace(worker, http=http)
        later = again.next_order(back)
        assert (later.phase, later.token > living.token) == (living.phase, True)
        back.run_through(later)
        again.wait(lambda: passed(again.experiment(experiment)) == 3, "a third GO")
        again.wait(lambda: len(list(there.decisions.glob("dec_*.json"))) == 3, "their files")
    trust = Trust([load_public_key(there.home / "signing.pub")])
    assert verify_folder(there.decisions, trust).problems == []


def test_a_decision_of_after_the_databases_moment_is_left_out(plane: Plane, tmp_path: Path) -> None:
    experiment = plane.submit()
    late = {"experiment": experiment}
    plane.context.settings.decisions.mkdir(exist_ok=True)
    for name, content in (("dec_late", late), ("dec_elsewhere", {"experiment": "exp_other"})):
        (plane.context.settings.decisions / f"{name}.json").write_text(json.dumps(content))
    make_backup(plane.context.settings, tmp_path / "b.tar", 0.0, runs=False)
    with tarfile.open(tmp_path / "b.tar") as archive:
        names = archive.getnames()
    assert "decisions/dec_elsewhere.json" in names
    assert "decisions/dec_late.json" not in names
    assert names[-1] == LIST


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A home where nothing was done yet."""
    settings = home_at(tmp_path_factory.mktemp("first"))
    migrate(settings.database_url)
    context = open_context(settings)
    load_local_keys(context)
    context.store.close()
    return settings


def test_a_pipe_among_the_decisions_is_not_waited_for(first: Settings, tmp_path: Path) -> None:
    first.decisions.mkdir(exist_ok=True)
    pipe = first.decisions / "dec_pipe.json"
    os.mkfifo(pipe)
    try:
        made = make_backup(first, tmp_path / "b.tar", 0.0, runs=False)
    finally:
        pipe.unlink()
    assert made["decisions"] == 0


@pytest.fixture
def kept(first: Settings, tmp_path: Path) -> Path:
    """Its backup."""
    make_backup(first, tmp_path / "b.tar", 0.0, runs=False)
    return tmp_path / "b.tar"


def test_nothing_is_written_over(first: Settings, kept: Path) -> None:
    with pytest.raises(Conflict, match="is there already"):
        make_backup(first, kept, 0.0, runs=False)
    with pytest.raises(Conflict, match=r"has gonogo\.db, key, worker_key"):
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
    assert not (there.home / ".restore").exists()
    restore_backup(there, tmp_path / "False.tar")
    assert (there.home / "runs" / "run_1" / "order.json").read_text() == "its own"
    assert (there.home / "gonogo.db").exists()


def test_the_log_of_a_database_that_is_gone_is_not_played_into_a_restored_one(
    first: Settings, kept: Path, tmp_path: Path
) -> None:
    """A service that was killed leaves it; who clears the database away may not know of it."""
    there = home_at(tmp_path / "there")
    there.home.mkdir()
    shutil.copy(first.home / "gonogo.db", there.home)
    killed = "import os, signal, sys, sqlite3; d = sqlite3.connect(sys.argv[1])"
    killed += "; d.execute('DELETE FROM keys'); d.commit(); os.kill(os.getpid(), signal.SIGKILL)"
    subprocess.run([sys.executable, "-c", killed, str(there.home / "gonogo.db")], check=False)
    (there.home / "gonogo.db").unlink()
    with pytest.raises(Conflict, match=r"there has gonogo\.db-wal; restore"):
        restore_backup(there, kept)
    (there.home / "gonogo.db-wal").unlink()
    restore_backup(there, kept)
    with closing(sqlite3.connect(there.home / "gonogo.db")) as database:
        assert database.execute("SELECT count(*) FROM keys").fetchone()[0] > 0


def test_power_may_fail_after_either(
    first: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file's own sync does not cover its name: the folders are synced, too."""
    home = home_at(tmp_path / "home")
    shutil.copytree(first.home, home.home)
    (home.home / "runs" / "run_1").mkdir(parents=True)
    (home.home / "runs" / "run_1" / "order.json").write_text("{}")
    synced: set[int] = set()
    real = os.fsync

    def sync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    file = tmp_path / "kept" / "b.tar"
    file.parent.mkdir()
    make_backup(home, file, 0.0, runs=True)
    there = home_at(tmp_path / "there")
    restore_backup(there, file)
    brought = [there.home, *there.home.rglob("*")]
    assert {path.stat().st_ino for path in [file, file.parent, *brought]} <= synced


@pytest.mark.parametrize("renamed", range(4))
def test_a_restore_that_was_killed_is_done_again(
    first: Settings, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renamed: int
) -> None:
    there, real = home_at(tmp_path / "there"), Path.rename
    moved = list[str]()

    def rename(path: Path, target: Path) -> Path:
        if path.parent.name == ".restore":
            if len(moved) == renamed:
                raise KeyboardInterrupt
            moved.append(path.name)
        return real(path, target)

    with monkeypatch.context() as patch:  # killed: nobody cleans up
        patch.setattr(Path, "rename", rename)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        patch.setattr("service.restore._take_out", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            restore_backup(there, kept)
    assert sorted(moved) == sorted(p.name for p in there.home.iterdir() if p.name != ".restore")
    done = restore_backup(there, kept)
    assert done["home"] == str(there.home)
    names = {path.name: path.read_bytes() for path in there.home.iterdir()}
    assert names.keys() >= {*moved, "gonogo.db"}
    assert ".restore" not in names


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "bad sector"), KeyboardInterrupt()])
def test_a_restore_that_fails_leaves_nothing_and_is_done_again(
    first: Settings, kept: Path, tmp_path: Path, failure: BaseException
) -> None:
    there, real = home_at(tmp_path / "there"), Path.rename

    def rename(path: Path, target: Path) -> Path:
        if path.name == "gonogo.db":
            raise failure
        return real(path, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises((Rejected, KeyboardInterrupt), match=r"nothing was restored.*bad|^$"):
            restore_backup(there, kept)
    assert list(there.home.iterdir()) == []
    restore_backup(there, kept)
    assert (there.home / "gonogo.db").exists()


@pytest.fixture(params=["mount", "link"])
def apart(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A home whose `runs/` is a file system of its own, or a link to a folder elsewhere."""
    home, runs = tmp_path / "apart", tmp_path / "apart" / "runs"
    home.mkdir()
    if request.param == "link":
        (tmp_path / "elsewhere").mkdir()
        runs.symlink_to(tmp_path / "elsewhere")
        yield home
        return
    runs.mkdir()
    command = ("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(runs))
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting takes root and a kernel that lets it")
    (runs / "lost+found").mkdir()
    yield home
    subprocess.run(("umount", "--lazy", str(runs)), check=True)


def test_runs_on_a_mount_or_behind_a_link_are_restored_into(
    first: Settings, apart: Path, tmp_path: Path
) -> None:
    """The mount was busy, the link no folder: nothing could be restored there."""
    home = home_at(tmp_path / "home")
    shutil.copytree(first.home, home.home)
    run_dir = home.home / "runs" / "run_1"
    run_dir.mkdir(parents=True)
    (run_dir / "order.json").write_text("{}")
    (home.home / "runs" / "note").write_text("kept")
    make_backup(home, tmp_path / "b.tar", 0.0, runs=True)
    there, real, before = home_at(apart), Path.rename, sorted((apart / "runs").iterdir())

    def rename(path: Path, target: Path) -> Path:
        if path.name == "gonogo.db":
            raise OSError(errno.EIO, "bad sector")
        return real(path, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(Rejected, match="bad sector"):
            restore_backup(there, tmp_path / "b.tar")
    assert [path.name for path in there.home.iterdir()] == ["runs"]
    assert sorted((apart / "runs").iterdir()) == before, "it leaves them as it found them"
    restore_backup(there, tmp_path / "b.tar")
    runs = there.home / "runs"
    assert runs.is_mount() or runs.is_symlink()
    assert (runs / "run_1" / "order.json").read_text() == "{}"
    assert (there.home / "gonogo.db").exists()
    with pytest.raises(Conflict, match="has "):
        restore_backup(there, tmp_path / "b.tar")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system that takes less than a database."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ("mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder))
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting takes root and a kernel that lets it")
    yield folder
    subprocess.run(("umount", "--lazy", str(folder)), check=True)


def test_a_full_disk_is_no_fault_of_the_backup(kept: Path, small: Path) -> None:
    there = home_at(small / "there")
    with pytest.raises(Rejected, match=r"nothing was restored: .*No space left on device"):
        restore_backup(there, kept)
    assert list(there.home.iterdir()) == []


def test_a_backup_to_a_full_disk_says_so_and_leaves_nothing(first: Settings, small: Path) -> None:
    with pytest.raises(Rejected, match=r"no backup: .*small"):
        make_backup(first, small / "b.tar", 0.0, runs=False)
    assert list(small.iterdir()) == []


def test_what_a_killed_backup_left_is_taken_and_a_living_one_is_left_alone(
    first: Settings, tmp_path: Path
) -> None:
    part = tmp_path / ".b.tar.part"
    part.write_bytes(b"x" * 2**20)
    for name in ("", "-wal"):
        (tmp_path / f".b.tar.db{name}").write_bytes(b"killed")
    with part.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(Conflict, match="being made by another"):
            make_backup(first, tmp_path / "b.tar", 0.0, runs=False)
        assert part.stat().st_size == 2**20
    made = make_backup(first, tmp_path / "b.tar", 0.0, runs=False)
    assert [path.name for path in tmp_path.iterdir()] == ["b.tar"]
    assert made["bytes"] == (tmp_path / "b.tar").stat().st_size
    restore_backup(home_at(tmp_path / "there"), tmp_path / "b.tar")


def test_of_two_restores_into_one_home_one_waits_for_the_other(
    first: Settings, kept: Path, tmp_path: Path
) -> None:
    home = home_at(tmp_path / "other")
    home.home.mkdir()
    held = os.open(home.home, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(Conflict, match="another restore"):
        restore_backup(home, kept)
    assert not list(home.home.iterdir())
    os.close(held)
    restore_backup(home, kept)


def test_a_link_to_nowhere_gives_way(kept: Path, tmp_path: Path) -> None:
    there = home_at(tmp_path / "there")
    there.home.mkdir(exist_ok=True)
    (there.home / "key").symlink_to(tmp_path / "gone")
    restore_backup(there, kept)
    assert (there.home / "key").is_file()
    assert not (there.home / "key").is_symlink()
    assert not (tmp_path / "gone").exists()


def test_what_lies_in_a_home_is_not_of_a_killed_restore(first: Settings, kept: Path) -> None:
    """One that put in the database was whole, whatever it left beside."""
    save_json(first.home / ".restore" / "moved.json", ["key", "worker_key", "gonogo.db"])
    with pytest.raises(Conflict, match=r"has gonogo\.db, key, worker_key"):
        restore_backup(first, kept)
    assert (first.home / "key").exists()


@pytest.mark.parametrize("place", ["none/b.tar", "file/b.tar"])
def test_a_place_that_cannot_be_written_to_is_named(
    first: Settings, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Rejected, match=r"b\.tar\.part: (No such file|Not a) ?(or )?directory"):
        make_backup(first, tmp_path / place, 0.0, runs=False)


def test_what_is_not_there_is_said(kept: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has no database yet"):
        make_backup(home_at(tmp_path / "none"), tmp_path / "c.tar", 0.0, runs=False)
    with pytest.raises(NotFound, match="no such backup"):
        restore_backup(home_at(tmp_path / "none"), tmp_path / "c.tar")
    elsewhere = Settings(home=tmp_path / "none", database_url="postgresql+psycopg://db/gonogo")
    with pytest.raises(Rejected, match="unset GONOGO_DATABASE_URL"):
        restore_backup(elsewhere, kept)
    assert [path.name for path in (tmp_path / "none").iterdir()] == []


NO_BACKUPS = {
    "text": "is no backup",
    "empty": "is no backup",
    "folder": "Is a directory",
    "pipe": "no regular file",
    "another archive": "'etc/hosts' has no place in a backup",
}


@pytest.mark.parametrize(("what", "says"), NO_BACKUPS.items(), ids=NO_BACKUPS)
def test_what_is_no_backup_is_a_wrong_argument_and_no_damage(
    tmp_path: Path, what: str, says: str
) -> None:
    file = tmp_path / "file"
    if what == "folder":
        file.mkdir()
    elif what == "pipe":
        os.mkfifo(file)
    elif what == "another archive":
        with tarfile.open(file, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("etc/hosts"))
    else:
        file.write_text("" if what == "empty" else "a letter\n" * 200)
    there = home_at(tmp_path / "there")
    with pytest.raises(Rejected, match=says):
        restore_backup(there, file)
    assert list(there.home.iterdir()) == []


def test_a_member_of_holes_does_not_fill_the_disk(tmp_path: Path) -> None:
    """Ten kilobytes that unpack to a gigabyte, or to as much as somebody likes."""
    content = f"1\n{2**30}\n0\n".encode().ljust(tarfile.BLOCKSIZE, b"\0")
    sparse = {"major": 1, "minor": 0, "name": "key", "realsize": 2**30}
    member = tarfile.TarInfo("key")
    member.size = len(content)
    member.pax_headers = {f"GNU.sparse.{name}": str(value) for name, value in sparse.items()}
    with tarfile.open(tmp_path / "holes.tar", mode="w") as archive:
        archive.addfile(member, io.BytesIO(content))
    there = home_at(tmp_path / "there")
    with pytest.raises(Rejected, match="'key' has no place in a backup"):
        restore_backup(there, tmp_path / "holes.tar")
    assert list(there.home.iterdir()) == []


def rewritten(kept: Path, change: str) -> bytes:
    """The bytes of a backup that something has happened to."""
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
            if change == "changed" and member.name == "key":
                content = content.replace(b"gonogo_", b"gonogo-")
            if change == "newer" and member.name == LIST:
                content = content.replace(b'"revision": "', b'"revision": "f')
            if change == "unnamed" and member.name == LIST:
                content = re.sub(rb'"revision": "\w+"', b'"revision": []', content)
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
        ("cut", "not a whole backup"),
        ("missing", r"not as it was made: signing\.key"),
        ("changed", "not as it was made: key"),
        ("unlisted", "backup.json is missing"),
        ("unnamed", "backup.json is missing or of another version"),
        ("outside", "has no place in a backup"),
        ("link", "'key' has no place in a backup"),
        ("newer", "newer than this one"),
    ],
)
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
