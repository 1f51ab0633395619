"""However many ask at once for what is the same for all, it is made for one at a time."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from sqlalchemy import text

from service import app
from service.http.shared import Shared
from service.metrics import control_plane
from tests.service.conftest import Clock, Plane


class Making:
    """Makes 1, 2, 3, … and says how many were being made at once."""

    def __init__(self) -> None:
        self.begun = self.most = self._now = 0
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            self.begun += 1
            self._now += 1
            self.most = max(self.most, self._now)
            number = self.begun
        time.sleep(0.05)
        with self._lock:
            self._now -= 1
        return number


def test_who_waits_gets_the_next_one_and_none_that_is_older_than_the_question() -> None:
    make = Making()

    async def ask_in_waves() -> None:
        shared = Shared(make)

        async def ask(after_s: float) -> tuple[int, int]:
            await asyncio.sleep(after_s)
            begun = make.begun
            return begun, await shared.get()

        waves = [asyncio.gather(*(ask(after_s) for _ in range(20))) for after_s in (0, 0.02, 0.3)]
        found = [await wave for wave in waves]
        assert all(got > begun for wave in found for begun, got in wave)
        assert all(len({got for _, got in wave}) <= 2 for wave in found)

    asyncio.run(ask_in_waves())
    assert make.most == 1
    assert make.begun <= 6


def test_an_answer_is_given_again_while_it_is_kept(clock: Clock) -> None:
    make = Making()

    async def ask() -> None:
        shared = Shared(make, 1.0, clock)
        assert [await shared.get() for _ in range(3)] == [1, 1, 1]
        clock.at += 0.9
        assert await shared.get() == 1
        clock.at += 0.2
        assert await shared.get() == 2

    asyncio.run(ask())


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
    make = getattr(control_plane, makes)
    monkeypatch.setattr(control_plane, makes, lambda *given: made.append(1) or make(*given))
    began = time.monotonic()
    answers = {still.http.get(path).status_code for _ in range(30)}
    took_s = time.monotonic() - began
    assert answers == {200}
    assert len(made) <= 1 + took_s / control_plane.KEPT_S


def test_what_goes_wrong_is_told_to_all_who_waited_and_to_nobody_after() -> None:
    answers = iter([ValueError("no"), ValueError("again"), None])

    def make() -> str:
        time.sleep(0.02)
        error = next(answers)
        if error is not None:
            raise error
        return "well"

    async def ask() -> None:
        shared = Shared(make)
        found = await asyncio.gather(*(shared.get() for _ in range(9)), return_exceptions=True)
        assert sorted(map(str, found)) == ["again"] * 8 + ["no"]
        assert await shared.get() == "well"

    asyncio.run(ask())


def test_scrapes_of_many_strangers_are_made_one_at_a_time(
    still: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, collect = Making(), control_plane.collect

    def collect_slowly(session: object, now: float) -> object:
        make()
        return collect(session, now)  # type: ignore[arg-type]

    monkeypatch.setattr(control_plane, "collect", collect_slowly)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: still.http.get("/metrics"), range(16)))
    assert {answer.status_code for answer in found} == {200}
    assert all("gonogo_decisions_total" in answer.text for answer in found)
    assert make.most == 1
    assert make.begun < 16


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


def test_a_service_that_is_ready_says_when_its_database_has_no_room(still: Plane) -> None:
    still.context.store.is_full = True
    answer = still.http.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ready", "room": "none: the database's disk is full"}


def test_a_service_on_a_database_without_our_tables_is_not_ready(still: Plane) -> None:
    """A fail-over may lead to an empty one: it answers, and every other call fails."""
    assert still.http.get("/readyz").status_code == 200
    move = text("ALTER TABLE alembic_version RENAME TO gone")
    still.context.store.write(lambda session: session.execute(move) and None)
    answer = still.http.get("/readyz")
    assert answer.status_code == 503, answer.text
