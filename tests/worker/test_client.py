"""Does the thin client say in the contract's errors what went wrong, and never its key?"""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from gonogo.contract.agent import Telemetry
from gonogo.contract.errors import (
    Conflict,
    GonogoError,
    NotAllowed,
    NotFound,
    Rejected,
    Unavailable,
)
from worker.client import ControlPlane, KeyRefused

SECRET = "wk_very_secret"


def plane(answer: Callable[[httpx.Request], httpx.Response]) -> ControlPlane:
    return ControlPlane("http://control/", SECRET, transport=httpx.MockTransport(answer))


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, Rejected),
        (401, KeyRefused),
        (403, NotAllowed),
        (404, NotFound),
        (409, Conflict),
        (422, Rejected),
        (429, Unavailable),
        (500, Unavailable),
        (503, Unavailable),
        (302, Unavailable),
    ],
)
def test_a_status_is_an_error_of_the_contract(status: int, expected: type[GonogoError]) -> None:
    client = plane(lambda request: httpx.Response(status, text="<html>"))
    with pytest.raises(GonogoError) as caught:
        client.post_telemetry("run_1", Telemetry(token=1))
    assert type(caught.value) is expected
    assert SECRET not in str(caught.value)


def test_a_conflict_carries_state_and_what_is_allowed() -> None:
    problem = {"title": "no", "status": 409, "detail": "past", "code": "conflict"}
    problem |= {"state": "running", "allowed": ["halt", "end"]}
    client = plane(lambda request: httpx.Response(409, json=problem))
    with pytest.raises(Conflict) as caught:
        client.post_telemetry("run_1", Telemetry(token=1))
    assert (caught.value.state, caught.value.allowed) == ("running", ("halt", "end"))


@pytest.mark.parametrize(
    "error", [httpx.ConnectError, httpx.ReadTimeout, httpx.RemoteProtocolError]
)
def test_a_network_that_fails_is_unavailable(error: type[httpx.TransportError]) -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise error("broken", request=request)

    with pytest.raises(Unavailable) as caught:
        plane(fail).post_telemetry("run_1", Telemetry(token=1))
    assert SECRET not in str(caught.value)


def test_an_answer_from_something_else_is_unavailable_not_data() -> None:
    client = plane(lambda request: httpx.Response(200, text="welcome to the hotel's wifi"))
    with pytest.raises(Unavailable):
        client.post_telemetry("run_1", Telemetry(token=1))


def test_the_call_goes_to_the_agent_route_with_the_key() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"acked": {"0": 7}})

    ack = plane(answer).post_telemetry("run_1", Telemetry(token=1))
    assert ack.acked == {"0": 7}
    assert str(seen[0].url) == "http://control/api/v1/agent/runs/run_1/telemetry"
    assert seen[0].headers["Authorization"] == f"Bearer {SECRET}"
