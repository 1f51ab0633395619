"""Does a route's session give its connection back, whatever else waits for one?"""

from __future__ import annotations

import asyncio
from pathlib import Path

from anyio.to_thread import current_default_thread_limiter
from sqlalchemy import create_engine, text
from starlette.concurrency import run_in_threadpool

from service.context import open_context
from service.db.migrate import migrate
from service.http.transactions import open_session
from service.settings import Settings


def test_more_readers_than_threads_and_connections_all_get_their_answer(tmp_path: Path) -> None:
    """As on PostgreSQL, whose sessions say goodbye to a server; few of both, so it shows at once.

    Closed in the threads in which the routes run, the last connections would never come back.
    """
    url = f"sqlite:///{tmp_path}/gonogo.db"
    migrate(url)
    context = open_context(Settings(home=tmp_path, database_url=url))
    few = create_engine(
        url,
        connect_args={"check_same_thread": False},
        pool_size=2,
        max_overflow=0,
        pool_timeout=1.0,
    )
    context.store._readers, context.store.sqlite = few, False

    async def ask() -> int:
        reading = open_session(context)
        session = await anext(reading)
        try:
            return int(await run_in_threadpool(lambda: session.scalar(text("SELECT 7")) or 0))
        finally:
            await anext(reading, None)

    async def ask_at_once() -> list[int]:
        current_default_thread_limiter().total_tokens = 2
        return await asyncio.gather(*(ask() for _ in range(8)))

    try:
        assert asyncio.run(ask_at_once()) == [7] * 8
    finally:
        context.store.sqlite = True
        context.store.close()
