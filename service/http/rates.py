"""How often may somebody without a valid key ask? Bounded by address, before the key is looked at.

Each address has a bucket of `BURST` failures that fills up again by `PER_S` a second; a request
whose key is not valid (401), or a sign-in that fails, takes one. While it is empty, requests from
there are answered 429 and nothing of them is read, but for those with a key that was valid a short
time ago: a worker beside whoever tries keys goes on.
"""

import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gonogo.contract.api import ProblemBody
from service.http.problems import problem_response

BURST = 200.0
PER_S = 10.0
ADDRESSES = 10_000
"""Buckets that are kept, those used last; an address that was forgotten has a full one."""
KNOWN_KEYS = 10_000
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


class Rates:
    """ASGI middleware that lets nobody try keys without end.

    Args:
        app: what the rest goes to.
        clock: returns monotonic seconds.
    """

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._failures = Failures(clock)
        self._known: OrderedDict[bytes, None] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path.startswith(_API) or path == _SIGN_IN):
            await self._app(scope, receive, send)
            return
        address = (scope.get("client") or ("",))[0]
        key = _key_of(scope)
        wait_s = self._failures.wait_s(address)
        if wait_s > 0 and key not in self._known:
            await _refuse(scope, wait_s)(scope, receive, send)
            return

        async def look(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._note(address, key, message["status"], path)
            await send(message)

        await self._app(scope, receive, look)

    def _note(self, address: str, key: bytes | None, status: int, path: str) -> None:
        if status == 401 or (status == 403 and path == _SIGN_IN):
            self._failures.count(address)
            if key is not None:
                self._known.pop(key, None)
        elif key is not None and 200 <= status < 300 and path.startswith(_API):
            self._known[key] = None  # every call of the API asks for a key: this one is valid
            self._known.move_to_end(key)
            if len(self._known) > KNOWN_KEYS:
                self._known.popitem(last=False)


def _key_of(scope: Scope) -> bytes | None:
    """Return a digest of what stands for a key in a request."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            return hashlib.sha256(value).digest()
    return None


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
