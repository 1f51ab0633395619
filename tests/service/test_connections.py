"""A connection that asks nothing whole leaves its place; one that asks is never cut."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPResponse

import pytest

from gonogo.contract.api import ProblemBody
from service.http import connections
from service.http.problems import MEDIA_TYPE
from tests.service.conftest import Plane

LIMIT_S = 0.3
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
BODY = HEALTH.replace(b"GET", b"POST") + b"Content-Length: 10\r\n\r\n"


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", LIMIT_S)


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@contextmanager
def connected(plane: Plane) -> Iterator[socket.socket]:
    url = plane.http.base_url
    with socket.create_connection((url.host, url.port or 80), 60) as client:
        yield client


def whole_answer(client: socket.socket) -> tuple[HTTPResponse, bytes]:
    """Read an answer to its end, which may come in pieces; return it, and its body."""
    answer = HTTPResponse(client)
    answer.begin()
    return answer, answer.read()


def status_of_whole_answer(client: socket.socket) -> int:
    answer, _ = whole_answer(client)
    return answer.status


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


@pytest.mark.parametrize(("files", "most"), [(65_536, 65_280), (1024, 768), (300, 150), (256, 128)])
def test_a_service_that_may_open_few_files_takes_connections_too(files: int, most: int) -> None:
    assert connections.most_connections(files) == most


@pytest.mark.parametrize("begun", [b"", b"GET /hea", HEALTH, BODY, BODY + b"12345"])
def test_what_does_not_become_whole_ends(still: Plane, begun: bytes) -> None:
    with connected(still) as client:
        client.sendall(begun)
        assert ended(client)


UPGRADE = HEALTH + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


@pytest.mark.parametrize("asked", [b"nonsense\r\n\r\n", b"GET \x00 HTTP/1.1\r\n\r\n", UPGRADE])
def test_what_strangers_ask_fills_no_log(
    still: Plane, caplog: pytest.LogCaptureFixture, asked: bytes
) -> None:
    caplog.set_level(logging.INFO)
    with connected(still) as client:
        client.sendall(asked)
        status = 200 if asked is UPGRADE else 400
        assert client.recv(4096).startswith(b"HTTP/1.1 %d" % status)
    assert [
        row
        for row in caplog.records
        if row.name.startswith(("uvicorn.error", connections.__name__))
    ] == []


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


def test_a_slow_link_may_send_as_long_as_it_takes(
    still: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 1.0)
    monkeypatch.setattr(connections, "PACE_BYTES", 1000)
    with connected(still) as client:
        key = still.key().encode()
        ask = b"POST /api/v1/experiments HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n"
        client.sendall(ask + b"Authorization: Bearer " + key + b"\r\n\r\n")
        for _ in range(25):
            client.sendall(b" " * 4000)
            time.sleep(0.1)  # in all, more than twice what is given for a head
        assert client.recv(4096).startswith(b"HTTP/1.1 4")
        client.sendall(ask + b"Authorization: Bearer " + key + b"\r\n\r\n")
        client.sendall(b" " * 400)
        assert ended(client)  # and none of it is too slow


HEADER = HEALTH + b"X: "
CHUNKED = BODY.replace(b"Content-Length: 10", b"Transfer-Encoding: chunked")


@pytest.mark.parametrize(
    ("begun", "piece"),
    [
        (HEADER, b"x" * 2**16),
        (HEALTH, b"X: x\r\n" * 2**13),
        (b"GET /", b"x" * 2**16),
        (CHUNKED + b"0\r\nX: ", b"x" * 2**16),
    ],
    ids=["a header", "headers", "an address", "a trailer"],
)
def test_a_head_without_end_fills_no_memory(
    still: Plane, monkeypatch: pytest.MonkeyPatch, begun: bytes, piece: bytes
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 60.0)
    with connected(still) as client:
        client.sendall(begun)
        try:
            for _ in range(400):
                client.sendall(piece)
        except OSError:
            return
        client.settimeout(5)
        assert ended(client)


def test_a_head_of_many_requests_one_after_the_other_is_not_too_long(still: Plane) -> None:
    ask = HEADER + b"x" * 30_000 + b"\r\n\r\n"
    with connected(still) as client:
        for _ in range(5):
            client.sendall(ask)
            assert status_of_whole_answer(client) == 200
        client.sendall(HEADER + b"x" * 600_000)
        assert client.recv(4096).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        (HEALTH + b"Content-Length: ]y\r\n\r\n", 400, "bad_request"),
        (b"\x16\x03\x01\x02\x00 is TLS\r\n\r\n", 400, "bad_request"),
        (HEALTH + b"X: x\r\n" * 101, 431, "too_large"),
    ],
    ids=["length", "no http", "many headers"],
)
def test_what_cannot_be_read_is_told_by_a_problem(
    still: Plane, said: bytes, status: int, code: str
) -> None:
    """It was text, or nothing."""
    with connected(still) as client:
        client.sendall(said)
        answer, body = whole_answer(client)
        assert (answer.status, answer.headers["Content-Type"]) == (status, MEDIA_TYPE)
        assert answer.headers["Connection"] == "close"
        problem = ProblemBody.model_validate_json(body)
        assert (problem.status, problem.code) == (status, code)
        assert ended(client)


@pytest.mark.parametrize("headers", [100, 101])
def test_a_request_has_few_headers(still: Plane, headers: int) -> None:
    with connected(still) as client:
        client.sendall(HEALTH + b"X: x\r\n" * (headers - 1) + b"\r\n")
        said = b""
        with suppress(ConnectionError):
            said = client.recv(4096)
        assert said.startswith(b"HTTP/1.1 200") is (headers == 100)


@pytest.mark.parametrize(("asks", "answered"), [(60, True), (4_000, False)])
def test_few_requests_wait_on_a_connection_for_the_one_before(
    still: Plane, monkeypatch: pytest.MonkeyPatch, asks: int, answered: bool
) -> None:
    """Each answer made room for as many as fit into one read, whoever waited for his."""
    monkeypatch.setattr(connections, "REQUEST_S", 60.0)
    said = bytearray()
    with connected(still) as client, suppress(ConnectionError):
        client.sendall((HEALTH + b"\r\n") * asks)
        while said.count(b"HTTP/1.1 200") < asks and (piece := client.recv(2**16)):
            said += piece
    assert (said.count(b"HTTP/1.1 200") == asks) is answered


@pytest.mark.parametrize("reads", [False, True])
def test_whose_answers_nobody_reads_leaves_its_place(
    still: Plane, caplog: pytest.LogCaptureFixture, reads: bool
) -> None:
    url, asks = still.http.base_url, 40
    whole = asks * len(still.http.get("/openapi.json").content)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16 if reads else 2**12)
        client.settimeout(60)
        client.connect((url.host, url.port or 80))
        client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * asks)
        length, limit = 0, time.monotonic() + 10 * LIMIT_S
        while time.monotonic() < limit:
            length += len(client.recv(2**15)) if reads else 0  # slowly
            time.sleep(0.02)
        try:
            while length < whole and (piece := client.recv(2**20)):
                length += len(piece)
        except ConnectionResetError:
            pass
    assert (length >= whole) is reads
    assert not caplog.records


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
    monkeypatch.setattr(connections, "most_connections", lambda files: 3)
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(still)) for _ in range(8)]
        for client in clients:
            client.settimeout(0.5)
        kept = [client for client in clients if not ended(client)]
        assert 0 < len(kept) <= 3
        kept[0].settimeout(60)
        kept[0].sendall(HEALTH + b"\r\n")
        assert kept[0].recv(4096).startswith(b"HTTP/1.1 200")


def with_key(plane: Plane, path: str) -> bytes:
    key = plane.key().encode()
    return (
        HEALTH.replace(b"/healthz", path.encode()) + b"Authorization: Bearer " + key + b"\r\n\r\n"
    )


def keyed(plane: Plane, client: socket.socket, path: str) -> int:
    client.sendall(with_key(plane, path))
    return status_of_whole_answer(client)


STREAM = HEALTH.replace(b"/healthz", b"/api/v1/events").strip() + b"\r\nAccept: text/event-stream"


@pytest.mark.parametrize(
    "held", [b"", HEALTH, HEALTH + b"\r\n", BODY], ids=["nothing", "a head", "an answer", "a body"]
)
def test_strangers_leave_for_those_who_come_and_shut_nobody_out(
    still: Plane, monkeypatch: pytest.MonkeyPatch, held: bytes
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 60.0)
    monkeypatch.setattr(connections, "STRANGERS", 8)
    with ExitStack() as stack:
        known, stream = (stack.enter_context(connected(still)) for _ in range(2))
        assert keyed(still, known, "/api/v1/experiments") == 200
        stream.sendall(STREAM + b"\r\nAuthorization: Bearer " + still.key().encode() + b"\r\n\r\n")
        assert stream.recv(15).startswith(b"HTTP/1.1 200")
        strangers = []
        for _ in range(40):
            strangers.append(stack.enter_context(connected(still)))
            strangers[-1].sendall(held)
            if held.startswith(b"GET") and held.endswith(b"\r\n\r\n"):
                assert status_of_whole_answer(strangers[-1]) == 200
        newcomer = stack.enter_context(connected(still))
        assert keyed(still, newcomer, "/api/v1/experiments") == 200
        for client in (*strangers, stream):
            client.settimeout(0.2)
        assert all(ended(client) for client in strangers[:30])
        assert not ended(strangers[-1])
        assert not ended(stream)
        assert keyed(still, known, "/api/v1/experiments") == 200


def test_a_key_that_does_not_live_makes_nobody_known(
    still: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 60.0)
    monkeypatch.setattr(connections, "STRANGERS", 4)
    ask = b"%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer gonogo_none\r\n\r\n"
    paths = (b"GET /healthz", b"GET /api/v1/experiments", b"GET /api/v1/nowhere", b"GET /")
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(still)) for _ in paths]
        for client, path in zip(clients, paths, strict=True):
            client.sendall(ask % path)
            assert status_of_whole_answer(client) in (200, 303, 401, 404)
        for _ in range(4):
            stack.enter_context(connected(still))
        for client in clients:
            client.settimeout(1)  # a connection is kept for longer than that
            assert ended(client)


def test_a_key_is_shown_by_a_session_and_by_what_goes_the_short_way_too(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 60.0)
    monkeypatch.setattr(connections, "STRANGERS", 4)
    form = f"key={plane.key()}".encode()
    length = b"Content-Length: %d\r\n\r\n"
    bearer = b"Authorization: Bearer " + plane.key().encode() + b"\r\n"
    asked = b'{"plan": "demo"}'
    with ExitStack() as stack:
        page, short = (stack.enter_context(connected(plane)) for _ in range(2))
        page.sendall(b"POST /sign-in HTTP/1.1\r\nHost: x\r\n" + length % len(form) + form)
        signed_in = page.recv(65_536)
        cookie = signed_in.split(b"set-cookie: ")[1].split(b";")[0]
        page.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nCookie: " + cookie + b"\r\n\r\n")
        assert status_of_whole_answer(page) == 200
        head = b"POST /api/v1/experiments HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        short.sendall(head + bearer + length % len(asked) + asked)
        assert status_of_whole_answer(short) == 201
        for _ in range(9):
            stack.enter_context(connected(plane))
        for client in (page, short):
            client.settimeout(0.3)
            assert not ended(client)
