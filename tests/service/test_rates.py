"""How often may somebody without a key ask, and who is never held up by him?"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gonogo.contract.errors import Unavailable
from service.http import rates
from service.http.auth import hash_key
from service.http.rates import BURST, FRESH_S, PER_S, Failures, LivingKeys, Rates
from tests.service.conftest import Plane

GOOD = "Bearer good"


async def _keyed(scope: Scope, receive: Receive, send: Send) -> None:
    """A service with one key; counts who reached it."""
    scope["asked"].append(scope["path"])
    request = Request(scope)
    if scope["path"] == "/sign-in":
        status = 403
    elif request.headers.get("authorization") == GOOD:
        status = 200
    else:
        status = 401
    await PlainTextResponse("", status)(scope, receive, send)


class Caller:
    """Asks the middleware around `_keyed`; the clock stands until it is moved."""

    def __init__(self, app: ASGIApp = _keyed) -> None:
        self.now = 0.0
        self.asked: list[str] = []
        self.readings = 0
        self.living = {hash_key("good")}
        self.answers = True
        self._app = Rates(app, self._read, lambda: self.now)

    def _read(self) -> frozenset[str]:
        self.readings += 1
        if not self.answers:
            raise Unavailable("no database")
        return frozenset(self.living)

    def ask(self, path: str = "/api/x", *, key: str | None = None, of: str = "9.9.9.9") -> int:
        """Return the status of the answer."""
        said: list[Any] = []
        headers = [] if key is None else [(b"authorization", key.encode())]
        scope = {
            "type": "http", "method": "GET", "path": path, "headers": headers, "query_string": b"",
            "client": (of, 1), "server": ("x", 1), "scheme": "http", "asked": self.asked,
        }  # fmt: skip

        async def send(message: Any) -> None:
            said.append(message)

        asyncio.run(self._app(scope, None, send))  # type: ignore[arg-type]  # no body is read
        self.headers = dict(said[0]["headers"])
        return int(said[0]["status"])

    def buckets(self) -> set[str]:
        """Return the addresses that are kept."""
        return set(self._app._failures._buckets)

    def exhaust(self) -> None:
        """Try keys until the address may not any more."""
        assert {self.ask(key=f"Bearer {n}") for n in range(int(BURST))} == {401}
        assert self.ask(key="Bearer x") == 429


def test_who_tries_keys_is_held_up_before_anything_is_read_and_may_try_again_later() -> None:
    caller = Caller()
    caller.exhaust()
    reached = len(caller.asked)
    assert caller.ask() == caller.ask(key="Bearer y") == 429
    assert len(caller.asked) == reached
    assert int(caller.headers[b"retry-after"]) >= 1
    caller.now += 1.0
    assert [caller.ask() for _ in range(int(PER_S) + 1)] == [401] * int(PER_S) + [429]


def test_others_and_who_has_a_living_key_go_on_and_pages_too() -> None:
    """One that this process has never seen, too: it may have been started anew a moment ago."""
    caller = Caller()
    caller.exhaust()
    assert caller.ask(of="8.8.8.8") == 401
    assert {caller.ask(key=GOOD) for _ in range(500)} == {200}
    assert caller.ask("/static/x.css") == 401, "not the API's"


def test_the_keys_are_read_while_somebody_is_held_up_and_seldom() -> None:
    caller = Caller()
    assert {caller.ask(key=f"Bearer {n}") for n in range(int(BURST))} == {401}
    assert caller.readings == 0
    assert {caller.ask(key=f"Bearer {n}") for n in range(500)} == {429}
    assert caller.ask() == 429
    assert caller.readings == 1


def test_a_key_made_or_revoked_meanwhile_is_known_soon() -> None:
    caller = Caller()
    caller.exhaust()
    caller.living = {hash_key("made")}
    assert caller.ask(key="Bearer made") == 429
    caller.now += FRESH_S
    for _ in range(int(PER_S * FRESH_S)):
        caller.ask()
    assert caller.ask(key="Bearer made") == 401, "it reaches the service, which looks itself"
    assert caller.ask(key=GOOD) == 429


def test_while_the_database_does_not_answer_what_was_known_holds() -> None:
    caller = Caller()
    caller.exhaust()
    caller.answers = False
    caller.now += FRESH_S
    for _ in range(int(PER_S * FRESH_S)):
        caller.ask()
    assert caller.ask(key="Bearer nobody") == 429
    assert caller.ask(key=GOOD) == 200


def test_who_comes_while_the_keys_are_read_waits_for_nobody() -> None:
    """A database that hangs piles nothing up."""
    begun, answer = threading.Event(), threading.Event()

    def load() -> frozenset[str]:
        begun.set()
        assert answer.wait(60)
        return frozenset({"h"})

    async def ask() -> tuple[bool, bool]:
        living = LivingKeys(load, lambda: 0.0)
        first = asyncio.create_task(living.has("h"))
        await asyncio.to_thread(begun.wait, 60)
        second = await living.has("h")
        answer.set()
        return await first, second

    assert asyncio.run(ask()) == (True, False)


def test_sign_ins_that_fail_count_too() -> None:
    caller = Caller()
    assert {caller.ask("/sign-in") for _ in range(int(BURST))} == {403}
    assert caller.ask("/sign-in") == 429


def test_what_is_no_address_is_one_and_none_of_it_is_kept() -> None:
    """A proxy passed on what a caller said of himself: he was never held up, and filled memory."""
    caller = Caller()
    long = "a" * 60_000
    for number in range(int(BURST)):
        assert caller.ask(of=(f"{number}{long}", f"fe80::1%{number}{long}")[number % 2]) == 401
    assert caller.ask(of=f"other{long}") == 401
    kept = caller.buckets()
    assert kept == {"", "fe80::/64"}
    for _ in range(int(BURST)):
        caller.ask(of=long)
    assert caller.ask(of=f"another{long}") == 429
    assert caller.ask() == 401


def test_a_host_that_has_a_network_of_addresses_is_one_caller() -> None:
    """It took the next of 2⁶⁴ for each key that it tried, and was never held up."""
    caller = Caller()
    for number in range(int(BURST)):
        assert caller.ask(of=f"2001:db8:0:1::{number:x}") == 401
    assert caller.ask(of="2001:db8:0:1:ffff::1") == 429
    assert caller.ask(of="2001:db8:0:2::1") == 401
    assert caller.ask(of="::ffff:9.9.9.9") == caller.ask(of="9.9.9.9") == 401
    assert "::ffff:909:909" not in caller.buckets()


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "ADDRESSES", 3)
    failures = Failures(lambda: 0.0)
    for _ in range(int(BURST)):
        failures.count("0")
    assert failures.wait_s("0") > 0
    for address in "123":
        failures.count(address)
    assert failures.wait_s("0") == 0, "forgotten"


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 300)), max_size=20))
def test_nobody_fails_more_often_than_the_bucket_allows(bursts: list[tuple[float, int]]) -> None:
    now, failed = 0.0, 0
    failures = Failures(lambda: now)
    for pause_s, tries in bursts:
        now += pause_s
        for _ in range(tries):
            if failures.wait_s("a") == 0:
                failures.count("a")
                failed += 1
        assert failed <= BURST + PER_S * now + 1e-6


def test_the_service_holds_up_who_has_no_key(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "BURST", 3.0)
    monkeypatch.setattr(rates, "PER_S", 1e-3)  # none comes back while we ask
    bad = {"authorization": "Bearer nobody"}
    said = [plane.http.get("/api/v1/plans", headers=bad) for _ in range(4)]
    assert [row.status_code for row in said] == [401, 401, 401, 429]
    assert said[-1].headers["content-type"] == "application/problem+json"
    assert said[-1].json()["code"] == "too_many"
    assert plane.call("GET", "/plans").status_code == 200, "this key lives"
    assert plane.http.get("/healthz").status_code == 200
