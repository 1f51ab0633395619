"""Bounds and streams of the service, and the sessions of its routes."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx
import pytest
from anyio.to_thread import current_default_thread_limiter
from sqlalchemy import text
from sqlalchemy.orm import Session

from service.app import create_app
from service.context import Context, open_context
from service.db.store import migrate
from service.http.answers import BODY_BYTES, limit_of
from service.http.auth import load_local_keys
from service.rest.experiments import _message
from service.settings import Settings
from tests.service.conftest import Plane

RUN = "run_00000000000000000000000000"
THREADS = 16
"""As many as SQLite's pool has connections, and one: as on PostgreSQL, where both are 40."""
AT_ONCE = 60


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


def test_texts_are_bounded(still: Plane) -> None:
    bodies: list[dict[str, object]] = [
        {"labels": {"k": "x" * 501}},
        {"labels": {"k" * 64: "x"}},
        {"labels": {str(n): "x" for n in range(65)}},
        {"name": "x" * 201},
    ]
    for body in bodies:
        assert still.call("POST", "/experiments", json={"plan": "demo", **body}).status_code == 422
    said = {"reason": "x" * 4001}
    path = f"/experiments/{still.submit()}/halt"
    assert still.call("POST", path, json=said).status_code == 422


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


@pytest.mark.parametrize(("free_mb", "is_told"), [(63, True), (64, False)])
def test_a_service_that_is_ready_says_when_it_has_little_room(
    still: Plane, monkeypatch: pytest.MonkeyPatch, *, free_mb: int, is_told: bool
) -> None:
    """Submissions are refused on a full disk, while the smallest writes may be taken."""
    usage = SimpleNamespace(free=free_mb * 2**20)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    answer = still.http.get("/readyz")
    assert answer.status_code == 200
    told = {"room": "low: 63 MB are free where the service writes"} if is_told else {}
    assert answer.json() == {"status": "ready", **told}


def test_a_service_on_a_database_without_our_tables_is_not_ready(still: Plane) -> None:
    """A fail-over may lead to an empty one: it answers, and every other call fails."""
    assert still.http.get("/readyz").status_code == 200
    move = text("ALTER TABLE alembic_version RENAME TO gone")
    still.context.store.write(lambda session: session.execute(move) and None)
    answer = still.http.get("/readyz")
    assert answer.status_code == 503, answer.text


def test_event_is_one_line_for_every_reader() -> None:
    """Some readers take U+2028 and its like for the end of a line."""
    data = {"text": "a\u2028b\x85c\x0bd é \ud800"}
    event = _message("finding", data, 7)
    assert event.raw_data is not None
    assert len(event.raw_data.splitlines()) == 1
    assert json.loads(event.raw_data) == data


@pytest.fixture
def context(tmp_path: Path) -> Context:
    settings = Settings(home=tmp_path, database_url=f"sqlite:///{tmp_path}/gonogo.db")
    migrate(settings.database_url)
    opened = open_context(settings)
    load_local_keys(opened)
    return opened


def caller(context: Context) -> httpx.AsyncClient:
    """A client inside the event loop of an application with few threads."""
    current_default_thread_limiter().total_tokens = THREADS
    key = (context.settings.home / "key").read_text().strip()
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(context, conduct=False)),
        base_url="http://here",
        headers={"Authorization": f"Bearer {key}"},
    )


@pytest.mark.parametrize("goodbye", [False, True], ids=["sqlite", "closed as on postgres"])
def test_more_readers_than_threads_and_connections_all_get_their_answer(
    context: Context, goodbye: bool
) -> None:
    """Kept over a change of threads, connections would be waited for by all who could free them."""
    context.store.sqlite = not goodbye

    async def ask_at_once() -> list[int]:
        async with caller(context) as http:
            asked = [http.get("/api/v1/workers") for _ in range(AT_ONCE)]
            answers = await asyncio.wait_for(asyncio.gather(*asked), 10.0)
            return [answer.status_code for answer in answers]

    try:
        assert asyncio.run(ask_at_once()) == [200] * AT_ONCE
    finally:
        context.store.sqlite = True
        context.store.close()


def test_health_answers_while_the_writer_hangs_and_every_thread_waits_for_it(
    context: Context,
) -> None:
    """A supervisor that restarts an unresponsive service would make a full disk worse."""
    hold, held = threading.Event(), threading.Event()

    def hang(session: Session) -> None:
        held.set()
        assert hold.wait(120)

    async def ask() -> tuple[int, list[int]]:
        async with caller(context) as http:
            hooks = [{"url": f"http://192.0.2.1/{n}", "types": []} for n in range(AT_ONCE)]
            asked = [asyncio.create_task(http.post("/api/v1/webhooks", json=h)) for h in hooks]
            while context.store.waiting < THREADS:
                await asyncio.sleep(0.01)
            health = await asyncio.wait_for(http.get("/healthz"), 60.0)
            assert not any(task.done() for task in asked)
            hold.set()
            return health.status_code, [
                answer.status_code for answer in await asyncio.gather(*asked)
            ]

    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(context.store.write, hang)
        try:
            assert held.wait(60)
            assert asyncio.run(asyncio.wait_for(ask(), 120)) == (200, [201] * AT_ONCE)
        finally:
            hold.set()
            hanging.result(60)
            context.store.close()
