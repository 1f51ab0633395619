"""A key is sent to no other user's process that listens where the service was."""

from __future__ import annotations

import http.server
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gonogo.cli import processes
from gonogo.cli.reach.listeners import check_listener, listeners_at, trusted_of
from gonogo.contract.errors import Unavailable
from tests.cli.conftest import Gonogo

NOBODY = 65_534


@contextmanager
def listening(family: int, host: str) -> Iterator[int]:
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    ("family", "host"),
    [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1")],
)
def test_who_listens_is_known(family: int, host: str) -> None:
    with listening(family, host) as port:
        assert listeners_at(port) == {os.geteuid()}
    assert listeners_at(port) == set()


def test_own_processes_and_those_of_other_hosts_are_taken(tmp_path: Path) -> None:
    with listening(socket.AF_INET, "127.0.0.1") as port:
        check_listener(f"http://127.0.0.1:{port}", trusted_of(tmp_path / "key"))
        check_listener(f"http://localhost:{port}/x", {os.geteuid()})
        check_listener(f"http://gonogo.example:{port}", ())
    check_listener(f"http://127.0.0.1:{port}", ())
    check_listener("http://127.0.0.1:99999", ())


class Stranger:
    """A server that another user began; it keeps the keys that it is sent."""

    def __init__(self) -> None:
        self.heard: list[str | None] = []
        heard = self.heard

        class Hear(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                heard.append(self.headers.get("Authorization"))
                self.send_error(404)

            def log_message(self, *_: object) -> None:
                pass

        os.seteuid(NOBODY)
        try:
            self.server = http.server.HTTPServer(("127.0.0.1", 0), Hear)
        finally:
            os.seteuid(0)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    if os.geteuid() != 0:
        pytest.skip("only root may listen as another user")
    found = Stranger()
    thread = threading.Thread(target=found.server.serve_forever, args=(0.05,))
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join()


def left_behind(home: Path, url: str) -> None:
    """Make a home as its service left it."""
    (home / "key").write_text("gonogo_secret\n")
    (home / "service.json").write_text(json.dumps({"url": url, "pid": os.getpid()}))


def test_the_key_is_not_sent_to_another_user(
    stranger: Stranger, tmp_path: Path, gonogo: Gonogo
) -> None:
    left_behind(tmp_path, stranger.url)
    said = gonogo("list")
    assert said.code == 5
    assert f"at {stranger.url} listens a process of user" in said.err
    assert "gonogo up --port 0" in said.err
    assert stranger.heard == []


def test_a_worker_takes_no_orders_from_another_user(
    stranger: Stranger, tmp_path: Path, gonogo: Gonogo, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(processes, "replace_process", lambda name, **_: begun.append(name))
    left_behind(tmp_path, stranger.url)
    (tmp_path / "worker_key").write_text("gonogo_worker\n")
    said = gonogo("worker")
    assert (said.code, begun) == (5, [])
    assert f"at {stranger.url} listens a process of user" in said.err
    gonogo("worker", GONOGO_URL=stranger.url)
    assert begun == ["worker"]


def test_who_names_the_address_means_it(stranger: Stranger, tmp_path: Path, gonogo: Gonogo) -> None:
    left_behind(tmp_path, stranger.url)
    gonogo("list", GONOGO_URL=stranger.url)
    assert stranger.heard == ["Bearer gonogo_secret"]


def test_the_service_of_another_user_is_taken_where_the_key_is_his(
    stranger: Stranger, tmp_path: Path, gonogo: Gonogo
) -> None:
    left_behind(tmp_path, stranger.url)
    os.chown(tmp_path / "key", NOBODY, -1)
    gonogo("list")
    assert stranger.heard == ["Bearer gonogo_secret"]


def test_a_stranger_is_refused_whoever_runs_this() -> None:
    with listening(socket.AF_INET, "127.0.0.1") as port:
        if os.geteuid() == 0:
            check_listener(f"http://127.0.0.1:{port}", ())  # root reads the key anyway
        else:
            with pytest.raises(Unavailable, match="listens a process of user"):
                check_listener(f"http://127.0.0.1:{port}", ())
