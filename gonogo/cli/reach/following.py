"""How does a command hear at once what happens to an experiment? From its stream of events.

A thread reads the server-sent events and wakes whoever waits; the numbers of the living run come
with the stream. Where there is no stream (an old service, too many listeners, a proxy that holds
answers back) the waiter is told so after each `wait`, and looks for himself as often as he waits.
"""

import json
import socket
import threading
from dataclasses import dataclass
from typing import Any, Self

import httpx

from gonogo.cli.client import Client
from gonogo.contract.errors import GonogoError, Unavailable

FIRST_RETRY_S = 0.5
LAST_RETRY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What came since the last `wait`."""

    connected: bool
    """Whether the stream is open: nothing that happens is missed."""
    events: int = 0
    """How many events came; what they changed has to be looked up."""
    progress: dict[str, Any] | None = None
    """The newest numbers of the living run: run, step, loss, toks_per_s, last_heartbeat_at."""


class EventStream:
    """Follows one experiment's events until it is closed; use it as a context manager."""

    def __init__(self, client: Client, experiment: str) -> None:
        self._client = client
        self._path = f"/experiments/{experiment}/events"
        self._news = threading.Condition()
        self._closing = threading.Event()
        self._connected = False
        self._events = 0
        self._progress: dict[str, Any] | None = None
        self._last_id: str | None = None
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._follow, name="events", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        found = self._socket
        if found is not None:
            try:
                found.shutdown(socket.SHUT_RDWR)  # ends the read that the thread waits in
            except OSError:
                pass
        self._thread.join(2.0)

    def wait(self, timeout_s: float) -> Heard:
        """Return what has come, as soon as something has, at the latest after `timeout_s`."""
        with self._news:
            self._news.wait_for(lambda: self._events or self._progress, timeout_s)
            heard = Heard(connected=self._connected, events=self._events, progress=self._progress)
            self._events, self._progress = 0, None
        return heard

    def _follow(self) -> None:
        pause_s = FIRST_RETRY_S
        while not self._closing.is_set():
            try:
                self._read()
                pause_s = FIRST_RETRY_S
            except (httpx.HTTPError, Unavailable, ValueError):
                pause_s = min(2 * pause_s, LAST_RETRY_S)
            except GonogoError:
                return  # not ours to see, or not there: the next look says so
            finally:
                with self._news:
                    self._connected, self._socket = False, None
            self._closing.wait(pause_s)

    def _read(self) -> None:
        """Read one connection to its end."""
        headers = {"Last-Event-ID": self._last_id} if self._last_id else {}
        with self._client.stream(self._path, headers) as response:
            stream = response.extensions.get("network_stream")
            self._socket = stream.get_extra_info("socket") if stream is not None else None
            with self._news:
                self._connected = True
            kind = ""
            for line in response.iter_lines():
                if self._closing.is_set():
                    return
                name, _, value = line.partition(": ")
                if name == "event":
                    kind = value
                elif name == "id":
                    self._last_id = value
                elif name == "data":
                    self._take(kind, json.loads(value))

    def _take(self, kind: str, data: dict[str, Any]) -> None:
        with self._news:
            if kind == "progress":
                self._progress = data
            else:
                self._events += 1
            self._news.notify_all()
