"""Answering an open file with the size that it had when it was opened."""

from collections.abc import Iterator, Mapping
from typing import IO

from fastapi.responses import StreamingResponse

_PIECE = 2**16


def file_response(
    stream: IO[bytes], *, media_type: str, headers: Mapping[str, str]
) -> StreamingResponse:
    """Return an answer that brings a file, and closes it."""
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
