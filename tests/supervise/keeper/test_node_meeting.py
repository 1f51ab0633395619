"""Nodes come together before anything starts, once for each attempt, in one directory."""

from __future__ import annotations

import errno
import os
import socket
import stat
from functools import partial
from pathlib import Path

import pytest

from gonogo.supervise.durable import load_json, save_json
from gonogo.supervise.keeper.node_end import save_node_end, save_refusal
from gonogo.supervise.keeper.node_meeting import (
    Meeting,
    NotMet,
    Superseded,
    own_address,
)
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.node_record import MET_NAME, meet_path

ORDER = {"run": "run_x", "token": 5, "world_size": 2, "nodes": 2}


def meeting(folder: Path, node: int, token: int = 5, limit_s: float = 10.0) -> Meeting:
    order = {**ORDER, "token": token}
    place = Place.of(order, node, rendezvous="10.0.0.1:29400" if node == 0 else None)
    return Meeting(folder, order, place, limit_s=limit_s)


def test_nodes_begin_when_each_has_read_the_other(tmp_path: Path) -> None:
    first, second = meeting(tmp_path, 0), meeting(tmp_path, 1)
    assert first.advance(0.0) is None
    assert second.advance(0.0) is None
    assert first.advance(1.0) == "10.0.0.1:29400"
    assert second.advance(1.0) == "10.0.0.1:29400"


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"], ids=["everywhere", "on loopback"])
def test_launchers_meet_where_nobody_listens_already(tmp_path: Path, host: str) -> None:
    def port() -> int:
        told = Meeting(tmp_path, ORDER, Place.of(ORDER, 0)).own.address
        return int(told.rpartition(":")[2])

    first = port()
    assert port() == first
    with socket.create_server((host, first)):
        assert port() > first


class Way:
    """What the kernel says of the way out, by the families of addresses that a host has."""

    def __init__(self, addresses: dict[int, str], family: int) -> None:
        self._found = addresses.get(family)

    def connect(self, _far: tuple[str, int]) -> None:
        if self._found is None:
            raise OSError(errno.ENETUNREACH, "Network is unreachable")

    def getsockname(self) -> tuple[str | None, int]:
        return self._found, 9

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("name", "addresses", "reached"),
    [
        ("10.0.0.7", {}, "10.0.0.7"),
        ("127.0.1.1", {socket.AF_INET: "10.0.0.7", socket.AF_INET6: "fd00::7"}, "10.0.0.7"),
        (None, {socket.AF_INET6: "fd00::7"}, "[fd00::7]"),
        (None, {}, "127.0.0.1"),
    ],
    ids=["by its name", "by its way out", "IPv6 alone", "nowhere"],
)
def test_a_host_is_reached_by_the_addresses_that_it_has(
    monkeypatch: pytest.MonkeyPatch, name: str | None, addresses: dict[int, str], reached: str
) -> None:
    def by_name(_host: str) -> str:
        if name is None:
            raise OSError("no address of that family")
        return name

    monkeypatch.setattr("gonogo.supervise.keeper.node_meeting.socket.gethostbyname", by_name)
    way = partial(Way, addresses)
    monkeypatch.setattr(
        "gonogo.supervise.keeper.node_meeting.socket.socket", lambda family, _kind: way(family)
    )
    assert own_address() == reached


def test_node_that_node_0_has_not_read_does_not_begin(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    first, other, second = meeting(here, 0), meeting(here, 1), meeting(there, 1)
    for row in (first, other, second):
        row.advance(0.0)
    first.advance(1.0)
    (there / MET_NAME).write_bytes((here / MET_NAME).read_bytes())  # of another node's nonce
    assert second.advance(2.0) is None
    with pytest.raises(NotMet, match="does node 0 see the same directory"):
        second.advance(10.0)


def test_who_is_missing_is_named(tmp_path: Path) -> None:
    first = meeting(tmp_path, 0)
    assert first.advance(0.0) is None
    with pytest.raises(NotMet, match="of node 1 nothing was read"):
        first.advance(10.0)


def test_a_node_whose_coming_was_written_and_refused_is_not_superseded_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is there, and the folder's own sync failed."""

    def refuse(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "no sync")

    second = meeting(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="no sync"):
            second.advance(0.0)
    assert meet_path(tmp_path, 1).exists()
    assert second.advance(1.0) is None


def test_node_comes_once_for_an_attempt_and_again_for_the_next(tmp_path: Path) -> None:
    meeting(tmp_path, 1).advance(0.0)
    for token in (5, 4):
        with pytest.raises(Superseded, match="began attempt token 5"):
            meeting(tmp_path, 1, token=token).advance(0.0)
    assert meeting(tmp_path, 1, token=6).advance(0.0) is None


@pytest.mark.parametrize("node", [0, 1])
def test_an_attempt_begins_nothing_after_a_newer_one(tmp_path: Path, node: int) -> None:
    meeting(tmp_path, 1 - node, token=7).advance(0.0)
    if node == 1:
        save_json(tmp_path / MET_NAME, {"token": 7, "nonces": {}, "rendezvous": "x:1"})
    with pytest.raises(Superseded, match=r"newer attempt.* token 7"):
        meeting(tmp_path, node).advance(0.0)


def test_old_meeting_lets_nobody_begin(tmp_path: Path) -> None:
    second = meeting(tmp_path, 1)
    save_json(
        tmp_path / MET_NAME,
        {"token": 4, "nonces": {"1": second.own.nonce}, "rendezvous": "old:1"},
    )
    assert second.advance(0.0) is None


def test_node_that_starts_nothing_says_why_to_the_others(tmp_path: Path) -> None:
    place = Place.of(ORDER, 1)
    save_refusal(tmp_path, ORDER, place, "preflight_failed", "infra", "disk: 1 MB free")
    first = meeting(tmp_path, 0)
    with pytest.raises(NotMet, match="starts nothing: disk: 1 MB free"):
        first.advance(0.0)
    assert not (tmp_path / "exit.json").exists(), "the run's end is node 0's to say"
    ended = load_json(tmp_path / "exit_node1.json")
    assert ended is not None
    assert ended["refused"]["reason"] == "preflight_failed"


@pytest.mark.parametrize("nodes", [1, 2])
def test_an_older_attempt_that_gives_up_ends_no_newer_one(tmp_path: Path, nodes: int) -> None:
    """Its directory was set aside, and the newer one's lies in its place."""
    older = {**ORDER, "nodes": nodes, "token": 4}
    save_json(tmp_path / "order.json", ORDER)
    save_refusal(tmp_path, older, Place.of(older, 0), "preflight_failed", "infra", "nobody came")
    assert [path.name for path in tmp_path.iterdir()] == ["order.json"]
    save_refusal(tmp_path, ORDER, Place.of(ORDER, 0), "preflight_failed", "infra", "nobody came")
    assert (tmp_path / "exit.json").exists()


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_an_older_attempt_waited_for_in_vain_begins_this_one(
    tmp_path: Path, node: int
) -> None:
    """Its keeper was cut off, and says it here when it is back."""
    place = Place.of(ORDER, 1 - node)
    save_node_end(tmp_path, {**ORDER, "token": 4}, place, refused={"text": "nobody came"})
    both = [meeting(tmp_path, 0), meeting(tmp_path, 1)]
    assert [one.advance(0.0) for one in both] == [None, None]
    assert [one.advance(1.0) for one in both] == ["10.0.0.1:29400"] * 2
