"""Does the short way of a route answer what the route answers, and leave it the rest?"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.app import SHORT_WAYS
from service.http.auth import Role
from service.http.short import ShortWays
from tests.service.conftest import Plane
from tests.service.test_auth import RUN, new_key

SUBMIT, TELL = "/api/v1/experiments", f"/api/v1/agent/runs/{RUN}/telemetry"
JSON = {"content-type": "application/json"}
ROUTE = {"params": {"way": "the route's"}}
"""A query is for the route itself."""


def ask(plane: Plane, path: str, body: bytes | str, **more: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {plane.key()}", **JSON, **more.pop("headers", {})}
    return plane.http.post(path, content=body, headers=headers, **more)


@pytest.mark.parametrize("path", [SUBMIT, TELL], ids=["submission", "telemetry"])
@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ("{", {}),
        ("[]", {}),
        ("null", {}),
        ("", {}),
        (b"\xff\xfe", {}),
        ("[" * 20_000, {}),
        ('{"plan": 7, "token": "x", "more": 1}', {}),
        ('{"plan": "none such", "token": 1}', {}),
        ('{"plan": "demo", "name": "a\\u0000b", "token": 1}', {}),
        ('{"plan": "demo", "name": "a\\ud800b", "token": 1, "ranks": []}', {}),
        ('{"plan": "demo", "token": 1}', {"content-type": "text/plain"}),
        ('{"plan": "demo", "token": 1}', {"Authorization": ""}),
        ('{"plan": "demo", "token": 1}', {"Authorization": "Bearer gonogo_guess"}),
        ('{"plan": "demo", "token": 1}', {"Authorization": "Basic YTpi"}),
        ('{"plan": "none such", "token": 1}', {"X-Gonogo-Claim": "x" * 201}),
        ('{"plan": "none such", "token": 1}', {"Idempotency-Key": "x" * 201}),
    ],
)
def test_both_ways_refuse_alike(
    plane: Plane, path: str, body: bytes | str, headers: dict[str, str]
) -> None:
    short, route = (ask(plane, path, body, headers=headers, **more) for more in ({}, ROUTE))
    assert short.status_code >= 400
    assert (short.status_code, short.json()) == (route.status_code, route.json())
    for name in ("content-type", "www-authenticate"):
        assert short.headers.get(name) == route.headers.get(name)


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("path", [SUBMIT, TELL], ids=["submission", "telemetry"])
def test_both_ways_ask_for_the_same_role(plane: Plane, path: str, role: Role) -> None:
    headers = {"Authorization": f"Bearer {new_key(plane, role.value, role)}"}
    body = '{"plan": "none such", "token": 1}'
    short, route = (ask(plane, path, body, headers=headers, **more) for more in ({}, ROUTE))
    assert (short.status_code, short.json()) == (route.status_code, route.json())


def test_both_ways_create_alike(plane: Plane) -> None:
    short, route = (ask(plane, SUBMIT, '{"plan": "demo"}', **more) for more in ({}, ROUTE))
    assert (short.status_code, route.status_code) == (201, 201)
    assert short.json().keys() == route.json().keys()
    for answer in (short, route):
        assert answer.headers["location"] == f"{SUBMIT}/{answer.json()['id']}"


def test_what_is_repeated_safely_creates_once(plane: Plane) -> None:
    made = [
        ask(plane, SUBMIT, '{"plan": "demo"}', headers={"Idempotency-Key": "k"}) for _ in range(2)
    ]
    assert made[0].json()["id"] == made[1].json()["id"]


def test_a_plain_request_does_not_reach_the_routes(plane: Plane) -> None:
    from starlette.testclient import TestClient

    reached = []

    async def routes(scope: Any, receive: Any, send: Any) -> None:
        reached.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    app = ShortWays(routes, plane.context, SHORT_WAYS, frozenset({b"idempotency-key"}))
    headers = {"Authorization": f"Bearer {plane.key()}", **JSON}
    client = TestClient(app)
    assert client.post(SUBMIT, content='{"plan": "demo"}', headers=headers).status_code == 201
    assert client.post(TELL, content='{"token": 1}', headers=headers).status_code == 404
    assert reached == []
    assert client.post(SUBMIT, content="{", headers=headers).status_code == 204
    assert reached == [b"{"], "the routes get the body whole"


def test_a_key_that_was_revoked_elsewhere_ends_at_once(plane: Plane) -> None:
    """Another process revokes it: this one has seen it living a moment ago."""
    from service.context import open_context
    from service.http.auth import revoke_key

    headers = {"Authorization": f"Bearer {new_key(plane, 'gone', Role.OPERATOR)}"}
    assert ask(plane, SUBMIT, '{"plan": "demo"}', headers=headers).status_code == 201
    assert ask(plane, SUBMIT, '{"plan": "demo"}', headers=headers).status_code == 201
    elsewhere = open_context(plane.context.settings)
    elsewhere.store.write(lambda session: revoke_key(session, "gone", 1.0))
    elsewhere.store.close()
    for body in ('{"plan": "demo"}', '{"plan": "none such"}'):
        assert ask(plane, SUBMIT, body, headers=headers).status_code == 401


def test_nothing_is_made_of_a_stranger_s_request(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service.http import short

    made: list[object] = []
    monkeypatch.setattr(short, "_prepare", lambda *said: made.append(said))
    headers = {"Authorization": "Bearer gonogo_guess"}
    assert ask(plane, SUBMIT, '{"plan": "demo"}', headers=headers).status_code == 401
    assert made == []
