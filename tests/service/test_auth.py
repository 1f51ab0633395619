"""The roles of keys, and the key files of a home; `test_reach` tries every route."""

from __future__ import annotations

import re
import stat
from functools import partial
from typing import Any

import pytest

from service.http.auth import Role, create_key, find_principal, load_local_keys
from tests.service.conftest import Plane

ANY = "exp_00000000000000000000000000"
RUN = "run_00000000000000000000000000"
EXPERIMENT, ONE_RUN = "/experiments/{experiment}", "/runs/{run}"
CALLS: dict[Role, tuple[str, ...]] = {
    Role.VIEWER: (
        "GET /experiments",
        *(
            f"GET {EXPERIMENT}{rest}"
            for rest in (
                *("", "/decisions", "/forecast", "/events", "/report", "/report/{picture}.svg"),
                "/goodput",
            )
        ),
        "GET /campaigns",
        "GET /campaigns/{campaign}",
        *(
            f"GET {ONE_RUN}{rest}"
            for rest in (
                *("", "/heartbeats", "/series", "/near", "/findings", "/logs", "/artifacts"),
                *("/artifacts/{path}",),
            )
        ),
        "GET /decisions/{decision}",
        "GET /plans",
        "GET /plans/{name}",
        "POST /plans/validate",
        "GET /schemas/{name}",
        *(f"GET /{name}" for name in ("workers", "events", "alerts", "find")),
    ),
    Role.OPERATOR: (
        "POST /experiments",
        "POST /experiments/preview",
        *(
            f"POST {EXPERIMENT}/{verb}"
            for verb in (
                *("halt", "cancel", "resume", "promote", "rerun", "takeover", "decisions"),
            )
        ),
        "POST /campaigns",
        "POST /campaigns/{campaign}/cancel",
    ),
    Role.ADMIN: (
        "POST /webhooks",
        "GET /webhooks",
        "DELETE /webhooks/{webhook}",
        "POST /webhooks/{webhook}/test",
        "POST /sign-in-links",
    ),
    Role.WORKER: (
        "POST /agent/claims",
        *(
            f"POST /agent{ONE_RUN}/{part}"
            for part in ("telemetry", "state", "findings", "evidence", "records")
        ),
    ),
}
"""Role → every call that asks for it; a route that is not here fails the test below."""
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
        for needed, calls in CALLS.items():
            for call in calls:
                method, _, path = call.partition(" ")
                path = re.sub(r"\{\w+\}", "x", path.replace("{experiment}", ANY))
                path = path.replace("/runs/x", f"/runs/{RUN}")
                status = plane.call(method, path, key=key, json={}).status_code
                if (status == 403) == (needed in MAY[role]) or status == 401:
                    wrong.append((role, call, status))
    assert wrong == []


def test_the_database_is_readable_by_its_owner_alone(still: Plane) -> None:
    """It holds the webhook secrets and the output of the runs."""
    still.submit()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in still.home.glob("*.db*")}
    assert set(modes.values()) <= {0o600}, modes


@pytest.mark.parametrize("left", [b"", bytes(51), b"gonogo_\xff\xfe"], ids=["none", "0", "junk"])
@pytest.mark.parametrize("name", ["key", "worker_key"])
def test_unusable_key_file_gets_a_new_key(plane: Plane, name: str, left: bytes) -> None:
    path = plane.home / name
    former = plane.key(name)
    path.write_bytes(left)
    load_local_keys(plane.context)
    find = partial(find_principal, key=plane.key(name))
    assert plane.context.store.read(find) is not None
    assert plane.key(name).startswith("gonogo_")
    assert plane.context.store.read(partial(find_principal, key=former)) is None


@pytest.mark.parametrize("name", ["key", "worker_key"])
def test_local_keys_are_readable_by_their_owner_alone(plane: Plane, name: str) -> None:
    mode = stat.S_IMODE((plane.home / name).stat().st_mode)
    assert mode == 0o600
    from sqlalchemy import text

    def dump(session: Any) -> str:
        return str(session.execute(text("SELECT * FROM keys")).all())

    assert plane.key(name) not in plane.context.store.read(dump)
