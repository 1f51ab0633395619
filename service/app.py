"""The web application: one table of routers, and the routes outside /api."""

import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from gonogo import __version__
from gonogo.contract.api import ProblemBody
from gonogo.contract.errors import Unavailable
from service import metrics
from service.conductor.conductor import JOIN_S, Conductor, Loop
from service.conductor.upkeep import FILES_S, save_decision_files
from service.context import Context
from service.db.store import Topic
from service.http.answers import Limits, WireResponse
from service.http.auth import Service
from service.http.problems import DOCUMENTED, add_handlers
from service.pages import sign_in
from service.pages.routes import PAGES
from service.report import files as report
from service.rest import agent, experiments, overview, plans, runs, verbs

_UNTRACED: Any = {"tracing": False, "metrics": False, "logs": False}
"""The framework would look for tracers at every request; what is measured is in /metrics."""
API = (
    experiments.router,
    report.router,
    verbs.router,
    experiments.campaigns,
    runs.router,
    plans.router,
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


_PAGE = re.compile(r"Page[_[]([A-Za-z]+?)(?:View)?[_\]](?=\")")
"""What pydantic calls a page of views: `Page_ExperimentView_`, to clients `ExperimentPage`."""


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
        named = _PAGE.sub(r"\1Page", json.dumps(schema))
        app.openapi_schema = json.loads(named)
    return app.openapi_schema
