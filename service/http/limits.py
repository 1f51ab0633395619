"""Bounds on the body of a request, by route; a large body needs the key of a worker."""

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gonogo.contract.api import ProblemBody
from gonogo.contract.errors import GonogoError, NotAllowed
from service.context import Context
from service.http.auth import ALLOWS, Role, bearer_key, find_principal
from service.http.problems import TOO_LARGE, NoKey, problem_of_error, problem_response

BODY_BYTES = 2**20
LARGER: tuple[tuple[str, int], ...] = (
    ("/telemetry", 16 * 2**20),
    ("/evidence", 70 * 2**20),
    ("/records", 3 * 2**20),
)
"""Ends of worker-facing routes that take more than `BODY_BYTES`."""
_AGENT = "/api/v1/agent/"


def limit_of(path: str) -> int:
    """Return how many bytes a request to `path` may bring."""
    if path.startswith(_AGENT):
        return next((limit for end, limit in LARGER if path.endswith(end)), BODY_BYTES)
    return BODY_BYTES


class Limits:
    """ASGI middleware that reads each body whole, up to its limit."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        request, limit = Request(scope), limit_of(scope["path"])
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > limit:
            await _refuse(limit)(scope, receive, send)
            return
        if limit > BODY_BYTES:
            try:
                await run_in_threadpool(self._check_worker, request)
            except GonogoError as error:
                await problem_of_error(request, error)(scope, receive, send)
                return
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] != "http.request":  # the caller has gone
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > limit:
                await _refuse(limit)(scope, receive, send)
                return
        whole: list[Message] = [{"type": "http.request", "body": bytes(body)}]

        async def receive_whole() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, receive_whole, send)

    def _check_worker(self, request: Request) -> None:
        """Refuse a caller whose body may be large before it is read.

        Raises:
            NoKey: the caller has no valid key.
            NotAllowed: the key is not a worker's.
        """
        key = bearer_key(request.headers)
        found = key and self._context.store.read(lambda session: find_principal(session, key))
        if not found:
            raise NoKey
        if found.role not in ALLOWS[Role.WORKER]:
            raise NotAllowed(f"this needs a key of role {Role.WORKER}; yours is {found.role}")


def _refuse(limit: int) -> ASGIApp:
    return problem_response(
        ProblemBody(
            title="The request is too large",
            status=413,
            detail=f"this request may bring {limit} bytes",
            code=TOO_LARGE,
        ),
        {"Connection": "close"},
    )
