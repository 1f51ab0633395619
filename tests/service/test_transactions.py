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
from service.context import READERS, Context, open_context
from service.db.migrate import migrate
from service.db.schema import RunRow
from service.evidence import artifacts
from service.http.auth import load_local_keys
from service.report import writing
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


def test_health_answers_while_the_writer_hangs_and_every_thread_waits_for_it(
    context: Context,
) -> None:
    """Who restarts what does not answer would make a full disk worse."""
    key = (context.settings.home / "key").read_text().strip()
    app = create_app(context, conduct=False)
    hold, held = threading.Event(), threading.Event()

    def hang(session: Session) -> None:
        held.set()
        assert hold.wait(120)

    async def ask() -> tuple[int, list[int]]:
        current_default_thread_limiter().total_tokens = THREADS
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://here",
            headers={"Authorization": f"Bearer {key}"},
        ) as http:
            hooks = [{"url": f"http://192.0.2.1/{n}", "types": []} for n in range(AT_ONCE)]
            asked = [asyncio.create_task(http.post("/api/v1/webhooks", json=h)) for h in hooks]
            while context.store.waiting < THREADS:
                await asyncio.sleep(0.01)
            health = await asyncio.wait_for(http.get("/healthz"), 60.0)
            assert not any(task.done() for task in asked)
            hold.set()
            return health.status_code, [answer.status_code for answer in await gathered(asked)]

    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(context.store.write, hang)
        try:
            assert held.wait(60)
            assert asyncio.run(asyncio.wait_for(ask(), 120)) == (200, [201] * AT_ONCE)
        finally:
            hold.set()
            hanging.result(60)
            context.store.close()


def test_who_waits_for_a_report_holds_up_nobody_else(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is drawn at a time, and takes seconds; many may ask for some."""
    key = (context.settings.home / "key").read_text().strip()
    app = create_app(context, conduct=False)
    hold, write = threading.Event(), writing.write_report
    at_once: list[int] = []
    drawing: set[int] = set()

    def write_slowly(within: Context, experiment: str) -> writing.Written:
        drawing.add(threading.get_ident())
        at_once.append(len(drawing))
        assert hold.wait(120)
        try:
            first = len(at_once) == 1  # a real one is enough
            return write(within, experiment) if first else writing.Written(text="", page="")
        finally:
            drawing.discard(threading.get_ident())

    monkeypatch.setattr(writing, "write_report", write_slowly)

    async def ask() -> tuple[int, set[int]]:
        current_default_thread_limiter().total_tokens = THREADS
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://here",
            headers={"Authorization": f"Bearer {key}"},
        ) as http:
            made = await http.post("/api/v1/experiments", json={"plan": "demo"})
            path = f"/api/v1/experiments/{made.json()['id']}"
            asked = [asyncio.create_task(http.get(f"{path}/report")) for _ in range(AT_ONCE)]
            while not drawing:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)  # all that come have a thread, or wait for their turn
            shown = await asyncio.wait_for(http.get(path), 30.0)
            hold.set()
            return shown.status_code, {answer.status_code for answer in await gathered(asked)}

    try:
        assert asyncio.run(asyncio.wait_for(ask(), 120)) == (200, {200})
    finally:
        hold.set()
        context.store.close()
    assert max(at_once) == 1


def test_who_waits_for_a_run_directory_that_hangs_holds_up_nobody_else(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file system may be a network's; ten looks into it took every reader of the database."""
    key = (context.settings.home / "key").read_text().strip()
    app = create_app(context, conduct=False)
    hold = threading.Event()

    def hang(run: RunRow) -> None:
        assert hold.wait(120)

    monkeypatch.setattr(artifacts, "reachable_dir", hang)

    async def ask() -> tuple[int, list[int]]:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://here",
            headers={"Authorization": f"Bearer {key}"},
        ) as http:
            made = (await http.post("/api/v1/experiments", json={"plan": "demo"})).json()
            path = f"/api/v1/runs/{made['phases'][0]['runs'][0]}/artifacts"
            asked = [asyncio.create_task(http.get(path)) for _ in range(2 * READERS)]
            await asyncio.sleep(0.3)  # all that come have a thread, or wait for their turn
            shown = await asyncio.wait_for(http.get("/api/v1/experiments"), 30.0)
            hold.set()
            codes = [answer.status_code for answer in await gathered(asked)]
            return shown.status_code, sorted(codes)

    try:
        shown, codes = asyncio.run(asyncio.wait_for(ask(), 120))
    finally:
        hold.set()
        context.store.close()
    assert shown == 200
    assert set(codes) == {200, 503}
    assert codes.count(503) >= READERS - artifacts.LOOKS


@pytest.mark.long
def test_a_report_that_reads_a_file_system_that_hangs_holds_up_no_other(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = (context.settings.home / "key").read_text().strip()
    app = create_app(context, conduct=False)
    hold, write = threading.Event(), writing.write_report
    hung: list[str] = []

    def write_or_hang(within: Context, experiment: str) -> writing.Written:
        if not hung:
            hung.append(experiment)
        if experiment in hung:
            assert hold.wait(120)
        return write(within, experiment)

    monkeypatch.setattr(writing, "write_report", write_or_hang)
    monkeypatch.setattr(writing, "PATIENCE_S", 20.0)

    async def ask() -> list[int]:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://here",
            headers={"Authorization": f"Bearer {key}"},
        ) as http:
            made = [await http.post("/api/v1/experiments", json={"plan": "demo"}) for _ in "ab"]
            paths = [f"/api/v1/experiments/{row.json()['id']}/report" for row in made]
            asked = [asyncio.create_task(http.get(path)) for path in paths]
            codes = [answer.status_code for answer in await gathered(asked)]
            hold.set()
            return codes

    try:
        answered = asyncio.run(asyncio.wait_for(ask(), 60))
        assert sorted(answered) == [200, 503]  # whichever came first
    finally:
        hold.set()
        context.store.close()


async def gathered(tasks: list[asyncio.Task[httpx.Response]]) -> list[httpx.Response]:
    return list(await asyncio.gather(*tasks))
