"""How is answered who asks for the host's series? Anybody may, so all of them together cost little.

No key is asked for, and beyond loopback every host that reaches this one may ask. So the text is
made at most once in `AGAIN_S`, whoever asks meanwhile gets the same, and of more than `MOST`
connections the one that came first is ended: a stranger who holds them takes neither the files nor
the threads that the worker needs for its runs, and Prometheus still comes in. Nor does a disk that
hangs: while nobody is answered, of more than twice as many the newest is turned away.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.exposition import ThreadingWSGIServer

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

MOST = 16
SILENT_S = 10.0
"""How long a connection may say nothing."""
AGAIN_S = 1.0
_log = logging.getLogger(__name__)


class Recent:
    """A text that is made anew once it is older than `AGAIN_S`.

    Args:
        make: makes it.
        clock: returns monotonic seconds.
    """

    def __init__(
        self, make: Callable[[], bytes], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make, self._clock = make, clock
        self._making = threading.Lock()
        self._text = b""
        self._made_at = float("-inf")

    def get(self) -> bytes:
        """Return it; who comes while it is made waits for that."""
        with self._making:
            if self._clock() - self._made_at >= AGAIN_S:
                self._text = self._make()
                self._made_at = self._clock()
            return self._text


class Server(ThreadingWSGIServer):
    """Holds a few connections, the newest."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self._held: dict[socket.socket, None] = {}
        self._ended: set[socket.socket] = set()
        self._holding = threading.Lock()
        super().__init__(*given, **named)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; the connection that came first makes room for one too many."""
        with self._holding:
            self._held[request] = None
            waiting = [held for held in self._held if held not in self._ended]
            if len(waiting) > MOST:
                self._ended.add(waiting[0])
                _end(waiting[0])
            room = len(self._held) <= 2 * MOST
        if room:
            super().process_request(request, client_address)
        else:  # those that were ended do not leave: the host cannot be looked at just now
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that is over."""
        with self._holding:
            self._held.pop(request, None)
            self._ended.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say little: what a stranger breaks off fills no log."""
        _log.debug("%s broke off", client_address, exc_info=True)


class Handler(WSGIRequestHandler):
    """Reads one request, and waits no longer than `SILENT_S` for any part of it."""

    timeout = SILENT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def start_server(text: Recent, host: str, port: int) -> Server:
    """Answer every request by the text, in threads of its own.

    Raises:
        OSError: the port is taken.
    """

    def answer(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        body = text.get()
        start("200 OK", [("Content-Type", CONTENT_TYPE_LATEST), ("Content-Length", str(len(body)))])
        return [body]

    server = make_server(host, port, answer, Server, Handler)
    threading.Thread(target=server.serve_forever, name="exporter", daemon=True).start()
    return server


def _end(connection: socket.socket) -> None:
    """Let whoever reads from a connection, or writes to it, find it over."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # it is over already
        pass
