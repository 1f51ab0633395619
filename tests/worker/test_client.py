"""Does the thin client say in the contract's errors what went wrong, and never its key?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gonogo.contract.errors import (
    Conflict,
    GonogoError,
    NotAllowed,
    NotFound,
    Rejected,
    Unavailable,
)
from gonogo.contract.worker_messages import FindingsReport, RecordReport, Telemetry
from worker.client import ControlPlane, Intercepted, KeyRefused

SECRET = "wk_very_secret"


def plane(answer: Callable[[httpx.Request], httpx.Response]) -> ControlPlane:
    return ControlPlane("http://control/", SECRET, transport=httpx.MockTransport(answer))


def problem_of(status: int) -> dict[str, Any]:
    """A problem as the service sends it."""
    kind = "urn:gonogo:problem:conflict"
    return {"type": kind, "title": "no", "status": status, "detail": "past", "code": "conflict"}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, Rejected), (401, KeyRefused), (403, NotAllowed), (404, NotFound), (409, Conflict),
        (413, Rejected), (422, Rejected), (429, Unavailable), (503, Unavailable),
        (302, Unavailable),
    ],
)  # fmt: skip
def test_a_status_is_an_error_of_the_contract(status: int, expected: type[GonogoError]) -> None:
    client = plane(lambda request: httpx.Response(status, json=problem_of(status)))
    with pytest.raises(GonogoError) as caught:
        client.post_telemetry("run_1", Telemetry(token=1))
    assert type(caught.value) is expected
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("status", [401, 403, 404, 407, 409])
@pytest.mark.parametrize("kind", [None, "about:blank"])
def test_a_strangers_refusal_is_an_outage(status: int, kind: str | None) -> None:
    stale = {**problem_of(status), "code": "stale_token", "token": 9, "type": kind}
    answer: dict[str, Any] = {"text": "<html>"} if kind is None else {"json": stale}
    client = plane(lambda request: httpx.Response(status, **answer))
    with pytest.raises(Intercepted, match="no answer of the control plane's") as caught:
        client.post_telemetry("run_1", Telemetry(token=1))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "error", [httpx.ConnectError, httpx.ReadTimeout, httpx.RemoteProtocolError]
)
def test_network_errors_are_unavailable(error: type[httpx.TransportError]) -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise error("broken", request=request)

    with pytest.raises(Unavailable) as caught:
        plane(fail).post_telemetry("run_1", Telemetry(token=1))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("text", ["welcome to the hotel's wifi", "[]", ""])
def test_a_strangers_answer_is_unavailable(text: str) -> None:
    """An accepted report is never sent again: findings, evidence, an end."""
    client = plane(lambda request: httpx.Response(200, text=text))
    report = RecordReport(token=1, path="order.json", content_b64="")
    for call in (
        lambda: client.post_telemetry("run_1", Telemetry(token=1)),
        lambda: client.post_findings("run_1", FindingsReport(token=1, findings=[])),
        lambda: client.post_record("run_1", report),
    ):
        with pytest.raises(Unavailable):
            call()


@pytest.mark.parametrize("there", ["nobody", "another home's"])
def test_after_a_failure_the_present_address_is_used(there: str) -> None:
    hosts: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        if request.url.host == "login2":
            return httpx.Response(200, json={"acked": {}})
        if there == "nobody":
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(401, json=problem_of(401))

    transport = httpx.MockTransport(answer)
    client = ControlPlane(
        "http://login1:8750", SECRET, find_url=lambda: "http://login2:8750/", transport=transport
    )
    with pytest.raises((Unavailable, KeyRefused)):
        client.post_telemetry("run_1", Telemetry(token=1))
    client.post_telemetry("run_1", Telemetry(token=1))
    assert hosts == ["login1", "login2"]


def test_after_a_refused_key_the_present_key_is_used() -> None:
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["Authorization"])
        if keys[-1] == "Bearer renewed":
            return httpx.Response(200, json={"acked": {}})
        return httpx.Response(401, json=problem_of(401))

    found = iter([None, "renewed"])
    client = ControlPlane(
        "http://c:8750", SECRET, find_key=lambda: next(found), transport=httpx.MockTransport(answer)
    )
    for _ in range(2):
        with pytest.raises(KeyRefused):
            client.post_telemetry("run_1", Telemetry(token=1))
    client.post_telemetry("run_1", Telemetry(token=1))
    assert keys == [f"Bearer {SECRET}", f"Bearer {SECRET}", "Bearer renewed"]
