"""What can somebody without a key take from a worker by its exporter?"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from worker.metrics.exporter import HostView, start_exporter
from worker.metrics.server import MOST, Handler, Recent, Server, start_server

TEXT = b"gonogo_worker_up 1.0\n"


@pytest.fixture
def server() -> Iterator[Server]:
    found = start_server(Recent(lambda: TEXT), "127.0.0.1", 0)
    yield found
    found.shutdown()
    found.server_close()


def until(holds: object, limit_s: float = 60.0) -> bool:
    assert callable(holds)
    deadline = time.monotonic() + limit_s
    while not holds():  # and not once more: what is counted of a living host never stands still
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_who_says_nothing_is_not_waited_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "timeout", 0.2)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60.0) as mute:
        mute.sendall(b"GET /met")
        assert mute.recv(1) == b""


def connections(server: Server) -> int:
    """How many connections a server has taken and not closed: its files, and no other test's."""
    port, open_still = f":{server.server_port:04X}", ("01", "08")  # ESTABLISHED, CLOSE_WAIT
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    mine = {row[9] for row in rows if row[1].endswith(port) and row[3] in open_still}
    return len(mine - {"0"})  # one that waits to be taken has no inode yet; some are listed twice


def answering() -> int:
    """How many threads answer requests."""
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_a_stranger_who_holds_connections_takes_neither_files_nor_threads(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "timeout", 300.0)
    before, held = answering(), []
    try:
        for _ in range(3 * MOST):
            held.append(socket.create_connection(("127.0.0.1", server.server_port), timeout=60.0))
            held[-1].sendall(b"GET /metrics HTTP/1.1\r\n")
        assert until(lambda: connections(server) <= MOST)
        assert until(lambda: answering() - before <= MOST)
        answer = httpx.get(f"http://127.0.0.1:{server.server_port}/metrics", trust_env=False)
        assert answer.content == TEXT, "who asks a whole question is answered all the same"
        held[0].settimeout(60.0)
        assert held[0].recv(1) == b"", "who came first has made room"
    finally:
        for one in held:
            one.close()
    assert until(lambda: connections(server) == 0)


def test_as_many_as_there_is_room_for_are_answered(server: Server) -> None:
    asking = []
    for _ in range(MOST):
        asking.append(socket.create_connection(("127.0.0.1", server.server_port), timeout=60.0))
    for one in asking:
        one.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    for one in asking:
        with one.makefile("rb") as said:
            assert said.read().endswith(TEXT)
        one.close()


def test_however_many_ask_the_host_is_looked_at_once_a_second() -> None:
    looks = []

    def look() -> HostView:
        looks.append(1)
        return HostView(devices=2, free=1, live={})

    server, port = start_exporter(look, "127.0.0.1", 0)
    try:
        began = time.monotonic()
        for _ in range(20):
            text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
            assert "gonogo_worker_up 1.0" in text
        assert len(looks) <= 2 + (time.monotonic() - began)
    finally:
        server.shutdown()
        server.server_close()


def test_what_is_older_is_made_anew() -> None:
    now, made = [100.0], iter([b"1", b"2"])
    recent = Recent(lambda: next(made), lambda: now[0])
    assert (recent.get(), recent.get()) == (b"1", b"1")
    now[0] += 1.0
    assert recent.get() == b"2"


def test_what_could_not_be_made_is_tried_again() -> None:
    answers: list[bytes | OSError] = [OSError("gone"), b"1"]

    def make() -> bytes:
        said = answers.pop(0)
        if isinstance(said, OSError):
            raise said
        return said

    recent = Recent(make)
    with pytest.raises(OSError, match="gone"):
        recent.get()
    assert recent.get() == b"1"


@pytest.mark.long
def test_while_the_host_cannot_be_looked_at_nobody_piles_up() -> None:
    """A home whose disk hangs holds whoever looks, for hours."""
    looks, hangs = threading.Event(), threading.Event()

    def make() -> bytes:
        looks.set()
        assert hangs.wait(60.0)
        return TEXT

    server = start_server(Recent(make), "127.0.0.1", 0)
    before, asking = answering(), []
    try:
        for _ in range(5 * MOST):
            asking.append(socket.create_connection(("127.0.0.1", server.server_port), timeout=60.0))
            asking[-1].sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert looks.wait(10.0)
        assert until(lambda: connections(server) <= 2 * MOST)
        assert answering() - before <= 2 * MOST
        hangs.set()
        assert until(lambda: answering() <= before)
        answer = httpx.get(f"http://127.0.0.1:{server.server_port}/metrics", trust_env=False)
        assert answer.content == TEXT
    finally:
        hangs.set()
        for one in asking:
            one.close()
        server.shutdown()
        server.server_close()
