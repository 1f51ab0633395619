"""A key is sent to no other user's process that listens where the service was."""

from __future__ import annotations

import http.server
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from gonogo.cli import processes
from gonogo.cli.connection import client_of
from gonogo.cli.reach.listeners import check_listener, listeners_at, trusted_of
from gonogo.cli.settings import load_settings
from gonogo.contract.errors import Unavailable
from gonogo.supervise.keeper.meeting import own_address
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
    address = ip_address("127.0.0.1" if host == "0.0.0.0" else host)
    with listening(family, host) as port:
        assert listeners_at(address, port) == {os.geteuid()}
    assert listeners_at(address, port) == set()


def test_who_listens_at_another_address_is_not_reached() -> None:
    with listening(socket.AF_INET, "127.0.0.1") as port:
        assert listeners_at(ip_address("127.0.0.2"), port) == set()
        assert listeners_at(ip_address("::1"), port) == set()
    with listening(socket.AF_INET6, "::1") as port:
        assert listeners_at(ip_address("127.0.0.1"), port) == set()
    with listening(socket.AF_INET6, "::") as port:
        assert listeners_at(ip_address("127.0.0.1"), port) == {os.geteuid()}
        assert listeners_at(ip_address("::1"), port) == {os.geteuid()}


def test_own_processes_and_those_of_other_hosts_are_taken(tmp_path: Path) -> None:
    with listening(socket.AF_INET, "127.0.0.1") as port:
        check_listener(f"http://127.0.0.1:{port}", trusted_of(tmp_path / "key"))
        check_listener(f"http://localhost:{port}/x", {os.geteuid()})
        check_listener(f"http://gonogo.example:{port}", ())
    check_listener(f"http://127.0.0.1:{port}", ())
    check_listener("http://127.0.0.1:99999", ())


class Stranger:
    """A server that another user began; it keeps the keys that it is sent."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
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
            self.server = http.server.HTTPServer((host, port), Hear)
        finally:
            os.seteuid(0)
        self.url = f"http://{host}:{self.server.server_port}"


@contextmanager
def strange(host: str, port: int = 0) -> Iterator[Stranger]:
    if os.geteuid() != 0:
        pytest.skip("only root may listen as another user")
    found = Stranger(host, port)
    thread = threading.Thread(target=found.server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield found
    finally:
        found.server.shutdown()
        found.server.server_close()
        thread.join()


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    with strange("127.0.0.1") as found:
        yield found


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


def test_nor_at_another_address_of_this_host(tmp_path: Path, gonogo: Gonogo) -> None:
    own = own_address()
    if own.startswith("127."):
        pytest.skip("this host has no other address")
    with strange(own) as stranger:
        port = stranger.server.server_port
        for host in (own, f"[::ffff:{own}]"):
            left_behind(tmp_path, f"http://{host}:{port}")
            assert gonogo("list").code == 5
    for host in ("127.1", "0.0.0.0", "localhost.", "2130706433"):
        with strange("127.0.0.1") as other:
            left_behind(tmp_path, f"http://{host}:{other.server.server_port}")
            assert gonogo("list").code == 5
            assert other.heard == []
    assert stranger.heard == []


def test_a_neighbour_at_another_address_stops_nobody(tmp_path: Path, gonogo: Gonogo) -> None:
    with listening(socket.AF_INET, "127.0.0.1") as port, strange("127.0.0.2", port):
        check_listener(f"http://127.0.0.1:{port}", ())
        with pytest.raises(Unavailable):
            check_listener(f"http://127.0.0.2:{port}", ())


def test_a_command_that_waits_sends_its_key_to_nobody_who_came_since(tmp_path: Path) -> None:
    with listening(socket.AF_INET, "127.0.0.1") as port:
        left_behind(tmp_path, f"http://127.0.0.1:{port}")
        client = client_of(load_settings({"GONOGO_HOME": str(tmp_path)}))
    with strange("127.0.0.1", port) as stranger, client:
        with pytest.raises(Unavailable, match="listens a process of user"):
            client.get("/experiments")
        with pytest.raises(Unavailable), client.stream("/experiments/x/events", {}):
            pass
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


def test_who_looks_around_is_told_of_a_stranger_among_the_rest(
    stranger: Stranger, tmp_path: Path, gonogo: Gonogo
) -> None:
    left_behind(tmp_path, stranger.url)
    said = gonogo("doctor", "--json").json()
    outcomes = {row["id"]: (row["outcome"], row["text"]) for row in said["checks"]}
    assert outcomes["home"][0] == "pass"
    assert outcomes["service"][0] == "warn"
    told = gonogo("status", "--json").json()
    assert told["up"] is False
    for text in (outcomes["service"][1], told["problem"]):
        assert f"at {stranger.url} listens a process of user" in text
    assert stranger.heard == []
