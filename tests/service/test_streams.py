"""Does every event stream end with its caller, however early he goes?"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import pytest

from service.http import streams
from service.http.auth import Role, create_key
from tests.service.conftest import Plane

FEW = 4


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control plane that begins now has room for few streams."""
    monkeypatch.setattr(streams, "MAX_STREAMS", FEW)


pytestmark = pytest.mark.usefixtures("few")


def status(plane: Plane, experiment: str, key: str | None = None) -> int:
    path = f"/experiments/{experiment}/events?follow=false"
    return plane.call("GET", path, key=key).status_code


def made_key(plane: Plane, name: str) -> str:
    now = plane.context.now()
    return plane.context.store.write(lambda session: create_key(session, name, Role.VIEWER, now))


@contextmanager
def opened(plane: Plane, experiment: str, keys: Iterable[str]) -> Iterator[list[int]]:
    """Open a stream with each key; yields what was answered."""
    url = f"/api/v1/experiments/{experiment}/events"
    with ExitStack() as stack:
        answers = [
            stack.enter_context(
                plane.http.stream("GET", url, headers={"Authorization": f"Bearer {key}"})
            )
            for key in keys
        ]
        yield [answer.status_code for answer in answers]


def test_who_asks_thrice_on_one_connection_and_goes_leaves_no_stream_open(plane: Plane) -> None:
    experiment = plane.submit()
    path = f"/api/v1/experiments/{experiment}/events"
    asked = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {plane.key()}\r\n\r\n"
    place = urlsplit(plane.context.url)
    for _ in range(5 * FEW):
        with socket.create_connection((place.hostname, place.port)) as caller:
            caller.sendall(asked.encode() * 3)
            time.sleep(0.005)
    plane.wait(lambda: status(plane, experiment) == 200, "room for a stream")


def test_no_more_streams_than_there_is_room_for(plane: Plane) -> None:
    experiment = plane.submit()
    keys = [made_key(plane, name) for name in ("a", "b")]
    with opened(plane, experiment, keys * (FEW // 2)) as answers:
        assert answers == [200] * FEW
        assert status(plane, experiment) == 429
    plane.wait(lambda: status(plane, experiment) == 200, "room for a stream")


def test_one_key_leaves_room_for_the_streams_of_others(plane: Plane) -> None:
    experiment = plane.submit()
    viewer = made_key(plane, "viewer")
    with opened(plane, experiment, [viewer] * FEW) as answers:
        assert answers == [200, 200, 429, 429]
        assert status(plane, experiment, viewer) == 429
        assert status(plane, experiment) == 200
    plane.wait(lambda: status(plane, experiment, viewer) == 200, "room for a stream")


def test_an_event_is_one_line_for_every_reader() -> None:
    """Some take U+2028 and its like for an end of line: half an event was no JSON to them."""
    told = {"text": "a\u2028b\x85c\x0bd é \ud800"}
    rows = streams.format_event("finding", told, 7).splitlines()
    assert [row.partition(":")[0] for row in rows] == ["id", "event", "data", ""]
    assert json.loads(rows[2].removeprefix("data: ")) == told
