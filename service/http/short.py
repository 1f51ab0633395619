"""How is a request answered that comes many times a second? In one thread, past the framework.

Routes of the framework are resolved in layers, and hand a request from thread to thread: several
times the CPU of what a small message is about. A `Way` serves the plain case of a route that is
declared with the framework as well: a JSON body that is valid, from a caller who may. Whatever is
not plain (no key, another role, an invalid body, a query, a header twice) goes to the route
itself, so that there is one place that says what is wrong with a request.
"""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fastapi import Response
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.context import Context
from service.http.auth import ALLOWS, Principal, Role, find_principal
from service.http.problems import ANSWERED, answer_error
from service.http.transactions import Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """A request that is valid, from a caller who may."""

    context: Context
    write: Writer
    caller: Principal
    named: Mapping[str, str]
    """What the path names."""
    body: Any
    header: str | None
    """Value of the way's header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The short way of one POST route.

    Args:
        path: what its path looks like; groups are what it names.
        role: who may.
        body: the model of its body.
        answer: what answers.
        header: the only header that it knows, in lower case; of 200 characters at most.
    """

    path: re.Pattern[str]
    role: Role
    body: type[BaseModel]
    answer: Callable[[Plain], Response]
    header: str = ""


THREADS = 40
"""How many requests may wait for the database at once; as many as the framework has."""
_LONGEST_HEADER = 200
_JSON = "application/json"


class ShortWays:
    """ASGI middleware that serves what is plain, and passes on what is not.

    Args:
        app: what the rest goes to.
        context: the service's.
        ways: the routes that have a short way.
        elsewhere: headers that only the routes themselves know, in lower case.
    """

    def __init__(
        self, app: ASGIApp, context: Context, ways: tuple[Way, ...], elsewhere: frozenset[str]
    ) -> None:
        self._app = app
        self._context = context
        self._write = Writer(context)
        self._ways = ways
        self._elsewhere = elsewhere
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="short")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        found = self._find(scope)
        if found is None:
            await self._app(scope, receive, send)
            return
        message = await receive()
        response = None
        if message["type"] == "http.request" and not message.get("more_body", False):
            body = message.get("body", b"")
            try:
                response = await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._answer, *found, body
                )
            except ANSWERED as error:
                response = answer_error(Request(scope), error)
        if response is not None:
            await response(scope, receive, send)
            return
        seen: list[Message] = [message]

        async def receive_again() -> Message:
            return seen.pop() if seen else await receive()

        await self._app(scope, receive_again, send)

    def _find(self, scope: Scope) -> tuple[Way, Mapping[str, str], Mapping[str, str]] | None:
        """Return a request's short way, what its path names and its headers."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["query_string"]:
            return None
        for way in self._ways:
            match = way.path.fullmatch(scope["path"])
            if match is not None:
                headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
                plain = len(headers) == len(scope["headers"]) and not scope.get("root_path")
                if not plain or not self._elsewhere.isdisjoint(headers):
                    return None
                return way, match.groupdict(), {k: v.decode("latin-1") for k, v in headers.items()}
        return None

    def _answer(
        self,
        way: Way,
        named: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
    ) -> Response | None:
        """Return the answer; None: the route itself has to see it.

        Raises:
            GonogoError: as the route does.
        """
        scheme, _, key = headers.get("authorization", "").partition(" ")
        header = headers.get(way.header)
        if (
            scheme.lower() != "bearer"
            or headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON
            or len(header or "") > _LONGEST_HEADER
        ):
            return None
        caller = self._context.store.read(lambda session: find_principal(session, key))
        if caller is None or caller.role not in ALLOWS[way.role]:
            return None
        try:
            said = way.body.model_validate(json.loads(body))
        except (ValidationError, ValueError, RecursionError):
            return None
        return way.answer(
            Plain(
                context=self._context,
                write=self._write,
                caller=caller,
                named=named,
                body=said,
                header=header,
            )
        )
