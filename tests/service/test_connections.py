"""A connection that asks nothing whole leaves its place; one that asks is never cut."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from service.http import connections
from tests.service.conftest import Plane

LIMIT_S = 0.3
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
BODY = HEALTH.replace(b"GET", b"POST") + b"Content-Length: 10\r\n\r\n"


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", LIMIT_S)


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/gonogo.db"


@contextmanager
def connected(plane: Plane) -> Iterator[socket.socket]:
    url = plane.http.base_url
    with socket.create_connection((url.host, url.port or 80), 60) as client:
        yield client


def ended(client: socket.socket) -> bool:
    """Wait for the other side's end; whatever it answers before is read over."""
    try:
        while client.recv(4096):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def test_a_service_raises_its_own_limit_of_files_as_far_as_it_may() -> None:
    code = (
        "import resource as r; from service.http.connections import raise_file_limit as up;"
        "hard = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (300, hard)); up();"
        "r.setrlimit(r.RLIMIT_NOFILE, (300, 400)) if r.getrlimit(r.RLIMIT_NOFILE)[0] > 300 else 0;"
        "up(); print(*r.getrlimit(r.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["400", "400"]


@pytest.mark.parametrize("begun", [b"", b"GET /hea", HEALTH, BODY, BODY + b"12345"])
def test_what_does_not_become_whole_ends(still: Plane, begun: bytes) -> None:
    with connected(still) as client:
        client.sendall(begun)
        assert ended(client)


def test_a_second_request_must_become_whole_too(still: Plane) -> None:
    with connected(still) as client:
        client.sendall(HEALTH + b"\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        client.sendall(HEALTH)
        assert ended(client)


def test_who_has_asked_and_waits_keeps_the_connection(still: Plane) -> None:
    with connected(still) as client:
        client.sendall(HEALTH + b"\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        client.settimeout(3 * LIMIT_S)
        assert not ended(client)
        client.settimeout(60)
        client.sendall(HEALTH)
        client.sendall(b"\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")


def test_an_answer_may_take_as_long_as_it_wants(still: Plane) -> None:
    with connected(still) as client:
        key = still.key().encode()
        ask = b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n"
        client.sendall(ask + b"Authorization: Bearer " + key + b"\r\n\r\n")
        assert client.recv(15).startswith(b"HTTP/1.1 200")
        client.settimeout(3 * LIMIT_S)
        assert not ended(client)


def test_the_last_files_are_not_for_connections(
    still: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 60.0)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(connections, "SPARE_FILES", soft - 3)
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(still)) for _ in range(8)]
        for client in clients:
            client.settimeout(0.5)
        kept = [client for client in clients if not ended(client)]
        assert 0 < len(kept) <= 3
        kept[0].sendall(HEALTH + b"\r\n")
        assert kept[0].recv(4096).startswith(b"HTTP/1.1 200")
