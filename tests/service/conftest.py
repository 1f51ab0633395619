"""A running control plane for tests: the real application over real HTTP, on either database."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from sqlalchemy import text

from service.app import create_app
from service.context import Context, open_context
from service.db.columns import Table
from service.db.store import build_engine, migrate
from service.http.auth import Role, create_key, load_local_keys
from service.judging.judge_process import Assessors, answer
from service.settings import Settings
from tests.service.fake_worker import FakeWorker

HERE = Path(__file__).parent


@dataclass
class Plane:
    """A control plane and the ways to talk to it."""

    context: Context
    http: httpx.Client
    home: Path
    keys: dict[str, str] = field(default_factory=dict)

    def key(self, name: str = "key") -> str:
        return (self.home / name).read_text().strip()

    def get(self, path: str, **params: Any) -> Any:
        answer = self.call("GET", path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def call(
        self,
        method: str,
        path: str,
        *,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> httpx.Response:
        own = {"Authorization": f"Bearer {key or self.key()}", **(headers or {})}
        return self.http.request(method, f"/api/v1{path}", headers=own, **more)

    def submit(self, plan: Any = "demo", **more: Any) -> str:
        answer = self.call("POST", "/experiments", json={"plan": plan, **more})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def experiment(self, experiment: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/experiments/{experiment}")
        return found

    def worker(self, name: str = "w1", **more: Any) -> FakeWorker:
        """A worker with a key of its own; `w1` has the home's."""
        return FakeWorker(http=self.http, key=self.worker_key(name), name=name, **more)

    def worker_key(self, name: str) -> str:
        if name == "w1":
            return self.key("worker_key")
        if name not in self.keys:
            self.keys[name] = self.context.store.write(
                lambda session: create_key(session, name, Role.WORKER, 1.0)
            )
        return self.keys[name]

    def wait(self, ready: Callable[[], Any], what: str = "it", limit_s: float = 120.0) -> Any:
        """Ask until the answer is truthy, and return it."""
        deadline = time.monotonic() + limit_s
        while not (found := ready()):
            assert time.monotonic() < deadline, f"{what} did not happen within {limit_s:g} s"
            time.sleep(0.05)  # each question costs the service it waits for
        return found

    def wait_state(self, experiment: str, *states: str) -> dict[str, Any]:
        return self.wait(
            lambda: (view := self.experiment(experiment))["state"] in states and view,
            f"{experiment} in {states}",
        )

    def next_order(self, worker: FakeWorker, **more: Any) -> Any:
        return self.wait(lambda: worker.claim(**more), "an order")


ON_BOTH = ("test_store", "test_epochs")
"""Modules of what the databases do differently; a race is one everywhere."""
STORIES = (
    *("test_campaigns", "test_carried", "test_checkpoints_elsewhere", "test_claims"),
    *("test_handed_over", "test_judging", "test_origins", "test_overrides", "test_files"),
    *("test_random_experiments", "test_reach", "test_reports", "test_telemetry"),
    *("test_verbs", "test_walk"),
)
"""Modules whose tests run whole experiments: one case of each test is enough for every commit."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as long: tests on PostgreSQL of what is the same on SQLite, and further cases."""
    told: set[tuple[Path, str]] = set()
    for item in items:
        if not item.path.is_relative_to(HERE) or item.get_closest_marker("long"):
            continue
        apart = item.path.stem in ON_BOTH or "race" in item.name
        test = item.path, item.name.partition("[")[0]
        again = item.path.stem in STORIES and test in told and "race" not in item.name
        if again or ("postgres" in item.name and not apart):
            item.add_marker(pytest.mark.long)
        told.add(test)


BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))]


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database without a row, to be copied: to migrate one takes longer than a test."""
    path = tmp_path_factory.mktemp("migrated") / "gonogo.db"
    migrate(f"sqlite:///{path}")
    return path


class InProcess(Assessors):
    """Judges in this process: to start another takes longer than most tests."""

    def ask(self, folder: Path, rules: bytes) -> dict[str, Any]:
        return answer(folder, rules)


@pytest.fixture(scope="session", autouse=True)
def judges() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.conductor.judge.Assessors", InProcess)
        yield


@pytest.fixture(scope="session")
def cleared_postgres(request: pytest.FixtureRequest) -> Callable[[], str]:
    """One migrated PostgreSQL database for the session; each call empties it first."""
    made: list[str] = []

    def clear() -> str:
        if not made:
            made.append(request.getfixturevalue("postgres_server").new_database())
            migrate(made[0])
        engine = build_engine(made[0])
        with engine.begin() as connection:
            names = ", ".join(table.name for table in Table.metadata.sorted_tables)
            connection.execute(text(f"TRUNCATE {names} CASCADE"))
        engine.dispose()
        return made[0]

    return clear


@pytest.fixture
def sqlite_url(tmp_path: Path, migrated: Path) -> str:
    """A migrated SQLite database in the test's home, without a row in it."""
    return f"sqlite:///{shutil.copy(migrated, tmp_path / 'gonogo.db')}"


@pytest.fixture(params=BOTH)
def database_url(request: pytest.FixtureRequest, cleared_postgres: Callable[[], str]) -> str:
    """A migrated database of each kind, without a row in it."""
    if request.param == "postgres":
        return cleared_postgres()
    return str(request.getfixturevalue("sqlite_url"))


@pytest.fixture(params=BOTH)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind, without a table in it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/empty.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> Settings:
    return Settings(home=tmp_path, database_url=database_url)


@pytest.fixture
def plane(settings: Settings) -> Iterator[Plane]:
    """A control plane that conducts."""
    context = open_context(settings)
    load_local_keys(context)
    with serving(context) as http:
        yield Plane(context=context, http=http, home=settings.home)


@contextmanager
def serving(context: Context, *, conduct: bool = True) -> Iterator[httpx.Client]:
    """Serve a context on a free port of loopback, and close it in the end."""
    config = uvicorn.Config(
        create_app(context, conduct=conduct),
        port=0,
        log_config=None,
        timeout_keep_alive=30,  # as `gonogo serve`
        timeout_graceful_shutdown=1,
        ws="none",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.005)
    context.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    with httpx.Client(base_url=context.url, timeout=180, trust_env=False, verify=False) as http:
        yield http
    server.should_exit = True
    thread.join(60)
    context.store.close()


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def still(settings: Settings, clock: Clock) -> Iterator[Plane]:
    """A control plane that does nothing by itself; its monotonic clock is the test's."""
    context = open_context(settings, mono=clock)
    load_local_keys(context)
    with serving(context, conduct=False) as http:
        yield Plane(context=context, http=http, home=settings.home)
