"""Watching follows the stream of events, and looks by itself where there is none."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import pytest

from gonogo.cli.client import Client
from gonogo.cli.reach.following import EventStream
from gonogo.cli.watching import LOOK_EVERY_S, Follower, advance
from tests.cli.conftest import Gonogo
from tests.service.conftest import Plane
from tests.service.fake_worker import beats


class Counting(httpx.HTTPTransport):
    """Counts the requests by the end of their path."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.seen[request.url.path.rsplit("/", 1)[-1]] += 1
        return super().handle_request(request)


@pytest.fixture
def transport() -> Counting:
    return Counting()


@pytest.fixture
def client(plane: Plane, transport: Counting) -> Iterator[Client]:
    with Client(plane.context.url, plane.key(), transport=transport) as found:
        yield found


def connected(stream: EventStream) -> None:
    deadline = time.monotonic() + 120
    while not stream.wait(0.1).connected:
        assert time.monotonic() < deadline, "the stream did not open"


def test_what_happens_wakes_who_waits(plane: Plane, client: Client) -> None:
    experiment = plane.submit()
    with EventStream(client, experiment) as stream:
        connected(stream)
        stream.wait(1.0)
        plane.call("POST", f"/experiments/{experiment}/cancel", json={"reason": ""})
        deadline = time.monotonic() + 120
        while not (heard := stream.wait(5.0)).events:
            assert time.monotonic() < deadline
        assert heard.connected


def test_the_numbers_of_the_run_come_with_the_stream(plane: Plane, client: Client) -> None:
    experiment = plane.submit()
    worker = plane.worker(devices=("cpu:0", "cpu:1"))
    order = plane.next_order(worker)
    worker.start(order)
    with Follower(client, experiment) as follower:
        worker.ship(order, {rank: beats(order, rank, upto=1) for rank in range(order.world_size)})
        deadline = time.monotonic() + 120
        while (run := follower.next().run) is None or run.step < 1:
            assert time.monotonic() < deadline
        assert run.loss == pytest.approx(5.5)


def test_an_idle_experiment_is_not_asked_for_again_and_again(
    plane: Plane, client: Client, transport: Counting
) -> None:
    experiment = plane.submit()
    with Follower(client, experiment) as follower:
        connected(follower._stream)
        follower.next()
        transport.seen.clear()
        began = time.monotonic()
        glances = [follower.next() for _ in range(4)]
        looks = 1 + (time.monotonic() - began) // LOOK_EVERY_S
        assert transport.seen[experiment] <= looks
        assert transport.seen["events"] == 0
    assert glances[-1].now > glances[0].now


def test_where_there_is_no_stream_the_watcher_looks_by_itself(plane: Plane) -> None:
    experiment = plane.submit()
    real = httpx.HTTPTransport()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            return httpx.Response(429, json={"detail": "too many"})
        return real.handle_request(request)

    with Client(plane.context.url, plane.key(), transport=httpx.MockTransport(answer)) as client:
        with Follower(client, experiment) as follower:
            plane.call("POST", f"/experiments/{experiment}/cancel", json={"reason": ""})
            deadline = time.monotonic() + 120
            while not follower.next().done:
                assert time.monotonic() < deadline
    real.close()


def test_closing_ends_the_thread_in_the_middle_of_a_read(plane: Plane, client: Client) -> None:
    with EventStream(client, plane.submit()) as stream:
        connected(stream)
        thread = stream._thread
    assert not thread.is_alive()
    assert thread not in threading.enumerate()


def test_numbers_of_another_run_change_nothing(plane: Plane, client: Client) -> None:
    follower = Follower(client, plane.submit())
    now = datetime.now(UTC)
    assert follower.glance.run is not None
    told = advance(follower.glance, {"run": "run_other", "step": 7}, now)
    assert (told.run, told.now) == (follower.glance.run, now)


def test_watch_ends_with_the_experiment(plane: Plane, gonogo: Gonogo) -> None:
    experiment = plane.submit(name="mine")
    stop = threading.Timer(
        1.0, lambda: plane.call("POST", f"/experiments/{experiment}/cancel", json={})
    )
    stop.start()
    said = gonogo("watch", "mine")
    stop.join()
    assert said.code == 13
    assert "finished" in said.out
