"""How does the control plane start and stop? Migrate, keys, listen, announce, serve."""

import asyncio
import json
import os
import socket
import sys

import uvicorn

from gonogo.contract.errors import Unavailable
from gonogo.contract.rundir import save_json
from service.app import create_app
from service.auth import load_local_keys
from service.context import open_context
from service.db.migrate import migrate
from service.settings import Settings

STOP_S = 3
"""How long open connections may take to end when the service is told to stop."""


def serve(settings: Settings, host: str, port: int, *, conduct: bool = True) -> None:
    """Serve until told to stop.

    Prints one JSON line `{"url": …}` when it listens, and writes it to `service.json` in the home.

    Raises:
        Unavailable: the address cannot be had.
    """
    migrate(settings.database_url)
    context = open_context(settings)
    try:
        load_local_keys(context)
        listener = _listen(host, port)
        address = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
        context.url = f"http://{address}:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            create_app(context, conduct=conduct),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=STOP_S,
            timeout_keep_alive=30,
        )
        asyncio.run(_run(uvicorn.Server(config), listener, context.url, settings))
    finally:
        context.closing.set()
        context.store.close()


async def _run(
    server: uvicorn.Server, listener: socket.socket, url: str, settings: Settings
) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if server.started:
        save_json(settings.home / "service.json", {"url": url, "pid": os.getpid()})
        print(json.dumps({"url": url}), flush=True)
        sys.stdout.flush()
    await serving


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise Unavailable(f"cannot listen on {host}:{port}: {error}") from error
    listener.listen(2048)
    return listener
