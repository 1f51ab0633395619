"""The web application: its table of routers, the routes outside /api, and how it is served."""

import errno
import json
import logging
import os
import resource
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from types import FrameType
from typing import Any

import uvicorn
from fastapi import APIRouter, FastAPI, Request, Response
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from gonogo import __version__
from gonogo.contract.api import ProblemBody
from gonogo.contract.errors import Unavailable
from gonogo.rundir import save_json
from gonogo.settings import SERVICE_FILE
from service import metrics
from service.conductor.conductor import FILES_S, JOIN_S, Conductor, Loop, save_decision_files
from service.context import Context, open_context
from service.db.store import Topic, migrate
from service.http.answers import DOCUMENTED, Limits, WireResponse, add_handlers
from service.http.auth import Service, load_local_keys
from service.pages import sign_in
from service.pages.routes import PAGES
from service.report import files as report
from service.rest import agent, experiments, overview, runs, verbs
from service.settings import Settings

_UNTRACED: Any = {"tracing": False, "metrics": False, "logs": False}
"""The framework would look for tracers at every request; what is measured is in /metrics."""
API = (
    experiments.router,
    report.router,
    verbs.router,
    experiments.campaigns,
    runs.router,
    overview.plans,
    overview.router,
    sign_in.api,
    agent.router,
)
"""Routers below /api/v1; each call of theirs asks for a key."""
open_routes = APIRouter(tags=["open"])


@open_routes.get("/healthz", operation_id="show_health")
async def healthz() -> dict[str, str]:
    """Say that the process lives; waits for no thread, so that a slow database ends nothing."""
    return {"status": "ok", "version": __version__}


@open_routes.get("/readyz", operation_id="show_readiness", responses={503: DOCUMENTED[503]})
def readyz(context: Service) -> dict[str, str]:
    """Say that the database answers, and that it takes writes; `room`, that it soon takes none."""
    try:
        context.store.read(lambda session: session.execute(_REVISION).scalar())
    except ProgrammingError as error:  # a fail-over to an empty one, say
        raise Unavailable("the database holds no tables of ours") from error
    if not context.store.can_write(_WRITE_S):
        raise Unavailable(f"the database took no write within {_WRITE_S:.0f} s")
    free = shutil.disk_usage(context.settings.home).free
    low = {"room": f"low: {free >> 20} MB are free where the service writes"}
    return {"status": "ready", **(low if free < _ROOM_BYTES else {})}


@open_routes.api_route("/openapi.json", methods=["GET", "HEAD"], include_in_schema=False)
def openapi(request: Request) -> Response:
    """Describe every call, for programs that make clients."""
    return Response(request.app.state.described(), media_type="application/json")


_REVISION = text("SELECT version_num FROM alembic_version")
_WRITE_S = 3.0
_ROOM_BYTES = 64 * 2**20
OPEN = (open_routes, metrics.router, *PAGES)


def _all_routes() -> APIRouter:
    table = APIRouter(default_response_class=WireResponse)
    for router in API:
        table.include_router(router, prefix="/api/v1", responses=DOCUMENTED)
    for router in OPEN:
        table.include_router(router)
    return table


ROUTES = _all_routes().routes
"""Every route once: what the framework finds out about each at its first request is kept by it."""


def create_app(context: Context, *, conduct: bool = True) -> FastAPI:
    """Return the web application; with `conduct` it also runs the conductor's loops."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        conductor = Conductor(context) if conduct else None
        app.state.conductor = conductor
        files = Loop("files", partial(save_decision_files, context), FILES_S, hears=Topic.DECIDED)
        if conductor is not None:
            conductor.start()
        files.start(context, lambda: True)
        yield
        context.closing.set()
        context.bell.ring_all()
        if conductor is not None:
            conductor.close()
        files.join(JOIN_S)

    app = FastAPI(
        title="gonogo",
        version=__version__,
        summary="Runs training experiments phase by phase, and ends each in a GO or NO_GO.",
        lifespan=lifespan,
        openapi_url=None,  # it would be written again for each request
        docs_url=None,  # both would load scripts from elsewhere into the pages' origin
        redoc_url=None,
        redirect_slashes=False,  # it would lead to whatever host the request names
        default_response_class=WireResponse,
        routes=ROUTES,
        telemetry=_UNTRACED,
    )
    app.state.context = context
    app.state.conductor = None
    app.add_middleware(Limits)
    add_handlers(app)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]  # FastAPI's own idiom
    app.state.described = cache(
        lambda: json.dumps(app.openapi(), ensure_ascii=False, separators=(",", ":")).encode()
    )
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, with the one model of problems that every error has."""
    if app.openapi_schema is None:
        schema = FastAPI.openapi(app)
        schemas = schema["components"]["schemas"]
        schemas["ProblemBody"] = ProblemBody.model_json_schema(
            ref_template="#/components/schemas/{model}"
        )
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        app.openapi_schema = schema
    return app.openapi_schema


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
        near = host in ("localhost", "::1") or host.startswith("127.")
        if not near and not context.url.startswith("https"):
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
