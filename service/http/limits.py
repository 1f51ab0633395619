"""How much may a request bring? Bounded by route, and before its key is known by very little.

Nothing is read of a body that its length forbids, and of one without a length no more than is
allowed. A body of more than `UNKNOWN_BYTES` is read only for a caller whose key is valid, one of
more than `BODY_BYTES` only for a worker's. Of one key no more than `KEY_BYTES` are held at once, of
all whose keys are not looked at no more than `NOBODYS_BYTES`: so nobody can fill the memory.
"""

from collections import Counter

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gonogo.contract.api import ProblemBody
from gonogo.contract.errors import GonogoError, NotAllowed
from service.context import Context
from service.http.auth import ALLOWS, Principal, Role, bearer_key, find_principal
from service.http.connections import show_key
from service.http.problems import (
    TOO_LARGE,
    BadRequest,
    NoKey,
    TooMany,
    problem_of_error,
    problem_response,
)

UNKNOWN_BYTES = 64 * 2**10
BODY_BYTES = 2**20
LARGER: tuple[tuple[str, int], ...] = (
    ("/telemetry", 16 * 2**20),
    ("/evidence", 70 * 2**20),
    ("/records", 3 * 2**20),
)
"""Worker-facing routes, by their end, that bring more than `BODY_BYTES`."""
KEY_BYTES = 256 * 2**20
"""Of the bodies that one key sends at once: those of a worker's runs after an outage."""
NOBODYS_BYTES = 64 * 2**20
"""Of the bodies that are sent at once before their keys are looked at."""
_NOBODY = ""
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
        self._held: Counter[str] = Counter()
        """Key → bytes of bodies that wait for their rest, or are being served."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and _brings_two_keys(scope):
            error = BadRequest("there are two Authorization headers; send one key")
            await problem_of_error(Request(scope), error)(scope, receive, send)
            return
        if scope["type"] != "http" or scope["method"] in _BODYLESS:
            await self._app(scope, receive, send)
            return
        limit = limit_of(scope["path"])
        length = _length_of(scope)
        if length is not None and length > limit:
            await _refuse(limit)(scope, receive, send)
            return
        caller = None
        crowded = self._held[_NOBODY] > NOBODYS_BYTES // 2  # who has a key goes on by its own
        if length is None or length > UNKNOWN_BYTES or crowded:
            request = Request(scope)
            try:
                caller = await run_in_threadpool(self._find, request)
                if length is not None and length > UNKNOWN_BYTES:
                    _check_may_send(caller, length)
            except GonogoError as error:
                await problem_of_error(request, error)(scope, receive, send)
                return
            if caller is None:
                limit = min(limit, UNKNOWN_BYTES)
            elif not _is_worker(caller):
                limit = min(limit, BODY_BYTES)
        else:
            limit = min(limit, UNKNOWN_BYTES)
        await self._serve(scope, receive, send, limit, _NOBODY if caller is None else caller.key_id)

    def _find(self, request: Request) -> Principal | None:
        """Return who calls, where the key is valid."""
        key = bearer_key(request.headers)
        if key is None:
            return None
        found = self._context.store.read(lambda session: find_principal(session, key))
        if found is not None:
            show_key(request.scope)
        return found

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, limit: int, holder: str
    ) -> None:
        """Read the body whole, then serve; one that grows beyond `limit` is not read to its end."""
        pieces: list[bytes] = []
        size, more = 0, True
        try:
            while more:
                message = await receive()
                if message["type"] != "http.request":  # the caller has gone
                    return
                pieces.append(message.get("body", b""))
                size += len(pieces[-1])
                self._held[holder] += len(pieces[-1])
                more = message.get("more_body", False)
                if size > limit:
                    await _refuse(limit)(scope, receive, send)
                    return
                if self._held[holder] > (KEY_BYTES if holder else NOBODYS_BYTES):
                    await _put_off(Request(scope))(scope, receive, send)
                    return
            whole: list[Message] = [{"type": "http.request", "body": b"".join(pieces)}]
            pieces.clear()

            async def receive_whole() -> Message:
                return whole.pop() if whole else await receive()

            await self._app(scope, receive_whole, send)
        finally:
            self._held[holder] -= size
            if not self._held[holder]:
                del self._held[holder]


def _brings_two_keys(scope: Scope) -> bool:
    """Say whether nobody can know which key a request means; each reader might take another."""
    names = [name for name, _ in scope["headers"]]
    return names.count(b"authorization") > 1


def _length_of(scope: Scope) -> int | None:
    """Return how many bytes a request says that its body has; None: it does not say."""
    said = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(said) if said.isdigit() else None


def _is_worker(caller: Principal) -> bool:
    return caller.role in ALLOWS[Role.WORKER]


def _check_may_send(caller: Principal | None, length: int) -> None:
    """Refuse a large body before it is read.

    Raises:
        NoKey: of a caller without a valid key.
        NotAllowed: one of a size that workers alone send.
    """
    if caller is None:
        raise NoKey
    if length > BODY_BYTES and not _is_worker(caller):
        raise NotAllowed(f"this needs a key of role {Role.WORKER}; yours is {caller.role}")


def _put_off(request: Request) -> ASGIApp:
    answer = problem_of_error(request, TooMany("too much is being sent at once; try again"))
    answer.headers["Connection"] = "close"
    return answer


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
