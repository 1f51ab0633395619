"""Bounds on the body of a request, by route."""

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES = 2**20
LARGER: tuple[tuple[str, int], ...] = (
    ("/telemetry", 16 * 2**20),
    ("/evidence", 70 * 2**20),
    ("/records", 3 * 2**20),
)
_AGENT = "/api/v1/agent/"


def limit_of(path: str) -> int:
    """Return how many bytes a request to `path` may bring."""
    if path.startswith(_AGENT):
        return next((limit for end, limit in LARGER if path.endswith(end)), BODY_BYTES)
    return BODY_BYTES


class Limits:
    """ASGI middleware that ends the reading of a body at its limit."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit, taken = limit_of(scope["path"]), 0
        length = Headers(scope=scope).get("content-length", "0")
        announced = int(length) if length.isdecimal() else 0

        async def receive_within() -> Message:
            nonlocal taken
            message: Message = {} if announced > limit else await receive()
            taken += len(message.get("body", b""))
            if max(announced, taken) > limit:
                text = f"this request may bring {limit} bytes"
                raise HTTPException(413, text, {"Connection": "close"})
            return message

        await self._app(scope, receive_within, send)
