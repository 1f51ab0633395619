"""However many ask at once for what is the same for all, it is made for one at a time."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from sqlalchemy import text

from service import app, metrics
from service.http.answers import Shared
from tests.service.conftest import Clock, Plane


def test_what_goes_wrong_is_not_kept(clock: Clock) -> None:
    answers = iter([ValueError("no"), "well"])

    def make() -> str:
        found = next(answers)
        if isinstance(found, str):
            return found
        raise found

    async def ask() -> None:
        shared = Shared(make, 1.0, clock)
        with pytest.raises(ValueError, match="no"):
            await shared.get()
        assert await shared.get() == "well"

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("path", "makes"), [("/metrics", "_exposed"), ("/sd/prometheus", "_targets")]
)
def test_who_asks_in_a_loop_without_a_key_gets_what_was_made(
    still: Plane, monkeypatch: pytest.MonkeyPatch, path: str, makes: str
) -> None:
    made = []
    make = getattr(metrics, makes)
    monkeypatch.setattr(metrics, makes, lambda *given: made.append(1) or make(*given))
    began = time.monotonic()
    answers = {still.http.get(path).status_code for _ in range(30)}
    took_s = time.monotonic() - began
    assert answers == {200}
    assert len(made) <= 1 + took_s / metrics.KEPT_S


def test_who_asks_whether_it_is_ready_holds_nobody_up(
    still: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that hangs is asked once for all strangers, and not in every thread there is."""
    asked, go_on = threading.Event(), threading.Event()

    def hang(_: object) -> dict[str, str]:
        asked.set()
        assert go_on.wait(60)
        return {"status": "ready"}

    monkeypatch.setattr(app, "_check_ready", hang)
    with ThreadPoolExecutor(60) as pool:
        answers = [pool.submit(still.http.get, "/readyz", timeout=60) for _ in range(60)]
        try:
            assert asked.wait(60)
            time.sleep(0.5)
            assert still.get("/experiments")["items"] == []
        finally:
            go_on.set()
        assert {answer.result().status_code for answer in answers} == {200}


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
