"""Runs and decisions: what they are, and everything that a run left behind."""

import mimetypes
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel

from gonogo.contract.api import ArtifactsView, LogView, RunView
from gonogo.contract.decision import Decision
from gonogo.contract.finding import Finding, Near
from gonogo.contract.lifecycle import RunState
from service.evidence.artifacts import list_artifacts, load_artifact
from service.evidence.files import load_heartbeats, load_log
from service.evidence.series import OwnMetric, SeriesMetric, SeriesView, load_series
from service.http.answers import WireResponse, file_response
from service.http.auth import Viewer
from service.http.dependencies import Cursor, Limit, Page, Reading, number_cursor
from service.queries.experiments import load_decision
from service.queries.runs import load_findings_page, load_progress, load_run
from service.views.rows import load_run_view, view_decision

router = APIRouter(tags=["runs"])
_SAFE_TYPES = ("text/plain", "application/json", "text/csv", "image/png")


@router.get("/runs/{run}", operation_id="show_run")
def show_run(session: Reading, _: Viewer, run: str) -> RunView:
    """Show a run."""
    return load_run_view(session, load_run(session, run))


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
    session: Reading,
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
    load_run(session, run)
    start = number_cursor(cursor) or after
    rows, next_cursor = load_heartbeats(session, run, rank, start, limit)
    return Page[HeartbeatView](
        items=[HeartbeatView(**row) for row in rows], next_cursor=next_cursor
    )


@router.get("/runs/{run}/series", operation_id="show_series")
def series(
    session: Reading,
    _: Viewer,
    run: str,
    metric: SeriesMetric | OwnMetric,
    points: Annotated[int, Query(ge=2, le=10_000)] = 500,
    rank: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
) -> SeriesView:
    """Return one metric over the steps, downsampled so that no peak is lost."""
    load_run(session, run)
    return load_series(session, run, metric, points, rank)


@router.get("/runs/{run}/findings", operation_id="list_findings")
def list_findings(
    session: Reading, _: Viewer, run: str, limit: Limit = 200, cursor: Cursor = None
) -> Page[Finding]:
    """List what the detectors found, in the order in which they did."""
    load_run(session, run)
    found, after = load_findings_page(session, run, limit=limit, after=number_cursor(cursor))
    return Page[Finding](items=found, next_cursor=after)


@router.get("/runs/{run}/near", operation_id="show_near")
def show_near(session: Reading, _: Viewer, run: str) -> dict[str, Near]:
    """Show how near each detector is to its limit, or why it is blind."""
    load_run(session, run)
    rows = load_progress(session, run).near or {}
    return {name: Near.model_validate(row) for name, row in rows.items()}


@router.get("/runs/{run}/logs", operation_id="show_log")
def show_log(
    session: Reading,
    _: Viewer,
    run: str,
    rank: Annotated[
        int | None, Query(ge=0, lt=10_000, description="None: a command's own, or torchrun's.")
    ] = None,
    tail: Annotated[int | None, Query(ge=1, le=10_000, description="Last so many lines.")] = None,
    offset: Annotated[int, Query(ge=0, lt=2**53, description="From this byte on.")] = 0,
) -> LogView:
    """Return a stretch of a log."""
    row = load_run(session, run)
    if rank is None and (row.order or {}).get("command"):
        found = load_log(session, run, 0, tail, offset)
        if found.text or row.state != RunState.ENDED:
            return found  # else the launcher says why the program has printed nothing
    return load_log(session, run, rank, tail, offset)


@router.get("/runs/{run}/artifacts", operation_id="list_artifacts")
def get_artifacts(session: Reading, _: Viewer, run: str) -> ArtifactsView:
    """List the files of a run that can be had here."""
    return list_artifacts(session, load_run(session, run))


@router.get(
    "/runs/{run}/artifacts/{path:path}",
    operation_id="show_artifact",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}, "description": "The file."}},
)
def get_artifact(session: Reading, _: Viewer, run: str, path: str) -> Response:
    """Return a file of a run; 409 `artifact_not_here` says on which host it lies."""
    found = load_artifact(session, load_run(session, run), path)
    kind = mimetypes.guess_type(path)[0]
    if path.endswith((".jsonl", ".log", ".md", ".yaml")):
        kind = "text/plain"
    media = kind if kind in _SAFE_TYPES else "application/octet-stream"
    headers = {"X-Content-Type-Options": "nosniff"}
    return file_response(found, media_type=media, headers=headers)


@router.get("/decisions/{decision}", operation_id="show_decision", response_model=Decision)
def show_decision(session: Reading, _: Viewer, decision: str) -> Response:
    """Show a decision as it was recorded, with its rules, facts, digests and signature."""
    return WireResponse(view_decision(load_decision(session, decision)))
