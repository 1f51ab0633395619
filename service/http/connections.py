"""How long may a connection keep its place without asking anything whole?

uvicorn waits for the rest of a request for ever, and takes every connection there is room for: who
has no key could use up the files that the database and the run directories need.
"""

import asyncio
import resource
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

REQUEST_S = 120.0
"""From a request's first byte, or a connection's beginning, to its last byte."""
SPARE_FILES = 256
"""Of the files that the process may open: not for connections."""
_MOST_FILES = 65_536


def raise_file_limit() -> None:
    """Let this process open as many files as it may allow itself, 65 536 at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Connection(HttpToolsProtocol):
    """A connection that ends where a request does not become whole in time."""

    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, unless it would need one of the spare files."""
        super().connection_made(cast(asyncio.Transport, transport))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and len(self.connections) > soft - SPARE_FILES:
            self.transport.abort()
        else:
            self._arm()

    def data_received(self, data: bytes) -> None:
        """Read on, and look whether the request is whole now."""
        super().data_received(data)
        if not self._waits():
            self._disarm()
        elif self._due is None:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._disarm()
        super().connection_lost(exc)

    def _waits(self) -> bool:
        cycle: Any = self.cycle  # None until the first request's headers are there
        return cycle is None or bool(cycle.response_complete or cycle.more_body)

    def _arm(self) -> None:
        self._due = self.loop.call_later(REQUEST_S, self._end)

    def _disarm(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _end(self) -> None:
        self._due = None
        if self._waits() and not self.transport.is_closing():
            self.transport.abort()
