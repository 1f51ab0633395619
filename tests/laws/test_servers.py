"""Do the server fixtures give what they promise? (Other tests judge outages by them.)"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
import redis

from tests.conftest import demand, required_components
from tests.servers import PROGRAMS, PostgresServer, RedisServer


def test_a_killed_redis_without_persistence_comes_back_empty(
    new_redis: Callable[..., RedisServer],
) -> None:
    server = new_redis()
    redis.Redis.from_url(server.url).set("job", "1")
    server.kill()
    server.start()
    assert redis.Redis.from_url(server.url).get("job") is None


def test_a_killed_redis_with_persistence_remembers(new_redis: Callable[..., RedisServer]) -> None:
    server = new_redis(persistent=True)
    redis.Redis.from_url(server.url).set("job", "1")
    server.kill()
    server.start()
    assert redis.Redis.from_url(server.url).get("job") == b"1"


def test_the_wheel_carries_a_server_that_speaks_redis(valkey_server: RedisServer) -> None:
    client = redis.Redis.from_url(valkey_server.url)
    assert client.eval("return redis.call('INCRBY', KEYS[1], 2)", 1, "n") == 2


def test_every_postgres_database_is_fresh(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    other = postgres_server.new_database()
    assert other != postgres_url
    for url in (postgres_url, other):
        with psycopg.connect(url.replace("+psycopg", "")) as link:
            link.execute("create table once (id int)")


@pytest.fixture
def unheard_of(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(PROGRAMS, "unheard-of", ("no-such-program-anywhere",))
    return "unheard-of"


def test_a_missing_program_skips(unheard_of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GONOGO_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-program-anywhere"):
        demand(unheard_of)


def test_a_missing_program_fails_where_it_is_required(
    unheard_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GONOGO_REQUIRE", f"redis, {unheard_of}")
    with pytest.raises(pytest.fail.Exception, match="GONOGO_REQUIRE demands it"):
        demand(unheard_of)


def test_a_misspelt_requirement_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GONOGO_REQUIRE", "promtheus")
    with pytest.raises(pytest.UsageError, match="promtheus"):
        required_components()


def test_servers_listen_on_loopback_only(redis_server: RedisServer) -> None:
    listening = Path("/proc/net/tcp").read_text().splitlines()[1:]
    port = f":{redis_server.port:04X}"
    addresses = {line.split()[1] for line in listening if line.split()[1].endswith(port)}
    assert any(address.startswith("0100007F") for address in addresses)
    assert not any(address.startswith("00000000") for address in addresses)
