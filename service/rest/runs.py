"""Runs and decisions: what they are, and everything that a run left behind."""

import mimetypes
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.api import ArtifactsView, LogView, RunView
from gonogo.contract.decision import Decision
from gonogo.contract.errors import NotFound
from gonogo.contract.finding import Finding
from gonogo.contract.ids import Kind, is_id
from service.db.schema import DecisionRow, ExperimentRow, FindingRow, ProgressRow
from service.evidence.artifacts import list_artifacts, load_artifact
from service.evidence.heartbeats import load_heartbeats
from service.evidence.logs import load_log
from service.evidence.series import SeriesMetric, SeriesView, load_series
from service.experiments.course import resolved_of
from service.experiments.lifecycle import load_run
from service.http.auth import Service, Viewer
from service.http.paging import Cursor, Limit, Page, load_page, number_cursor, page_of
from service.http.problems import WireResponse
from service.views.runs import view_decision, view_finding, view_run

router = APIRouter(tags=["runs"])
_SAFE_TYPES = ("text/plain", "application/json", "text/csv", "image/png")


@router.get("/runs/{run}", operation_id="show_run")
def show_run(context: Service, _: Viewer, run: str) -> RunView:
    """Show a run."""

    def work(session: Session) -> RunView:
        row = load_run(session, run)
        view = view_run(row, session.get_one(ProgressRow, run))
        if view.steps:
            return view
        plan = resolved_of(session.get_one(ExperimentRow, row.experiment)).parsed()
        return view.model_copy(update={"steps": plan.phase(row.phase).steps})

    return context.store.read(work)


class HeartbeatView(BaseModel):
    """A heartbeat as it arrived."""

    n: int
    """In the order of arrival."""
    rank: int
    boot: str
    """Empty: the line could not be read."""
    seq: int
    step: int
    msg: str
    line: str
    """As it stands in the rank's file."""


@router.get("/runs/{run}/heartbeats", operation_id="list_heartbeats")
def list_heartbeats(
    context: Service,
    _: Viewer,
    run: str,
    after: Annotated[
        int, Query(ge=0, lt=2**53, description="Only what arrived after this `n`.")
    ] = 0,
    rank: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
    limit: Limit = 1000,
    cursor: Cursor = None,
) -> Page[HeartbeatView]:
    """List heartbeats in the order of their arrival: rank, boot, seq, and the line itself."""

    def work(session: Session) -> dict[str, Any]:
        load_run(session, run)
        start = number_cursor(cursor) or after
        items, next_cursor = load_heartbeats(session, run, rank, start, limit)
        return {"items": items, "next_cursor": next_cursor}

    return Page[HeartbeatView](**context.store.read(work))


@router.get("/runs/{run}/series", operation_id="show_series")
def series(
    context: Service,
    _: Viewer,
    run: str,
    metric: SeriesMetric,
    points: Annotated[int, Query(ge=2, le=10_000)] = 500,
    rank: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
) -> SeriesView:
    """Return one metric over the steps, downsampled so that no peak is lost."""

    def work(session: Session) -> SeriesView:
        load_run(session, run)
        return load_series(session, run, metric, points, rank)

    return context.store.read(work)


@router.get("/runs/{run}/findings", operation_id="list_findings")
def list_findings(
    context: Service, _: Viewer, run: str, limit: Limit = 200, cursor: Cursor = None
) -> Page[Finding]:
    """List what the detectors found, in the order in which they did."""

    def work(session: Session) -> dict[str, Any]:
        load_run(session, run)
        query = select(FindingRow).where(FindingRow.run == run)
        after = number_cursor(cursor)
        rows, next_cursor = load_page(session, query, FindingRow.n, limit=limit, after=after)
        return page_of(rows, next_cursor, view_finding)

    return Page[Finding](**context.store.read(work))


@router.get("/runs/{run}/logs", operation_id="show_log")
def show_log(
    context: Service,
    _: Viewer,
    run: str,
    rank: Annotated[int | None, Query(ge=0, lt=10_000, description="None: torchrun's.")] = None,
    tail: Annotated[int | None, Query(ge=1, le=10_000, description="Last so many lines.")] = None,
    offset: Annotated[int, Query(ge=0, lt=2**53, description="From this byte on.")] = 0,
) -> LogView:
    """Return a stretch of a log."""

    def work(session: Session) -> LogView:
        load_run(session, run)
        return load_log(session, run, rank, tail, offset)

    return context.store.read(work)


@router.get("/runs/{run}/artifacts", operation_id="list_artifacts")
def get_artifacts(context: Service, _: Viewer, run: str) -> ArtifactsView:
    """List the files of a run that can be had here."""
    return context.store.read(lambda session: list_artifacts(session, load_run(session, run)))


@router.get(
    "/runs/{run}/artifacts/{path:path}",
    operation_id="show_artifact",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}, "description": "The file."}},
)
def get_artifact(context: Service, _: Viewer, run: str, path: str) -> Response:
    """Return a file of a run; 409 `artifact_not_here` says on which host it lies."""
    found = context.store.read(lambda session: load_artifact(session, load_run(session, run), path))
    kind = mimetypes.guess_type(path)[0]
    if path.endswith((".jsonl", ".log", ".md", ".yaml")):
        kind = "text/plain"
    media = kind if kind in _SAFE_TYPES else "application/octet-stream"
    headers = {"X-Content-Type-Options": "nosniff"}
    if isinstance(found, bytes):
        return Response(found, media_type=media, headers=headers)
    return FileResponse(found, media_type=media, headers=headers)


@router.get("/decisions/{decision}", operation_id="show_decision", response_model=Decision)
def show_decision(context: Service, _: Viewer, decision: str) -> Response:
    """Show a decision as it was recorded, with its rules, facts, digests and signature."""

    def work(session: Session) -> dict[str, Any]:
        known = is_id(decision, Kind.DECISION)
        row = session.get(DecisionRow, decision) if known else None
        if row is None:
            raise NotFound(f"there is no decision {decision}")
        return view_decision(row)

    return WireResponse(context.store.read(work))
