"""Does a route's session give its connection back, whatever else waits for one?"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from anyio.to_thread import current_default_thread_limiter
from sqlalchemy.orm import Session

from service.app import create_app
from service.context import Context, open_context
from service.db.migrate import migrate
from service.http.auth import load_local_keys
from service.settings import Settings

THREADS = 16
"""As many as SQLite's pool has connections, and one: as on PostgreSQL, where both are 40."""
AT_ONCE = 60


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
            asked = [http.get("/api/v1/goodput") for _ in range(AT_ONCE)]
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
