"""Experiments: submit, list, show, follow their events."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Query, Response
from fastapi.responses import StreamingResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.api import ExperimentView, Forecast, Submission
from gonogo.contract.decision import Decision
from gonogo.contract.lifecycle import ExperimentState
from gonogo.planning.checks import warnings_of
from service.db.schema import DecisionRow, ExperimentRow
from service.experiments.lifecycle import Deed, load_experiment
from service.experiments.origins import load_origin
from service.experiments.submission import build_dry_run, create_experiment, resolve_submission
from service.experiments.takers import load_warnings
from service.http.auth import Operator, Service, Viewer
from service.http.etag import etag_of
from service.http.idempotency import IdempotencyKey, answer_once
from service.http.paging import Cursor, Limit, Page, load_page, number_cursor, page_of
from service.http.problems import WireResponse
from service.http.streams import stream_events
from service.views.experiments import view_experiment, view_experiments
from service.views.runs import view_decision

router = APIRouter(tags=["experiments"])
Submitted = Annotated[
    Submission,
    Body(
        openapi_examples={
            "bundled": {"summary": "A bundled plan", "value": {"plan": "demo", "name": "first"}},
            "changed": {
                "summary": "With an override and a fault",
                "value": {"plan": "demo", "set": {"phases.smoke.steps": 30, "fault": "hang"}},
            },
        }
    ),
]

_LINKS = {
    name: {
        "operationId": operation,
        "parameters": {"experiment": "$response.body#/id"},
        "description": text,
    }
    for name, operation, text in (
        ("show", "show_experiment", "The experiment as it stands."),
        ("decisions", "list_decisions", "Its decisions."),
        ("forecast", "forecast", "How long the rest takes."),
        ("halt", "halt", "Stop it with a checkpoint."),
        ("resume", "resume", "Go on after a halt."),
        ("rerun", "rerun", "Run the undecided phase again."),
        ("promote", "promote", "Approve the next phase."),
        ("takeover", "takeover", "Declare the living attempt dead."),
        ("override", "override", "Decide by hand."),
        ("cancel", "cancel", "Stop it for good."),
    )
}


@router.post(
    "/experiments",
    operation_id="submit",
    status_code=201,
    response_model=ExperimentView,
    responses={
        201: {"description": "It is queued.", "links": _LINKS},
        200: {"description": "`dry_run`: what would run; nothing is stored."},
    },
)
def submit(
    context: Service, caller: Operator, submission: Submitted, key: IdempotencyKey = None
) -> WireResponse:
    """Submit an experiment, or (`dry_run`) only resolve its plan."""
    resolved = resolve_submission(submission)
    plan = resolved.parsed()
    said = submission.origin
    origin = (
        None
        if said is None
        else context.store.read(lambda session: load_origin(session, said, resolved))
    )
    if submission.dry_run:
        waits = context.store.read(lambda session: load_warnings(session, plan, context.now()))
        return WireResponse(build_dry_run(resolved, waits, origin))

    def work(session: Session) -> dict[str, Any]:
        deed = Deed(session=session, now=context.now(), actor=caller.actor)

        def create() -> dict[str, Any]:
            row = create_experiment(deed, submission, resolved, origin)
            session.flush()
            view = view_experiment(session, row)
            warnings = [*warnings_of(plan), *load_warnings(session, plan, deed.now)]
            return view.model_copy(update={"warnings": warnings}).wire()

        return answer_once(
            session,
            actor=caller.key_id,
            route="POST /experiments",
            key=key,
            body=submission.model_dump(mode="json"),
            now=deed.now,
            create=create,
        )

    answer = context.store.write(work)
    location = f"/api/v1/experiments/{answer['id']}"
    return WireResponse(answer, 201, headers={"Location": location})


@router.get("/experiments", operation_id="list_experiments")
def list_experiments(
    context: Service,
    _: Viewer,
    state: ExperimentState | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ExperimentView]:
    """List experiments, newest first."""

    def work(session: Session) -> Page[ExperimentView]:
        query = select(ExperimentRow)
        if state is not None:
            query = query.where(ExperimentRow.state == state.value)
        rows, after = load_page(
            session, query, ExperimentRow.id, limit=limit, after=cursor, newest_first=True
        )
        return Page(items=view_experiments(session, rows), next_cursor=after)

    return context.store.read(work)


@router.get("/experiments/{experiment}", operation_id="show_experiment")
def show_experiment(
    context: Service, _: Viewer, experiment: str, response: Response
) -> ExperimentView:
    """Show an experiment; its `ETag` goes into `If-Match` of approvals and overrides."""

    def work(session: Session) -> tuple[str, ExperimentView]:
        row = load_experiment(session, experiment)
        return etag_of(row), view_experiment(session, row)

    etag, view = context.store.read(work)
    response.headers["ETag"] = etag
    return view


@router.get(
    "/experiments/{experiment}/decisions",
    operation_id="list_decisions",
    response_model=Page[Decision],
)
def list_decisions(
    context: Service, _: Viewer, experiment: str, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """List the decisions of an experiment as they were recorded, oldest first."""

    def work(session: Session) -> dict[str, Any]:
        load_experiment(session, experiment)
        query = select(DecisionRow).where(DecisionRow.experiment == experiment)
        rows, after = load_page(
            session, query, DecisionRow.seq, limit=limit, after=number_cursor(cursor)
        )
        return page_of(rows, after, view_decision)

    return WireResponse(context.store.read(work))


@router.get("/experiments/{experiment}/forecast", operation_id="forecast")
def forecast(context: Service, _: Viewer, experiment: str) -> Forecast:
    """Say how long the rest takes, and what that is computed from."""

    def work(session: Session) -> Forecast:
        return view_experiment(session, load_experiment(session, experiment)).forecast

    return context.store.read(work)


@router.get(
    "/experiments/{experiment}/events",
    operation_id="stream_events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Server-sent events."}},
)
def experiment_events(
    context: Service,
    _: Viewer,
    experiment: str,
    follow: Annotated[
        bool, Query(description="Stay connected; false: only what has happened so far.")
    ] = True,
    last_event_id: Annotated[
        str | None, Header(max_length=20, description="`id` of the last event received.")
    ] = None,
) -> StreamingResponse:
    """Stream what happens to an experiment; `id` is the event's `seq`, without gaps."""
    context.store.read(lambda session: load_experiment(session, experiment))
    after = number_cursor(last_event_id) or 0
    return StreamingResponse(
        stream_events(context, experiment, after=after, follow=follow),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )
