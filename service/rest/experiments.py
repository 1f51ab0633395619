"""Experiments: submit, list, show, follow their events."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Query, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from gonogo.contract.api import DryRun, ExperimentView, Forecast, Submission
from gonogo.contract.decision import Decision
from gonogo.contract.ids import Kind
from gonogo.contract.lifecycle import ExperimentState
from gonogo.planning.checks import warnings_of
from gonogo.planning.resolve import ResolvedPlan
from service.context import Context
from service.experiments.lifecycle import Deed
from service.experiments.origins import Origin, load_origin
from service.experiments.submission import (
    build_dry_run,
    create_experiment,
    resolve_submission,
    with_plan,
)
from service.experiments.workers import load_warnings
from service.http.answers import LOCATION_HEADER, WireResponse, model_response
from service.http.auth import Operator, Service, Viewer
from service.http.dependencies import (
    ETAG_HEADER,
    Creation,
    Cursor,
    IdempotencyKey,
    IfNoneMatch,
    Limit,
    Page,
    Reading,
    create_once,
    etag_of,
    id_cursor,
    is_same,
    number_cursor,
)
from service.http.streams import Place, stream_events
from service.queries.experiments import load_decisions_page, load_experiment, load_experiments
from service.views.experiments import view_experiment, view_experiments, view_new
from service.views.rows import view_decision

router = APIRouter(tags=["experiments"])
Submitted = Annotated[Submission, Body(examples=[{"plan": "demo", "set": {"fault": "hang"}}])]


@router.post(
    "/experiments",
    operation_id="create_experiment",
    status_code=201,
    response_model=ExperimentView,
    responses={
        201: {"description": "It is queued.", "headers": LOCATION_HEADER},
        200: {"model": DryRun, "description": "`dry_run`: what would run; nothing is stored."},
    },
)
def submit(
    context: Service,
    caller: Operator,
    submission: Submitted,
    key: IdempotencyKey = None,
) -> WireResponse:
    """Submit an experiment, or (`dry_run`) only resolve its plan."""
    submission = _whole(context, submission)
    resolved = resolve_submission(submission)
    origin = _origin(context, submission, resolved)
    if submission.dry_run:
        return WireResponse(_preview(context, resolved, origin))
    creation = Creation(caller=caller, route="POST /experiments", key=key, body=submission)
    answer = create_once(context, creation, _create, submission, resolved, origin)
    location = f"/api/v1/experiments/{answer['id']}"
    return WireResponse(answer, 201, headers={"Location": location})


def _create(
    deed: Deed, submission: Submission, resolved: ResolvedPlan, origin: Origin | None
) -> dict[str, Any]:
    plan = resolved.parsed()
    view = view_new(deed.session, create_experiment(deed, submission, resolved, origin))
    warnings = [*warnings_of(plan), *load_warnings(deed.session, plan, deed.now)]
    return view.model_copy(update={"warnings": warnings}).wire()


@router.post("/experiments/preview", operation_id="preview_experiment", response_model=DryRun)
def preview(context: Service, _: Operator, submission: Submitted) -> WireResponse:
    """Resolve what would be submitted: its plan and the order of every phase; stores nothing."""
    submission = _whole(context, submission)
    resolved = resolve_submission(submission)
    return WireResponse(_preview(context, resolved, _origin(context, submission, resolved)))


def _whole(context: Context, submission: Submission) -> Submission:
    return context.store.read(lambda session: with_plan(session, submission))


def _origin(context: Context, submission: Submission, resolved: ResolvedPlan) -> Origin | None:
    said = submission.origin
    if said is None:
        return None
    return context.store.read(lambda session: load_origin(session, said, resolved))


def _preview(context: Context, resolved: ResolvedPlan, origin: Origin | None) -> dict[str, Any]:
    plan = resolved.parsed()
    waits = context.store.read(lambda session: load_warnings(session, plan, context.now()))
    return build_dry_run(resolved, waits, origin)


@router.get("/experiments", operation_id="list_experiments", response_model=Page[ExperimentView])
def list_experiments(
    session: Reading,
    _: Viewer,
    state: ExperimentState | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List experiments, newest first."""
    first = id_cursor(cursor, Kind.EXPERIMENT)
    rows, after = load_experiments(session, limit=limit, after=first, state=state)
    page = Page[ExperimentView](items=view_experiments(session, rows), next_cursor=after)
    return model_response(page)


@router.get(
    "/experiments/{experiment}",
    operation_id="show_experiment",
    response_model=ExperimentView,
    responses={
        200: {"description": "The experiment as it stands.", "headers": ETAG_HEADER},
        304: {"description": "`If-None-Match` names it: nothing changed.", "headers": ETAG_HEADER},
    },
)
def show_experiment(
    session: Reading,
    _: Viewer,
    experiment: str,
    response: Response,
    if_none_match: IfNoneMatch = None,
) -> ExperimentView | Response:
    """Show an experiment; its `ETag` goes into `If-Match` of approvals and overrides."""
    row = load_experiment(session, experiment)
    view = view_experiment(session, row)
    etag = etag_of(row, view)
    if is_same(etag, if_none_match):
        return Response(status_code=304, headers={"ETag": etag})
    response.headers["ETag"] = etag
    return view


@router.get(
    "/experiments/{experiment}/decisions",
    operation_id="list_decisions",
    response_model=Page[Decision],
)
def list_decisions(
    session: Reading, _: Viewer, experiment: str, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """List the decisions of an experiment as they were recorded, oldest first."""
    load_experiment(session, experiment)
    first = number_cursor(cursor)
    rows, after = load_decisions_page(session, experiment, limit=limit, after=first)
    return WireResponse({"items": [view_decision(row) for row in rows], "next_cursor": after})


@router.get("/experiments/{experiment}/forecast", operation_id="show_forecast")
def forecast(session: Reading, _: Viewer, experiment: str) -> Forecast:
    """Say how long the rest takes, and what that is computed from."""
    return view_experiment(session, load_experiment(session, experiment)).forecast


def _seen(
    context: Service,
    _: Viewer,
    experiment: str,
    last_event_id: Annotated[
        str | None, Header(max_length=20, description="`id` of the last event received.")
    ] = None,
) -> int:
    """Return the number of the last event that a reader of an experiment has."""
    context.store.read(lambda session: load_experiment(session, experiment))
    return number_cursor(last_event_id) or 0


@router.get(
    "/experiments/{experiment}/events",
    operation_id="stream_events",
    response_class=EventSourceResponse,
    responses={200: {"description": "Server-sent events."}},
)
async def experiment_events(
    context: Service,
    caller: Viewer,
    experiment: str,
    after: Annotated[int, Depends(_seen)],
    _: Place,
    follow: Annotated[
        bool, Query(description="Stay connected; false: only what has happened so far.")
    ] = True,
) -> AsyncIterator[ServerSentEvent]:
    """Stream what happens to an experiment; `id` is the event's `seq`, without gaps."""
    events = stream_events(context, experiment, after=after, follow=follow, key_id=caller.key_id)
    async for event in events:
        yield event
