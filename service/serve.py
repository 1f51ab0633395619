"""Starting and stopping the control plane: migrate, keys, listen, announce, serve."""

import errno
import json
import logging
import os
import resource
import signal
import socket
import time
from types import FrameType

import uvicorn

from gonogo.contract.errors import Unavailable
from gonogo.rundir import save_json
from gonogo.settings import SERVICE_FILE
from service.app import create_app
from service.context import Context, open_context
from service.db.migrate import migrate
from service.http.auth import load_local_keys
from service.settings import Settings

STOP_S = 3
MOST_CONNECTIONS = 4096
_log = logging.getLogger(__name__)


def serve(settings: Settings, host: str, port: int, *, conduct: bool = True) -> None:
    """Serve until asked to stop.

    Prints one JSON line `{"url": …}` when it listens, and writes it to `service.json` in the home.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # each stream holds one
    migrate(settings.database_url)
    context = open_context(settings)
    try:
        load_local_keys(context)
        listener = _listen(host, port)
        context.local_url = near_url(host, listener.getsockname()[1])
        context.url = settings.public_url or context.local_url
        if not _is_near(host) and not context.url.startswith("https"):
            _log.warning(
                "listening on %s without https: keys and pages cross the network in clear; put a "
                "proxy with TLS in front (deploy/Caddyfile) and set GONOGO_PUBLIC_URL=https://…",
                host,
                extra={"action": "no_tls"},
            )
        config = uvicorn.Config(
            create_app(context, conduct=conduct),
            log_level="warning",
            access_log=False,
            ws="none",
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=STOP_S,
            timeout_keep_alive=30,
        )
        Server(config, context).run(sockets=[listener])
    finally:
        context.closing.set()
        context.store.close()


def _leave(number: int, frame: FrameType | None) -> None:
    """End in good order; uvicorn raises its signal again when it has stopped."""
    raise SystemExit(0)


class Server(uvicorn.Server):
    """Announces itself when it listens, and lets event streams end when it stops."""

    def __init__(self, config: uvicorn.Config, context: Context) -> None:
        super().__init__(config)
        self._context = context
        self._notifier = context.settings.notifier

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve."""
        await super().startup(sockets=sockets)
        if self.started:
            place = self._context.settings.home / SERVICE_FILE
            url = self._context.local_url
            save_json(place, {"url": url, "pid": os.getpid(), "host": socket.gethostname()})
            print(json.dumps({"url": self._context.local_url}), flush=True)
            self._notifier.say(READY="1", STATUS=f"answers at {self._context.url}")

    async def on_tick(self, counter: int) -> bool:
        """Say, from the loop that answers requests, that it turns."""
        self._notifier.live(time.monotonic())
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop."""
        self._notifier.say(STOPPING="1")
        if not self._context.closing.is_set():  # a second signal may find us in there
            self._context.closing.set()
        super().handle_exit(sig, frame)


def near_url(host: str, port: int) -> str:
    """Return where this host reaches a service that listens at `host`."""
    address = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def _is_near(host: str) -> bool:
    return host == "localhost" or host == "::1" or host.startswith("127.")


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        way_out = "; --port 0 takes a free one" if error.errno == errno.EADDRINUSE else ""
        raise Unavailable(f"cannot listen on {host}:{port}: {error}{way_out}") from error
    listener.listen(2048)
    return listener
