"""How long may a connection keep its place without asking anything whole, or taking its answer?

uvicorn waits for the rest of a request, and for who is to read an answer, for ever, takes every
connection there is room for, a request's head of any length and as many requests ahead of their
answers as are sent: who has no key could use up the files that the database and the run directories
need, the memory, and the time of all others.

Of connections on which no living key was shown (`show_key`) `STRANGERS` are kept. Who comes then is
taken, and the one that has waited longest for its caller goes: so strangers shut nobody out, and
one that is being answered stays.
"""

import asyncio
import fcntl
import logging
import resource
import sys
import termios
from contextlib import suppress
from http import HTTPStatus
from typing import Any, cast
from weakref import WeakKeyDictionary

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from gonogo.contract.api import ProblemBody
from service.http.problems import TOO_LARGE, BadRequest, problem_response

REQUEST_S = 120.0
"""From a request's first byte, or a connection's beginning, to the end of its head; and for each
`PACE_BYTES` of its body, so that a slow link may send as long as it takes."""
PACE_BYTES = 2**16
HEAD_BYTES = 2**16
"""Of a request beside its body: its address and headers, and what is sent between the pieces."""
MOST_HEADERS = 100
"""Of one request: a byte of a short one takes twenty of memory."""
MOST_WAITING = 64
"""Requests that wait on one connection for the answer to the one before."""
STRANGERS = 1024
"""Connections without a living key; each may take a megabyte, with what waits on it."""
_LOOKS = 64
"""At strangers, for each that comes while there are too many."""
SPARE_FILES = 256
"""Of the files that the process may open: not for connections; of few, half."""
_MOST_FILES = 65_536
_SHOWN = "key_shown"
_strangers: WeakKeyDictionary[ServerState, dict["Connection", None]] = WeakKeyDictionary()
"""Server → its connections without a living key, those that came or were looked at first, first."""
_own_faults = logging.getLogger(f"{__name__}.own_faults")
_own_faults.setLevel(logging.ERROR)  # a stranger's nonsense is answered, and fills no log
# No child of uvicorn's: as it starts it configures those anew, and the level would be gone.


def raise_file_limit() -> None:
    """Let this process open as many files as it may allow itself, 65 536 at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections(files: int) -> int:
    """Return how many connections a process may hold that may open so many files."""
    return files - min(SPARE_FILES, files // 2)


def show_key(scope: Scope) -> None:
    """Take note that a request came with a living key: its connection is no stranger's."""
    scope.setdefault("state", {})[_SHOWN] = True


class Connection(HttpToolsProtocol):
    """A connection that ends where a request does not become whole, or nobody reads, in time."""

    _due: asyncio.TimerHandle | None = None
    _look: asyncio.TimerHandle | None = None
    _unsent: int | None = None
    """Bytes of an answer that wait to be read, at the last look, while nothing was taken since."""
    _answered: RequestResponseCycle | None = None
    """The request that is being answered; others may wait behind it."""
    _come = 0
    """Bytes since it was last armed."""
    _beside = 0
    """Bytes since a request or a piece of its body began, or was whole."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, unless it would need one of the spare files."""
        super().connection_made(cast(asyncio.Transport, transport))
        self.logger = _own_faults
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and len(self.connections) > most_connections(soft):
            self.transport.abort()
        else:
            self._arm()
            self._look = self.loop.call_later(REQUEST_S, self._look_for_reader)
            strangers = self._strangers()
            strangers[self] = None
            if len(strangers) > STRANGERS:
                _make_room(strangers)

    def data_received(self, data: bytes) -> None:
        """Read on, and look whether the request is whole now."""
        self._come += len(data)
        self._beside += len(data)
        super().data_received(data)
        too_much = self._beside > HEAD_BYTES or len(self.headers or ()) > MOST_HEADERS
        if too_much and not self.transport.is_closing():
            self._refuse_head()
        elif not self._waits():
            self._disarm()
        elif self._due is None:
            self._arm()
        elif self._come >= PACE_BYTES and self._has_body_to_come():
            self._disarm()
            self._arm()

    def on_message_begin(self) -> None:
        """Begin to count a request's head."""
        self._beside = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Take a request, unless too many wait before it."""
        if len(self.pipeline) >= MOST_WAITING:
            self.transport.abort()
        if not self.transport.is_closing():
            super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request; nothing more is read while others wait."""
        if self.has_shown_key():
            self._strangers().pop(self, None)
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body, which is bounded by route."""
        self._beside = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Have a whole request."""
        self._beside = 0
        super().on_message_complete()

    def resume_writing(self) -> None:
        """Somebody reads."""
        self._unsent = None
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._disarm()
        self._strangers().pop(self, None)
        if self._look is not None:
            self._look.cancel()
            self._look = None
        self.pipeline.clear()
        if self._answered is not None:  # uvicorn tells the newest alone that nobody is there
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def has_shown_key(self) -> bool:
        """Say whether the request that is being answered came with a living key."""
        return self._answered is not None and _SHOWN in self._answered.scope["state"]

    def waits_for_caller(self) -> bool:
        """Say whether it is for its caller to ask, to read, or to wait for fewer answers."""
        return self._waits() or self.flow.write_paused or bool(self.pipeline)

    def _strangers(self) -> dict["Connection", None]:
        return _strangers.setdefault(self.server_state, {})

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _waits(self) -> bool:
        cycle: Any = self.cycle  # None until the first request's headers are there
        return cycle is None or bool(cycle.response_complete or cycle.more_body)

    def _has_body_to_come(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and bool(cycle.more_body and not cycle.response_complete)

    def _arm(self) -> None:
        self._come = 0
        self._due = self.loop.call_later(REQUEST_S, self._end)

    def _disarm(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _end(self) -> None:
        self._due = None
        if self._waits() and not self.transport.is_closing():
            self.transport.abort()

    def _refuse_head(self) -> None:
        """Read nothing more; who has no answer to come yet is told why."""
        if self._has_body_to_come() or not self._waits():
            self.transport.abort()
            return
        self._refuse(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            TOO_LARGE,
            f"address and headers have at most {HEAD_BYTES} bytes and {MOST_HEADERS} headers",
        )

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP (uvicorn's name, and its text)."""
        self._refuse(HTTPStatus.BAD_REQUEST, BadRequest.code, msg)

    def _refuse(self, status: HTTPStatus, code: str, text: str) -> None:
        """Answer by a problem, as everywhere, and end the connection."""
        problem = ProblemBody(title=status.phrase, status=status, detail=text, code=code)
        answer = problem_response(problem, {"Connection": "close"})
        lines = [b"%b: %b\r\n" % row for row in answer.raw_headers]
        self.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", answer.body]))
        self.transport.close()

    def _count_unsent(self) -> int:
        """Return how many bytes the other side has not taken, those that the kernel holds too."""
        waiting = self.transport.get_write_buffer_size()
        if waiting:
            with suppress(OSError):
                own = self.transport.get_extra_info("socket").fileno()
                held = fcntl.ioctl(own, termios.TIOCOUTQ, bytes(4))  # of a socket: SIOCOUTQ
                waiting += int.from_bytes(held, sys.byteorder)
        return waiting

    def _look_for_reader(self) -> None:
        """End a connection whose answer has waited since the last look, and nobody took any."""
        waiting = self._count_unsent()
        if not (waiting and (self.flow.write_paused or self.transport.is_closing())):
            self._unsent = None
        elif self._unsent is None or waiting < self._unsent:
            self._unsent = waiting
        else:
            self._look = None
            self.transport.abort()
            return
        self._look = self.loop.call_later(REQUEST_S, self._look_for_reader)


def _make_room(strangers: dict[Connection, None]) -> None:
    """End the first connection that waits for its caller, of those that nobody showed a key on."""
    for _ in range(min(_LOOKS, len(strangers))):
        first = next(iter(strangers))
        del strangers[first]
        if first.has_shown_key():
            continue
        if first.waits_for_caller():
            first.transport.abort()
            return
        strangers[first] = None
