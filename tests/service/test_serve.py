"""Does the real process start, announce itself, survive a kill, and stop?"""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.__main__ import main
from tests.service.fake_worker import FakeWorker
from tests.unit_socket import UnitSocket

ROOT = Path(__file__).resolve().parents[2]


class Process:
    """`python -m service serve` in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.child: subprocess.Popen[str] | None = None

    def start(self, **more: str) -> httpx.Client:
        env = {"PATH": os.environ["PATH"], "GONOGO_HOME": str(self.home), "PYTHONPATH": str(ROOT)}
        env |= more
        with (self.home / "service.log").open("a") as log:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "service", "serve", "--port", "0"],
                cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self.child.stdout is not None
        said = json.loads(self.child.stdout.readline())
        written = json.loads((self.home / "service.json").read_text())
        assert written == {"url": said["url"], "pid": self.child.pid, "host": socket.gethostname()}
        return httpx.Client(base_url=said["url"], timeout=120, trust_env=False)

    def end(self, how: signal.Signals) -> int:
        assert self.child is not None
        self.child.send_signal(how)
        code = self.child.wait(60)
        if self.child.stdout is not None:
            self.child.stdout.close()
        self.child = None
        return code


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    started = Process(tmp_path)
    yield started
    if started.child is not None:
        started.end(signal.SIGKILL)


def test_what_was_answered_survives_a_kill(process: Process) -> None:
    with process.start() as http:
        key = (process.home / "key").read_text().strip()
        headers = {"Authorization": f"Bearer {key}"}
        answer = http.post("/api/v1/experiments", json={"plan": "demo"}, headers=headers)
        assert answer.status_code == 201
        process.end(signal.SIGKILL)
    with process.start() as http:
        assert (process.home / "key").read_text().strip() == key
        found: Any = http.get(f"/api/v1/experiments/{answer.json()['id']}", headers=headers).json()
        assert found["state"] == "queued"
        worker = FakeWorker(http=http, key=(process.home / "worker_key").read_text().strip())
        order = worker.claim()
        assert order is not None
        assert order.experiment == found["id"]
        assert process.end(signal.SIGTERM) == 0


def test_a_database_of_another_release_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GONOGO_HOME", str(tmp_path))
    monkeypatch.delenv("GONOGO_DATABASE_URL", raising=False)
    assert main(["db", "upgrade"]) == 0
    with closing(sqlite3.connect(tmp_path / "gonogo.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = ?", ["9999"])
    assert main(["serve", "--port", "0"]) == 2
    said = "error: the database has revision 9999, of another release; this one knows"
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.long
@pytest.mark.parametrize(
    "url", ["sqlite:///{home}", "postgresql+psycopg://nobody@127.0.0.1:1/none"]
)
def test_a_database_that_cannot_be_opened_is_said_in_a_sentence(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that is read-only, a server that is not there: sixty lines of a traceback."""
    monkeypatch.setenv("GONOGO_HOME", str(tmp_path))
    monkeypatch.setenv("GONOGO_DATABASE_URL", url.format(home=tmp_path))
    assert main(["db", "upgrade"]) == 5
    assert capsys.readouterr().err.startswith("error: the database cannot be opened: ")


@pytest.mark.parametrize(
    "command",
    [["serve", "--port", "0"], ["db", "upgrade"], ["keys", "list"], ["backup", "kept.tar"]],
    ids=lambda command: command[0],
)
def test_a_damaged_database_is_said_in_a_sentence(
    command: list[str],
    tmp_path: Path,
    migrated: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A copy that was interrupted, a disk that lost a page: sixty lines of a traceback."""
    monkeypatch.setenv("GONOGO_HOME", str(tmp_path))
    monkeypatch.delenv("GONOGO_DATABASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "gonogo.db"
    path.write_bytes(migrated.read_bytes()[:4096] + bytes(4096 * 10))
    assert main(command) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: the database ")
    assert str(path) in told
    assert told.count("\n") == 1


def test_a_stop_does_not_wait_for_those_who_follow_events(process: Process) -> None:
    unit = UnitSocket(process.home / "notify")
    with unit, process.start(**unit.environ(watchdog_s=0.4)) as http:
        headers = {"Authorization": f"Bearer {(process.home / 'key').read_text().strip()}"}
        answer = http.post("/api/v1/experiments", json={"plan": "demo"}, headers=headers)
        url = f"/api/v1/experiments/{answer.json()['id']}/events"
        with http.stream("GET", url, headers=headers) as stream:
            assert next(stream.iter_lines()) == "retry: 1000"
            assert unit.hear() == f"READY=1\nSTATUS=answers at {str(http.base_url).rstrip('/')}"
            assert [unit.hear(), unit.hear()] == ["WATCHDOG=1", "WATCHDOG=1"]
            assert process.end(signal.SIGTERM) == 0
        assert "STOPPING=1" in unit.rest()


def test_keys_are_made_listed_and_revoked_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GONOGO_HOME", str(tmp_path))
    for name in ("GONOGO_DATABASE_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    assert main(["keys", "create", "ann", "--role", "viewer"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["key"].startswith("gonogo_")
    assert main(["keys", "create", "ann"]) == 2
    assert main(["keys", "revoke", "bob"]) == 3
    for number, content in enumerate(("gonogo_" + "a" * 40, "gonogo_" + "b" * 40, "short")):
        (tmp_path / "given").write_text(content + "\n")
        argv = ["keys", "create", "host", "--role", "worker", "--file", str(tmp_path / "given")]
        assert main(argv) == (2 if number == 2 else 0)
        assert main(argv) == (2 if number == 2 else 0)  # again changes nothing
    (tmp_path / "given").write_text("gonogo_" + "a" * 40)
    assert main(argv) == 2  # one that was revoked stays so
    capsys.readouterr()
    assert main(["keys", "list"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    hosts = [row["revoked_at"] is None for row in rows if row["name"] == "host"]
    assert hosts == [False, True]
    assert main(["keys", "revoke", "ann"]) == 0
    assert main(["keys", "list"]) == 0
    listed = json.loads(capsys.readouterr().out.strip().splitlines()[1])
    assert listed["name"] == "ann"
    assert listed["revoked_at"] is not None
    assert made["key"] not in (tmp_path / "gonogo.db").read_bytes().decode("latin-1")
    assert main(["db", "current"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["revision"] == found["newest"]


def test_an_unknown_setting_is_refused_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GONOGO_HOEM", "/tmp")
    assert main(["db", "current"]) == 2
    assert "did you mean GONOGO_HOME" in capsys.readouterr().err
