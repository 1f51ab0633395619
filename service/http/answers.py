"""Answers: JSON of the wire, files, RFC 9457 problems; and the largest body of a request."""

import json
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import IO, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from sqlalchemy.exc import DataError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gonogo.contract.api import PROBLEM_URN, ProblemBody
from gonogo.contract.canonical import wire_value
from gonogo.contract.errors import (
    MOST_PROBLEMS,
    Conflict,
    Corrupt,
    GonogoError,
    NotAllowed,
    NotFound,
    Rejected,
    StaleToken,
    Unavailable,
)
from service.db.store import NO_ANSWER, NO_ANSWER_TEXT
from service.evidence.artifacts import ArtifactNotHere

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


MEDIA_TYPE = "application/problem+json"
_CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
}
"""HTTP status → code of a problem that the framework found."""
_log = logging.getLogger(__name__)


class Outdated(Rejected):
    """The experiment has changed since you looked at it; look again."""

    code = "outdated"
    title = "Precondition failed"


class BadRequest(Rejected):
    """The request cannot be read."""

    code = "bad_request"
    title = "Bad request"


class NoKey(NotAllowed):
    """A valid API key is needed: `Authorization: Bearer KEY`."""

    code = "no_key"
    title = "No valid key"


STATUS: tuple[tuple[type[GonogoError], int], ...] = (
    (BadRequest, 400),
    (NoKey, 401),
    (NotAllowed, 403),
    (NotFound, 404),
    (Conflict, 409),
    (Outdated, 412),
    (Rejected, 422),
    (Unavailable, 503),
    (Corrupt, 500),
    (GonogoError, 500),
)
"""Error → HTTP status; the first row that fits."""

_HEADERS = {
    401: {"WWW-Authenticate": "`Bearer`"},
    503: {"Retry-After": "Seconds after which to try again."},
}
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    status: {
        "description": title,
        "headers": {
            name: {"description": text, "schema": {"type": "string"}}
            for name, text in _HEADERS.get(status, {}).items()
        },
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}},
    }
    for status, title in [
        *((status, kind.title) for kind, status in STATUS if status < 500),
        (413, HTTPStatus(413).phrase),
        (503, Unavailable.title),
    ]
}
"""For the `responses` of every call that needs a key."""


def status_of(error: GonogoError) -> int:
    """Return the HTTP status of an error."""
    return next(status for kind, status in STATUS if isinstance(error, kind))


def _problem(
    request: Request, status: int, *, headers: Mapping[str, str] | None = None, **fields: Any
) -> JSONResponse:
    """Return a problem as a response, without its empty fields."""
    body = ProblemBody(status=status, instance=request.url.path, **fields)
    content = body.model_dump(mode="json", exclude_none=True)
    content["type"] = f"{PROBLEM_URN}{body.code}"
    if body.state is None:
        content.pop("allowed", None)
    return JSONResponse(content, status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def problem_of_error(request: Request, error: GonogoError) -> JSONResponse:
    """Return the answer to a request that ended in an error of the contract."""
    status = status_of(error)
    if status >= 500:
        _log.error("%s", error, extra={"action": "request_failed"})
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if status == 503:
        headers["Retry-After"] = "1"
    rows = [{"path": row.path, "message": row.message} for row in error.problems]
    if isinstance(error, ArtifactNotHere):
        rows = [
            {"path": "host", "message": error.host or "unknown"},
            {"path": "path", "message": error.path},
        ]
    return _problem(
        request,
        status,
        headers=headers,
        title=error.title,
        detail=error.detail,
        code=error.code,
        errors=rows,
        state=getattr(error, "state", None),
        allowed=list(getattr(error, "allowed", ())),
        token=error.newer if isinstance(error, StaleToken) else None,
    )


def _on_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, GonogoError)
    return problem_of_error(request, error)


def _on_text(request: Request, _: Exception) -> JSONResponse:
    """Refuse text that a database cannot hold (NUL characters, lone surrogates)."""
    return problem_of_error(request, Rejected("a text holds characters that cannot be stored"))


def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    whole = error.errors()
    found = whole[:MOST_PROBLEMS]
    unreadable = any(row["type"] == "json_invalid" for row in found)
    is_cursor = any(row["loc"][:2] == ("query", "cursor") for row in found)
    rows = [
        {
            "path": "" if unreadable else ".".join(str(part) for part in row["loc"][1:]),
            "message": str(row["msg"]).removeprefix("Value error, "),
        }
        for row in found
    ]
    sent_as = request.headers.get("content-type", "").partition(";")[0]
    is_whole = any(row["loc"] == ("body",) for row in found)
    if is_whole and not sent_as.endswith("json"):  # curl's default is a form
        text = "send the body as JSON, with the header Content-Type: application/json"
        rows = [{"path": "", "message": text}]
    first = rows[0]
    detail = f"{first['path']}: {first['message']}" if first["path"] else first["message"]
    if len(whole) > len(found):
        detail += f" (and {len(whole) - 1} more)"
    kind = BadRequest if unreadable or is_cursor else Rejected
    status = status_of(kind())
    return _problem(request, status, title=kind.title, detail=detail, code=kind.code, errors=rows)


def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _problem(
        request,
        error.status_code,
        headers=error.headers,
        title=HTTPStatus(error.status_code).phrase,
        detail=str(error.detail),
        code=_CODES.get(error.status_code, "error"),
    )


def _on_unexpected(request: Request, error: Exception) -> JSONResponse:
    number = uuid.uuid4().hex
    _log.error(
        "%s %s failed, request %s",
        request.method,
        request.url.path,
        number,
        exc_info=error,
        extra={"action": "request_failed", "request": number},
    )
    return _problem(
        request,
        500,
        headers={"X-Request-Id": number},
        title="An error of ours",
        detail=f"unexpected {type(error).__name__}; the service's log has request {number}",
        code="internal",
    )


_HANDLERS: tuple[tuple[type[Exception], Callable[[Request, Exception], JSONResponse]], ...] = (
    (GonogoError, _on_error),
    *(
        (kind, lambda request, _: problem_of_error(request, Unavailable(NO_ANSWER_TEXT)))
        for kind in NO_ANSWER
    ),
    (RequestValidationError, _on_invalid),
    (HTTPException, _on_http),
    (DataError, _on_text),
    (UnicodeEncodeError, _on_text),
    (Exception, _on_unexpected),
)


def add_handlers(app: FastAPI) -> None:
    """Make every error of the application a problem document."""
    for kind, handler in _HANDLERS:
        app.add_exception_handler(kind, handler)
