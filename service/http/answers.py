"""Answers: JSON of the wire, files; and the largest body of a request."""

import json
from collections.abc import Iterator, Mapping
from typing import IO, Any

from fastapi import Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gonogo.contract.canonical import wire_value

_PIECE = 2**16


class WireResponse(JSONResponse):
    """JSON by the one encoder of the wire: non-finite numbers are strings."""

    def render(self, content: Any) -> bytes:
        """Return the bytes of a JSON value."""
        return json.dumps(
            wire_value(content), ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode("utf-8", "replace")


def model_response(model: BaseModel) -> Response:
    """Return a model of the contract as an answer, written once and not validated again."""
    return Response(model.model_dump_json(by_alias=True), media_type="application/json")


def file_response(
    stream: IO[bytes], *, media_type: str, headers: Mapping[str, str]
) -> StreamingResponse:
    """Return an open file with the size that it has now, and close it at the end."""
    size = stream.seek(0, 2)
    stream.seek(0)
    return StreamingResponse(
        _pieces(stream, size),
        media_type=media_type,
        headers={**headers, "Content-Length": str(size)},
    )


def _pieces(stream: IO[bytes], size: int) -> Iterator[bytes]:
    with stream:
        while size > 0 and (piece := stream.read(min(size, _PIECE))):
            size -= len(piece)
            yield piece


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
