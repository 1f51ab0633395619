"""Every route that is served × every caller × every owner.

The application lists the routes, pages included. A new route fails here until the table names who
may call it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import httpx
import pytest
from fastapi.routing import iter_route_contexts
from sqlalchemy import text

from gonogo.contract.order import Order
from service.app import create_app
from service.db.columns import Table
from service.http.auth import Role, hash_key, revoke_key
from tests.service.conftest import Plane
from tests.service.fake_worker import FakeWorker
from tests.service.test_auth import CALLS, MAY, new_key

OPEN = {
    "GET /healthz",
    "GET /readyz",
    "GET /openapi.json",
    "HEAD /openapi.json",
    "GET /metrics",
    "GET /sd/prometheus",
    "GET /sign-in",
    "POST /sign-in",
    "POST /sign-out",
    "GET /static/{name}",
}
PAGES = {
    "GET /",
    "GET /experiments/{experiment}",
    "GET /experiments/{experiment}/report",
    "GET /campaigns",
    "GET /campaigns/{campaign}",
    "GET /runs/{run}/logs/{name}",
    "GET /runs/{run}/artifacts",
    "GET /runs/{run}/artifacts/{path:path}",
    "GET /workers",
    "GET /alerts",
}
"""What a session opens, and no key."""
UNTYPED = {
    call.replace("{path}", "{path:path}"): call for calls in CALLS.values() for call in calls
}
WEBHOOK_PATH = "token-in-the-address"
BODIES = {
    "telemetry": {"logs": [{"name": "torchrun.log", "start": 0, "end": 3, "text": "ill"}]},
    "state": {"event": "check", "at": 1.0},
    "findings": {
        "findings": [{"detector": "x", "severity": "halt", "at": 1.0, "key": "k", "text": "t"}]
    },
    "evidence": {"path": "stolen.txt", "content_b64": "aWxs"},
    "records": {"path": "order.json", "content_b64": "e30="},
}
"""Worker-facing call about a run, by its end → a body that would change something."""


def served(plane: Plane) -> list[str]:
    app = create_app(plane.context, conduct=False)
    return sorted(
        f"{method} {route.path}"
        for route in iter_route_contexts(app.routes)
        for method in route.methods or ()
    )


def needed(call: str) -> Role | None:
    """Return the role that a call below /api/v1 needs; None: it needs none, or is not listed."""
    method, below, rest = call.partition(" /api/v1")
    short = UNTYPED.get(f"{method} {rest}") if below else None
    return next((role for role, calls in CALLS.items() if short in calls), None)


@dataclass
class Site:
    """A control plane with things of several owners in it."""

    plane: Plane
    owner: FakeWorker
    other: FakeWorker
    own: Order
    """The order of `owner`."""
    others: Order
    """The order of `other`."""
    waiting: str
    """A queued run."""
    webhook: str
    secrets: dict[str, str] = field(default_factory=dict)
    """What nobody may read → what it is."""

    def path(self, call: str, run: str) -> str:
        known = {
            "experiment": self.own.experiment,
            "run": run,
            "webhook": self.webhook,
            "campaign": "cmp_00000000000000000000000000",
            "decision": "dec_00000000000000000000000000",
            "picture": "loss",
            "path": "order.json",
        }
        names = {"plans": "demo", "schemas": "plan", "logs": "torchrun.log", "static": "style.css"}
        path = call.partition(" ")[2]
        for folder, name in names.items():
            path = path.replace(f"/{folder}/{{name}}", f"/{folder}/{name}")
        path = re.sub(r"\{(\w+)(?::path)?\}", lambda found: known[found[1]], path)
        return path + ("?follow=false" if path.endswith("/events") else "")

    def ask(
        self, call: str, key: str | None, *, run: str | None = None, **more: Any
    ) -> httpx.Response:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        path = self.path(call, run or self.own.run)
        metric = {"params": {"metric": "loss"}} if path.endswith("/series") else {}
        return self.plane.http.request(
            call.partition(" ")[0], path, headers={**headers, **more.pop("headers", {})},
            follow_redirects=False, **metric, **more,
        )  # fmt: skip

    def everything(self) -> dict[str, list[str]]:
        """Return every row of every table."""

        def dump(session: Any) -> dict[str, list[str]]:
            return {
                table.name: sorted(map(str, session.execute(text(f"SELECT * FROM {table.name}"))))
                for table in Table.metadata.sorted_tables
            }

        found: dict[str, list[str]] = self.plane.context.store.read(dump)
        return found


@pytest.fixture
def site(still: Plane) -> Site:
    for _ in range(3):
        still.submit(set={"workload.world_size": 1})
    owner, other = still.worker("w1"), still.worker("w2", host="host-2")
    own, others = owner.claim(), other.claim()
    assert own is not None
    assert others is not None
    for worker, order in ((owner, own), (other, others)):
        worker.start(order)
        logs = [{"name": "torchrun.log", "start": 0, "end": 5, "text": "well\n"}]
        assert worker.telemetry(order, logs=logs).status_code == 200
        record = {"token": order.token, "path": "order.json", "content_b64": "e30="}
        assert worker.post(f"/runs/{order.run}/records", record).status_code == 200
    made = still.call("POST", "/webhooks", json={"url": f"http://127.0.0.1:9/{WEBHOOK_PATH}"})
    experiments = still.get("/experiments")["items"]
    (waiting,) = (row["phases"][0]["runs"][0] for row in experiments if row["state"] == "queued")
    return Site(
        plane=still,
        owner=owner,
        other=other,
        own=own,
        others=others,
        waiting=waiting,
        webhook=made.json()["id"],
        secrets={
            "a worker's key": owner.key,
            "an admin's key": still.key(),
            "a key's hash": hash_key(owner.key),
            "a claim's secret": owner.secrets[own.run],
            "its hash": hash_key(owner.secrets[own.run]),
            "a webhook's secret": made.json()["secret"],
            "a webhook's address": WEBHOOK_PATH,
        },
    )


def test_every_route_is_in_the_table_of_roles(still: Plane) -> None:
    calls = served(still)
    assert len(calls) > 60
    assert len(calls) == len(set(calls)), "a route that another one hides"
    below = {call for call in calls if " /api/" in call}
    assert {call for call in below if needed(call) is None} == set()
    assert set(calls) - below == OPEN | PAGES
    about_runs = {call.rpartition("/")[2] for call in below if "/agent/runs/{run}/" in call}
    assert about_runs == set(BODIES)


def test_refused_callers_have_changed_nothing(site: Site) -> None:
    revoked = new_key(site.plane, "gone", Role.ADMIN)
    site.plane.context.store.write(lambda session: revoke_key(session, "gone", 2.0))
    keys = {role: new_key(site.plane, f"test {role}", role) for role in Role}
    session = site.plane.call("POST", "/sign-in-links").json()["url"]
    browser = httpx.Client(base_url=site.plane.context.url, timeout=180, trust_env=False)
    assert browser.get(session, follow_redirects=True).status_code == 200
    before = site.everything()
    wrong: list[object] = []
    for call in served(site.plane):
        role = needed(call)
        if role is None:
            continue
        for name, key in (("none", None), ("junk", "gonogo_junk"), ("revoked", revoked)):
            status = site.ask(call, key, json={}).status_code
            wrong += [] if status == 401 else [(call, name, status)]
        path = site.path(call, site.own.run)
        status = browser.request(call.partition(" ")[0], path, json={}).status_code
        wrong += [] if status == 401 else [(call, "a session", status)]
        for has, key in keys.items():
            if role not in MAY[has]:
                status = site.ask(call, key, json={}).status_code
                wrong += [] if status == 403 else [(call, has, status)]
    browser.close()
    assert wrong == []
    assert site.everything() == before


def test_a_page_opens_to_a_session_alone_and_to_no_key(site: Site) -> None:
    key = new_key(site.plane, "viewer", Role.VIEWER)
    worker = new_key(site.plane, "w9", Role.WORKER)
    assert site.plane.http.post("/sign-in", data={"key": worker}).status_code == 403
    for call in sorted(PAGES):
        for given in (None, key, site.plane.key(), worker):
            answer = site.ask(call, given)
            assert answer.status_code == 303, call
            assert answer.headers["location"].startswith("/sign-in?next=%2F"), call
    assert site.plane.http.post("/sign-in", data={"key": key}).status_code == 303
    opened = {call: site.ask(call, None).status_code for call in sorted(PAGES)}
    not_there = {call for call, status in opened.items() if status == 404}
    assert not_there == {"GET /campaigns/{campaign}", "GET /runs/{run}/artifacts/{path:path}"}
    assert {status for call, status in opened.items() if call not in not_there} == {200}


def test_no_workers_key_reaches_a_run_that_is_not_its_own(site: Site) -> None:
    """It knows the run and its token, and has living secrets of its own."""
    foreign = (
        (site.others.run, site.others.token, {403}),
        (site.waiting, 0, {403, 409}),
        ("run_00000000000000000000000000", 1, {404}),
    )
    secrets = (
        {},
        *({"X-Gonogo-Claim": said} for said in ("0" * 32, site.owner.secrets[site.own.run])),
    )
    before = site.everything()
    for (run, token, expected), headers, end in product(foreign, secrets, BODIES):
        call = f"POST /api/v1/agent/runs/{{run}}/{end}"
        for number in (token, token + 1, 2**40):
            given = {"token": number, **BODIES[end]}
            answer = site.ask(call, site.owner.key, run=run, json=given, headers=headers)
            assert answer.status_code in expected, (run, end, number, answer.text)
    assert site.everything() == before


def test_its_owner_reaches_a_run_by_the_same_calls(site: Site) -> None:
    """The bodies above would change something."""
    for end, body in BODIES.items():
        before = site.everything()
        path = f"/runs/{site.own.run}/{end}"
        if end == "state":
            body = {"event": "step", "at": 1.0, "dir": "/tmp/elsewhere"}
        answer = site.owner.post(path, {"token": site.own.token, **body})
        assert answer.status_code == 200, answer.text
        assert end in ("state", "records") or site.everything() != before, end


def test_no_answer_holds_a_secret(site: Site) -> None:
    """Not even an administrator reads a key, or a secret again."""
    readers = {
        "nobody": None,
        "a viewer": new_key(site.plane, "viewer", Role.VIEWER),
        "an operator": new_key(site.plane, "operator", Role.OPERATOR),
        "a worker": site.other.key,
        "an admin": site.plane.key(),
    }
    assert site.plane.http.post("/sign-in", data={"key": readers["a viewer"]}).status_code == 303
    read = 0
    for call in served(site.plane):
        if not call.startswith("GET"):
            continue
        for who, key in readers.items():
            answer = site.ask(call, key)
            read += answer.status_code == 200
            for what, secret in site.secrets.items():
                shown = what == "a webhook's address" and who == "an admin"
                assert shown or secret not in answer.text + str(answer.headers), (call, who, what)
    assert read > 100
