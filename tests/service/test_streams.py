"""Does every event stream end with its caller, however early he goes?"""

from __future__ import annotations

import socket
import time
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
    headers = {"Authorization": f"Bearer {plane.key()}"}
    url = f"/api/v1/experiments/{experiment}/events"
    open_ones = [plane.http.build_request("GET", url, headers=headers) for _ in range(FEW)]
    answers = [plane.http.send(asked, stream=True) for asked in open_ones]
    try:
        assert [answer.status_code for answer in answers] == [200] * FEW
        assert status(plane, experiment) == 429
    finally:
        for answer in answers:
            answer.close()
    plane.wait(lambda: status(plane, experiment) == 200, "room for a stream")
