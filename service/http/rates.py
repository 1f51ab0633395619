"""How often may somebody without a valid key ask? Bounded by address, before the key is looked at.

Each address has a bucket of `BURST` failures that fills up again by `PER_S` a second; a request
whose key is not valid (401), or a sign-in that fails, takes one. While it is empty, requests from
there are answered 429 and nothing of them is read, but for those with a living key: a worker beside
whoever tries keys goes on, and begins, too. Which keys live is read from the database once every
`FRESH_S` at most while somebody is held up, and never for a single request.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Network, ip_address

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gonogo.contract.api import ProblemBody
from gonogo.contract.errors import Unavailable
from service.context import Context
from service.http.auth import bearer_key, hash_key
from service.http.problems import problem_response
from service.queries.keys import load_living_hashes

BURST = 200.0
PER_S = 10.0
ADDRESSES = 10_000
"""Buckets that are kept, those used last; an address that was forgotten has a full one."""
FRESH_S = 5.0
"""How long what was read of the living keys is held for true, while somebody is held up."""
_OWN_BITS = 64
_API = "/api/"
_SIGN_IN = "/sign-in"


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float


class Failures:
    """How many failures each address has left.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """Return for how long an address has to wait; 0 where it may ask."""
        bucket = self._buckets.get(address)
        if bucket is None:
            return 0.0
        self._fill(bucket)
        return max(0.0, (1.0 - bucket.left) / PER_S)

    def count(self, address: str) -> None:
        """Take note of a failure."""
        bucket = self._buckets.setdefault(address, _Bucket(BURST, self._clock()))
        self._buckets.move_to_end(address)
        self._fill(bucket)
        bucket.left = max(0.0, bucket.left - 1.0)
        if len(self._buckets) > ADDRESSES:
            self._buckets.popitem(last=False)

    def _fill(self, bucket: _Bucket) -> None:
        now = self._clock()
        bucket.left = min(BURST, bucket.left + PER_S * (now - bucket.at))
        bucket.at = now


class LivingKeys:
    """Which keys live, as a guard may ask at any rate; used from the event loop.

    Args:
        load: reads the hashes of the living keys; raises Unavailable.
        clock: returns monotonic seconds.
    """

    def __init__(self, load: Callable[[], frozenset[str]], clock: Callable[[], float]) -> None:
        self._load, self._clock = load, clock
        self._hashes: frozenset[str] = frozenset()
        self._asked_at = -math.inf
        self._reading = asyncio.Lock()

    async def has(self, hashed: str) -> bool:
        """Say whether a key lives, as of the last reading; one reading at a time is waited for."""
        if not self._reading.locked() and self._clock() - self._asked_at >= FRESH_S:
            async with self._reading:
                self._asked_at = self._clock()
                try:
                    self._hashes = await run_in_threadpool(self._load)
                except Unavailable:
                    pass  # what was known is all that can be known now
        return hashed in self._hashes


class Rates:
    """ASGI middleware that lets nobody try keys without end.

    Args:
        app: what the rest goes to.
        load_living: reads the hashes of the living keys; raises Unavailable.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        app: ASGIApp,
        load_living: Callable[[], frozenset[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._failures = Failures(clock)
        self._living = LivingKeys(load_living, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path.startswith(_API) or path == _SIGN_IN):
            await self._app(scope, receive, send)
            return
        address = _address_of(scope)
        wait_s = self._failures.wait_s(address)
        if wait_s > 0 and not await self._lives(bearer_key(Request(scope).headers)):
            await _refuse(scope, wait_s)(scope, receive, send)
            return

        async def look(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                if status == 401 or (status == 403 and path == _SIGN_IN):
                    self._failures.count(address)
            await send(message)

        await self._app(scope, receive, look)

    async def _lives(self, key: str | None) -> bool:
        return key is not None and await self._living.has(hash_key(key))


def _address_of(scope: Scope) -> str:
    """Return from where a request comes; empty where that is no address.

    A proxy may pass on whatever a caller says of himself, of any length. An IPv6 host has a network
    of 2⁶⁴ addresses to itself, so they are one.
    """
    host, _, _ = (scope.get("client") or ("",))[0].partition("%")
    return _address_in(host) if len(host) <= _LONGEST else ""


_LONGEST = 45
"""Letters of an address; what is remembered is no longer."""


@lru_cache(maxsize=256)
def _address_in(host: str) -> str:
    try:
        address = ip_address(host)
    except ValueError:
        return ""
    if isinstance(address, IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or IPv6Network((address, _OWN_BITS), strict=False))


def living_keys_of(context: Context) -> Callable[[], frozenset[str]]:
    """Return what reads the living keys of a service's database."""
    return lambda: context.store.read(load_living_hashes)


def _refuse(scope: Scope, wait_s: float) -> ASGIApp:
    body = ProblemBody(
        title="Too many requests",
        status=429,
        detail=f"too many requests without a valid key came from this address;"
        f" try again in {math.ceil(wait_s)} s",
        instance=Request(scope).url.path,
        code="too_many",
    )
    headers = {"Retry-After": str(math.ceil(wait_s)), "Connection": "close"}
    return problem_response(body, headers)
