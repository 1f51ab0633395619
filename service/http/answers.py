"""Answers: JSON of the wire, files, and one answer shared by all who ask at the same time."""

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, Generic, TypeVar

from fastapi import Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from gonogo.contract.canonical import wire_value

_T = TypeVar("_T")
_PIECE = 2**16
LOCATION_HEADER: dict[str, Any] = {
    "Location": {"description": "Path of what was made.", "schema": {"type": "string"}}
}


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


class Shared(Generic[_T]):
    """Makes one answer at a time, in a thread; an answer is given again for `keep_s` seconds."""

    def __init__(
        self,
        make: Callable[[], _T],
        keep_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._keep_s, self._clock = make, keep_s, clock
        self._made_at = -math.inf
        self._last: _T | None = None
        self._making = asyncio.Lock()

    async def get(self) -> _T:
        """Return a fresh answer, or one that is at most `keep_s` old."""
        async with self._making:
            if self._last is None or self._clock() - self._made_at >= self._keep_s:
                self._last = await run_in_threadpool(self._make)
                self._made_at = self._clock()
            return self._last
