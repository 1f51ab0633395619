"""How much may a request bring? Bounded by route, and before its key is known by very little.

Nothing is read of a body that its length forbids, and of one without a length no more than is
allowed. A body of more than `UNKNOWN_BYTES` is read only for a caller whose key is valid, so that
who has none can fill no memory.
"""

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gonogo.contract.api import ProblemBody
from gonogo.contract.errors import GonogoError
from service.context import Context
from service.http.auth import bearer_key, find_principal
from service.http.problems import NoKey, problem_of_error, problem_response

UNKNOWN_BYTES = 64 * 2**10
BODY_BYTES = 2**20
LARGER: tuple[tuple[str, int], ...] = (
    ("/telemetry", 16 * 2**20),
    ("/evidence", 70 * 2**20),
    ("/records", 3 * 2**20),
)
"""Worker-facing routes, by their end, that bring more than `BODY_BYTES`."""
_AGENT = "/api/v1/agent/"
_BODYLESS = frozenset({"GET", "HEAD", "OPTIONS"})


def limit_of(path: str) -> int:
    """Return how many bytes a request to `path` may bring."""
    if path.startswith(_AGENT):
        return next((limit for end, limit in LARGER if path.endswith(end)), BODY_BYTES)
    return BODY_BYTES


class Limits:
    """ASGI middleware that holds every body within its limit."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] in _BODYLESS:
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        limit = limit_of(scope["path"])
        said = request.headers.get("content-length", "")
        length = int(said) if said.isascii() and said.isdigit() else None
        if length is not None and length > limit:
            await _refuse(limit)(scope, receive, send)
            return
        known = False
        if length is None or length > UNKNOWN_BYTES:
            try:
                known = await run_in_threadpool(self._knows, request)
            except GonogoError as error:
                await problem_of_error(request, error)(scope, receive, send)
                return
            if length is not None and not known:
                await problem_of_error(request, NoKey())(scope, receive, send)
                return
        await self._serve(scope, receive, send, limit if known else min(limit, UNKNOWN_BYTES))

    def _knows(self, request: Request) -> bool:
        """Say whether the caller has a valid key."""
        key = bearer_key(request.headers)
        if key is None:
            return False
        found = self._context.store.read(lambda session: find_principal(session, key))
        return found is not None

    async def _serve(self, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
        """Read the body whole, then serve; one that grows beyond `limit` is not read to its end."""
        pieces: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] != "http.request":  # the caller has gone
                return
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            more = message.get("more_body", False)
            if size > limit:
                await _refuse(limit)(scope, receive, send)
                return
        whole: list[Message] = [{"type": "http.request", "body": b"".join(pieces)}]

        async def receive_whole() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, receive_whole, send)


def _refuse(limit: int) -> ASGIApp:
    return problem_response(
        ProblemBody(
            title="The request is too large",
            status=413,
            detail=f"this request may bring {limit} bytes",
            code="too_large",
        ),
        {"Connection": "close"},
    )
