"""Does a route's session give its connection back, whatever else waits for one?"""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from anyio.to_thread import current_default_thread_limiter

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


@pytest.mark.parametrize("goodbye", [False, True], ids=["sqlite", "closed as on postgres"])
def test_more_readers_than_threads_and_connections_all_get_their_answer(
    context: Context, goodbye: bool
) -> None:
    """Kept over a change of threads, connections would be waited for by all who could free them."""
    key = (context.settings.home / "key").read_text().strip()
    app = create_app(context, conduct=False)
    context.store.sqlite = not goodbye

    async def ask_at_once() -> list[int]:
        current_default_thread_limiter().total_tokens = THREADS
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://here",
            headers={"Authorization": f"Bearer {key}"},
        ) as http:
            asked = [http.get("/api/v1/goodput") for _ in range(AT_ONCE)]
            answers = await asyncio.wait_for(asyncio.gather(*asked), 10.0)
            return [answer.status_code for answer in answers]

    try:
        assert asyncio.run(ask_at_once()) == [200] * AT_ONCE
    finally:
        context.store.sqlite = True
        context.store.close()
