"""Who may call what? Every route, every role."""

from __future__ import annotations

import stat
from typing import Any

import pytest

from service.http.auth import Role, create_key, revoke_key
from tests.service.conftest import Plane

OPEN = ("/healthz", "/readyz", "/openapi.json")
ANY = "exp_00000000000000000000000000"
RUN = "run_00000000000000000000000000"
CALLS: tuple[tuple[str, str, Role], ...] = (
    ("GET", "/experiments", Role.VIEWER),
    ("GET", f"/experiments/{ANY}", Role.VIEWER),
    ("GET", f"/experiments/{ANY}/events", Role.VIEWER),
    ("GET", f"/runs/{RUN}/logs", Role.VIEWER),
    ("GET", f"/runs/{RUN}/artifacts/x", Role.VIEWER),
    ("GET", "/workers", Role.VIEWER),
    ("GET", "/alerts", Role.VIEWER),
    ("GET", "/find", Role.VIEWER),
    ("GET", "/events", Role.VIEWER),
    ("GET", "/schemas/plan", Role.VIEWER),
    ("POST", "/plans/validate", Role.VIEWER),
    ("POST", "/experiments", Role.OPERATOR),
    ("POST", f"/experiments/{ANY}/halt", Role.OPERATOR),
    ("POST", f"/experiments/{ANY}/decisions", Role.OPERATOR),
    ("POST", "/webhooks", Role.ADMIN),
    ("GET", "/webhooks", Role.ADMIN),
    ("POST", "/agent/claims", Role.WORKER),
    ("POST", f"/agent/runs/{RUN}/telemetry", Role.WORKER),
    ("POST", f"/agent/runs/{RUN}/state", Role.WORKER),
)
MAY = {
    Role.VIEWER: {Role.VIEWER},
    Role.OPERATOR: {Role.VIEWER, Role.OPERATOR},
    Role.ADMIN: {Role.VIEWER, Role.OPERATOR, Role.ADMIN, Role.WORKER},
    Role.WORKER: {Role.WORKER},
}


def new_key(plane: Plane, name: str, role: Role) -> str:
    return plane.context.store.write(lambda session: create_key(session, name, role, 1.0))


def test_each_role_reaches_its_own_calls_and_no_others(plane: Plane) -> None:
    wrong = []
    for role in Role:
        key = new_key(plane, f"test {role}", role)
        for method, path, needed in CALLS:
            status = plane.call(method, path, key=key, json={}).status_code
            if (status == 403) == (needed in MAY[role]) or status == 401:
                wrong.append((role, method, path, status))
    assert wrong == []


def test_every_call_below_api_needs_a_key(plane: Plane) -> None:
    paths: dict[str, dict[str, Any]] = plane.http.get("/openapi.json").json()["paths"]
    refused = 0
    for path, methods in paths.items():
        if not path.startswith("/api/"):
            continue
        for method in methods:
            answer = plane.http.request(method, path.replace("{", "").replace("}", ""))
            assert answer.status_code == 401, (method, path, answer.status_code)
            assert answer.headers["content-type"] == "application/problem+json"
            refused += 1
    assert refused > 25
    for path in OPEN:
        assert plane.http.get(path).status_code == 200


def test_a_revoked_or_unknown_key_is_no_key(plane: Plane) -> None:
    key = new_key(plane, "short", Role.VIEWER)
    assert plane.call("GET", "/workers", key=key).status_code == 200
    plane.context.store.write(lambda session: revoke_key(session, "short", 2.0))
    assert plane.call("GET", "/workers", key=key).status_code == 401
    assert plane.call("GET", "/workers", key="gonogo_guess").status_code == 401


@pytest.mark.parametrize("name", ["key", "worker_key"])
def test_local_keys_are_readable_by_their_owner_alone(plane: Plane, name: str) -> None:
    mode = stat.S_IMODE((plane.home / name).stat().st_mode)
    assert mode == 0o600
    from sqlalchemy import text

    def dump(session: Any) -> str:
        return str(session.execute(text("SELECT * FROM keys")).all())

    assert plane.key(name) not in plane.context.store.read(dump)
