"""How is a request answered that comes many times a second? In one transaction, past the framework.

Routes of the framework are resolved in layers, and hand a request from thread to thread: several
times the CPU of what a small message is about. A `Way` serves the plain case of a route that is
declared with the framework as well: a JSON body that is valid, from a caller who may. Whatever is
not plain (no key, another role, an invalid body, a query, a header twice) goes to the route
itself, so that there is one place that says what is wrong with a request.

The key is looked up in the transaction that does what is asked, so a revoked one ends at once,
whoever revoked it. A key that this process has not seen yet is looked up before, too, so that
nothing is made of a stranger's request, and no writer waits for it.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fastapi import Response
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.context import Context
from service.db.store import Session
from service.experiments.lifecycle import Deed
from service.http.auth import ALLOWS, Principal, Role, find_principal, hash_key
from service.http.connections import show_key
from service.http.problems import ANSWERED, answer_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """A request that is valid."""

    named: Mapping[str, str]
    """What the path names."""
    body: Any
    header: str | None
    """Value of the way's header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What came of a request."""

    response: Response
    then: Callable[[Deed], object] | None = None
    """A second transaction, before the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a request asks for, ready to be done."""

    do: Callable[[Deed, Principal], Done]
    """In one transaction, for a caller who may."""
    actor: str | None = None
    """In whose name; None: the caller's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The short way of one POST route.

    Args:
        path: what its path looks like; groups are what it names.
        role: who may.
        body: the model of its body.
        prepare: what makes a change of a request, without the database; None, or an error that has
            an answer, leaves it to the route.
        header: the only header that it knows, in lower case; of 200 bytes at most.
        quick_bytes: a body of so many is read and prepared where it came, on the event loop; a
            larger one in a thread.
    """

    path: re.Pattern[str]
    role: Role
    body: type[BaseModel]
    prepare: Callable[[Plain], Change | None]
    header: bytes = b""
    quick_bytes: int = 0


THREADS = 4
"""How many requests may be read at once that are not quick."""
_KEYS_SEEN = 10_000
_LEFT: tuple[type[Exception], ...] = (ValidationError, ValueError, RecursionError, *ANSWERED)
"""What is wrong with a request that the route itself answers, once it knows the key."""
_LONGEST_HEADER = 200
_JSON = b"application/json"


class ShortWays:
    """ASGI middleware that serves what is plain, and passes on what is not.

    Args:
        app: what the rest goes to.
        context: the service's.
        ways: the routes that have a short way.
        elsewhere: headers that only the routes themselves know, in lower case.
    """

    def __init__(
        self, app: ASGIApp, context: Context, ways: tuple[Way, ...], elsewhere: frozenset[bytes]
    ) -> None:
        self._app = app
        self._context = context
        self._ways = ways
        self._elsewhere = elsewhere
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="short")
        self._seen: OrderedDict[str, None] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        found = self._find(scope)
        if found is None:
            await self._app(scope, receive, send)
            return
        message = await receive()
        response = None
        if message["type"] == "http.request" and not message.get("more_body", False):
            try:
                response = await self._answer(*found, message.get("body", b""))
                if response is not None:
                    show_key(scope)
            except ANSWERED as error:
                response = answer_error(Request(scope), error)
        if response is not None:
            await response(scope, receive, send)
            return
        seen: list[Message] = [message]

        async def receive_again() -> Message:
            return seen.pop() if seen else await receive()

        await self._app(scope, receive_again, send)

    def _find(self, scope: Scope) -> tuple[Way, Mapping[str, str], Mapping[bytes, bytes]] | None:
        """Return a request's short way, what its path names and its headers."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["query_string"]:
            return None
        for way in self._ways:
            match = way.path.fullmatch(scope["path"])
            if match is not None:
                headers: dict[bytes, bytes] = dict(scope["headers"])
                plain = len(headers) == len(scope["headers"]) and not scope.get("root_path")
                if not plain or not self._elsewhere.isdisjoint(headers):
                    return None
                return way, match.groupdict(), headers
        return None

    async def _answer(
        self,
        way: Way,
        named: Mapping[str, str],
        headers: Mapping[bytes, bytes],
        body: bytes,
    ) -> Response | None:
        """Return the answer; None: the route itself has to see it.

        Raises:
            GonogoError: as the route does.
        """
        scheme, _, key = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        said = headers.get(way.header)
        header = None if said is None else said.decode("latin-1")
        if (
            scheme.lower() != "bearer"
            or kind != _JSON
            or len(header or "") > _LONGEST_HEADER
            or not await self._has_seen(way, key)
        ):
            return None
        if len(body) <= way.quick_bytes:
            change = _prepare(way, named, header, body)
        else:
            change = await asyncio.get_running_loop().run_in_executor(
                self._threads, _prepare, way, named, header, body
            )
        if change is None:
            return None
        context = self._context
        prepared = change

        def act(session: Session) -> tuple[Done | None, str]:
            caller = find_principal(session, key)
            if caller is None or caller.role not in ALLOWS[way.role]:
                return None, ""
            actor = prepared.actor or caller.actor
            return prepared.do(Deed(session=session, now=context.now(), actor=actor), caller), actor

        done, actor = await context.store.write_async(act)
        if done is None:
            self._seen.pop(hash_key(key), None)
            return None
        then = done.then
        if then is not None:
            await context.store.write_async(
                lambda session: then(Deed(session=session, now=context.now(), actor=actor))
            )
        return done.response

    async def _has_seen(self, way: Way, key: str) -> bool:
        """Say whether a key was living, and one that may, when this process saw it first."""
        hashed = hash_key(key)
        if hashed in self._seen:
            return True
        read = self._context.store.read
        caller = await asyncio.get_running_loop().run_in_executor(
            self._threads, read, lambda session: find_principal(session, key)
        )
        if caller is None or caller.role not in ALLOWS[way.role]:
            return False
        self._seen[hashed] = None
        if len(self._seen) > _KEYS_SEEN:
            self._seen.popitem(last=False)
        return True


def _prepare(way: Way, named: Mapping[str, str], header: str | None, body: bytes) -> Change | None:
    """Return what a request asks for; None: the route itself has to see it."""
    try:
        said = way.body.model_validate_json(body)
        return way.prepare(Plain(named=named, body=said, header=header))
    except _LEFT:
        return None
