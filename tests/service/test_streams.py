"""An event stream ends with its caller, and only so many are open."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import pytest

from service.http import streams
from tests.service.conftest import Plane

FEW = 4


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control plane that begins now has room for few streams."""
    monkeypatch.setattr(streams, "MAX_STREAMS", FEW)


pytestmark = pytest.mark.usefixtures("few")


def status(plane: Plane, experiment: str) -> int:
    return plane.call("GET", f"/experiments/{experiment}/events?follow=false").status_code


@contextmanager
def opened(plane: Plane, experiment: str, number: int) -> Iterator[list[int]]:
    """Open streams; yields their statuses."""
    url = f"/api/v1/experiments/{experiment}/events"
    with ExitStack() as stack:
        answers = [
            stack.enter_context(
                plane.http.stream("GET", url, headers={"Authorization": f"Bearer {plane.key()}"})
            )
            for _ in range(number)
        ]
        yield [answer.status_code for answer in answers]


def test_callers_that_leave_at_once_leave_no_stream_open(plane: Plane) -> None:
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
    with opened(plane, experiment, FEW) as answers:
        assert answers == [200] * FEW
        assert status(plane, experiment) == 429
    plane.wait(lambda: status(plane, experiment) == 200, "room for a stream")


def test_event_is_one_line_for_every_reader() -> None:
    """Some readers take U+2028 and its like for the end of a line."""
    data = {"text": "a\u2028b\x85c\x0bd é \ud800"}
    event = streams._message("finding", data, 7)
    assert event.raw_data is not None
    assert len(event.raw_data.splitlines()) == 1
    assert json.loads(event.raw_data) == data
