"""Bounds on the body and on the texts of a request."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from service.http.limits import BODY_BYTES, limit_of
from tests.service.conftest import Plane

RUN = "run_00000000000000000000000000"


def drip(size: int) -> Iterator[bytes]:
    """Yield a body without saying how long it is."""
    for _ in range(size // 4096):
        yield b" " * 4096


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        ("/api/v1/experiments", BODY_BYTES),
        (f"/api/v1/agent/runs/{RUN}/state", BODY_BYTES),
        (f"/api/v1/agent/runs/{RUN}/telemetry", 16 * 2**20),
        (f"/api/v1/agent/runs/{RUN}/evidence", 70 * 2**20),
        ("/api/v1/experiments/evidence", BODY_BYTES),
    ],
)
def test_a_route_has_a_limit(path: str, limit: int) -> None:
    assert limit_of(path) == limit


def test_nothing_is_read_of_a_body_that_is_too_long(plane: Plane) -> None:
    """The answer comes although not one byte of the body was sent."""
    address = urlsplit(str(plane.http.base_url))
    head = (
        f"POST /api/v1/experiments HTTP/1.1\r\nHost: x\r\nContent-Length: {BODY_BYTES + 1}\r\n"
        f"Authorization: Bearer {plane.key()}\r\nContent-Type: application/json\r\n\r\n"
    )
    with socket.create_connection((str(address.hostname), address.port or 80), 20) as link:
        link.sendall(head.encode())
        answer = link.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413"), answer


def test_a_body_of_unsaid_length_ends_at_the_limit(plane: Plane) -> None:
    known = plane.call("POST", "/experiments", content=drip(2 * BODY_BYTES))
    assert known.status_code == 413
    unknown = plane.http.post("/api/v1/experiments", content=drip(2 * BODY_BYTES))
    assert unknown.status_code == 413
    assert unknown.json()["code"] == "too_large"
    said = {"Content-Type": "application/json"}
    body = iter([b'{"plan": "de', b'mo"}'])
    within = plane.call("POST", "/experiments", content=body, headers=said)
    assert within.status_code == 201, within.text


def test_a_deeply_nested_submission_is_refused_with_a_sentence(plane: Plane) -> None:
    deep: object = 1
    for _ in range(200):
        deep = {"a": deep}
    answer = plane.call("POST", "/experiments", json={"plan": "demo", "set": {"x": deep}})
    assert answer.status_code == 422
    assert "nested deeper" in answer.text
    deeper = '{"plan":' + '{"a":' * 50_000 + "1" + "}" * 50_001
    assert plane.call("POST", "/experiments", content=deeper).status_code in (400, 422)


@pytest.mark.parametrize(
    "body",
    [
        {"plan": "demo", "labels": {"k": "x" * 501}},
        {"plan": "demo", "labels": {"k" * 64: "x"}},
        {"plan": "demo", "labels": {str(n): "x" for n in range(65)}},
        {"plan": "demo", "name": "x" * 201},
    ],
    ids=["value", "key", "count", "name"],
)
def test_texts_are_bounded(plane: Plane, body: dict[str, object]) -> None:
    assert plane.call("POST", "/experiments", json=body).status_code == 422
    experiment = plane.submit()
    said = {"reason": "x" * 4001}
    assert plane.call("POST", f"/experiments/{experiment}/halt", json=said).status_code == 422


def test_a_defect_of_ours_is_a_problem_document_with_an_id(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(work: object) -> None:
        raise ZeroDivisionError("secret detail")

    key = plane.key()
    monkeypatch.setattr(type(plane.context.store), "read", lambda self, work: fail(work))
    answer = plane.call("GET", "/experiments", key=key)
    assert answer.status_code == 500
    problem = json.loads(answer.text)
    assert problem["code"] == "internal"
    assert answer.headers["X-Request-Id"] in problem["detail"]
    assert "secret detail" not in answer.text
