"""Experiments and campaigns: submit, list, show, follow events, cancel.

In a stream of events `id` is the experiment's `seq`, so a reader that reconnects with
`Last-Event-ID` misses nothing and gets nothing twice. Between events, `progress` messages (without
an id) carry step, loss and speed. A stream ends when its key is revoked.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Query, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool

from gonogo.contract.api import (
    CampaignDryRun,
    CampaignSubmission,
    CampaignView,
    DryRun,
    EventView,
    ExperimentView,
    Forecast,
    Submission,
    VerbBody,
)
from gonogo.contract.canonical import wire_value
from gonogo.contract.decision import Decision
from gonogo.contract.lifecycle import ExperimentState
from gonogo.contract.wire import Kind
from gonogo.planning.campaigns import ResolvedCampaign
from gonogo.planning.resolve import ResolvedPlan, warnings_of
from service.campaigns import (
    cancel,
    create_campaign,
    preview_campaign,
    resolve,
    view_campaign,
    warnings_for,
)
from service.context import Context
from service.db.schema import ExperimentRow, ProgressRow, RunRow
from service.db.store import Session
from service.experiments.lifecycle import Deed
from service.experiments.origins import Origin, load_origin
from service.experiments.submission import (
    build_dry_run,
    create_experiment,
    resolve_submission,
    with_plan,
)
from service.experiments.workers import load_warnings
from service.http.answers import WireResponse, model_response
from service.http.auth import Operator, Service, Viewer
from service.http.dependencies import (
    Cursor,
    IdempotencyKey,
    Limit,
    Page,
    Reading,
    create_once,
    etag_of,
    id_cursor,
    number_cursor,
)
from service.queries.callers import is_living
from service.queries.experiments import (
    load_campaign,
    load_campaigns,
    load_decisions_page,
    load_events,
    load_experiment,
    load_experiments,
)
from service.queries.runs import load_held
from service.text import instant
from service.views.experiments import view_experiment, view_experiments, view_new
from service.views.rows import view_decision, view_of

router = APIRouter(tags=["experiments"])
Submitted = Annotated[Submission, Body(examples=[{"plan": "demo", "set": {"fault": "hang"}}])]


@router.post(
    "/experiments",
    operation_id="create_experiment",
    status_code=201,
    response_model=ExperimentView,
    responses={200: {"model": DryRun, "description": "`dry_run`: what would run."}},
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
    post, body = "POST /experiments", submission
    answer = create_once(context, caller, post, key, body, _create, body, resolved, origin)
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


@router.get("/experiments/{experiment}", operation_id="show_experiment")
def show_experiment(
    session: Reading, _: Viewer, experiment: str, response: Response
) -> ExperimentView:
    """Show an experiment; its `ETag` goes into `If-Match` of approvals and overrides."""
    row = load_experiment(session, experiment)
    response.headers["ETag"] = etag_of(row)
    return view_experiment(session, row)


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
    follow: Annotated[
        bool, Query(description="Stay connected; false: only what has happened so far.")
    ] = True,
) -> AsyncIterator[ServerSentEvent]:
    """Stream what happens to an experiment; `id` is the event's `seq`, without gaps."""
    events = stream_events(context, experiment, after=after, follow=follow, key_id=caller.key_id)
    async for event in events:
        yield event


campaigns = APIRouter(tags=["campaigns"])
SubmittedCampaign = Annotated[
    CampaignSubmission, Body(examples=[{"plan": "campaign-buckets", "repeats": 4}])
]


@campaigns.post(
    "/campaigns",
    operation_id="create_campaign",
    status_code=201,
    response_model=CampaignView,
    responses={200: {"model": CampaignDryRun, "description": "`dry_run`: what would run."}},
)
def submit_campaign(
    context: Service,
    caller: Operator,
    submission: SubmittedCampaign,
    key: IdempotencyKey = None,
) -> WireResponse:
    """Submit a campaign, or (`dry_run`) only resolve its variants."""
    resolved = resolve(submission)
    if submission.dry_run:
        waits = context.store.read(lambda session: warnings_for(session, resolved, context.now()))
        return WireResponse(preview_campaign(resolved, waits))
    post, body = "POST /campaigns", submission
    answer = create_once(context, caller, post, key, body, _create_campaign, body, resolved)
    location = f"/api/v1/campaigns/{answer['id']}"
    return WireResponse(answer, 201, headers={"Location": location})


def _create_campaign(
    deed: Deed, submission: CampaignSubmission, resolved: ResolvedCampaign
) -> dict[str, Any]:
    row = create_campaign(deed, submission, resolved)
    warnings = warnings_for(deed.session, resolved, deed.now)
    return view_campaign(deed.session, row).model_copy(update={"warnings": warnings}).wire()


@campaigns.get("/campaigns", operation_id="list_campaigns")
def list_campaigns(
    session: Reading, _: Viewer, limit: Limit = 50, cursor: Cursor = None
) -> Page[CampaignView]:
    """List campaigns, newest first."""
    first = id_cursor(cursor, Kind.CAMPAIGN)
    rows, after = load_campaigns(session, limit=limit, after=first)
    return Page[CampaignView](
        items=[view_campaign(session, row) for row in rows], next_cursor=after
    )


@campaigns.get("/campaigns/{campaign}", operation_id="show_campaign")
def show_campaign(session: Reading, _: Viewer, campaign: str) -> CampaignView:
    """Show a campaign: its runs, and what they came to."""
    return view_campaign(session, load_campaign(session, campaign))


@campaigns.post(
    "/campaigns/{campaign}/cancel",
    operation_id="cancel_campaign",
    status_code=202,
    response_model=CampaignView,
    responses={200: {"model": CampaignView, "description": "It was asked before."}},
)
def cancel_campaign(
    context: Service,
    caller: Operator,
    campaign: str,
    response: Response,
    action: Annotated[VerbBody | None, Body()] = None,
) -> CampaignView:
    """Stop a campaign and its active runs."""
    changed, view = context.write(caller.name, _cancel, campaign, action.reason if action else "")
    response.status_code = 202 if changed else 200
    return view


def _cancel(deed: Deed, campaign: str, reason: str) -> tuple[bool, CampaignView]:
    changed = cancel(deed, campaign, reason)
    deed.session.flush()
    return changed, view_campaign(deed.session, load_campaign(deed.session, campaign))


POLL_S = 0.5
_BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class _News:
    after: int
    events: list[dict[str, Any]]
    progress: dict[str, Any] | None
    is_allowed: bool
    """Whether the key of the stream is not revoked."""


async def stream_events(
    context: Context, experiment: str, *, after: int, follow: bool, key_id: str
) -> AsyncIterator[ServerSentEvent]:
    """Yield the events with `seq` > `after`; with `follow`, also those of the future."""
    shown: dict[str, Any] | None = None
    yield ServerSentEvent(retry=1000)
    while not context.closing.is_set():
        news = await run_in_threadpool(_load_news, context, experiment, after, key_id)
        if not news.is_allowed:
            return
        after = news.after
        for event in news.events:
            after = event["seq"]
            yield _message(event["type"], event, after)
        if news.progress is not None and news.progress != shown:
            shown = news.progress
            yield _message("progress", shown)
        if len(news.events) == _BATCH:
            continue
        if not follow:
            return
        await asyncio.sleep(POLL_S)


def _message(kind: str, data: Any, number: int | None = None) -> ServerSentEvent:
    """Return one event, in ASCII: some readers take U+2028 for the end of a line."""
    text = json.dumps(wire_value(data), separators=(",", ":"))
    return ServerSentEvent(raw_data=text, event=kind, id=None if number is None else str(number))


def _load_news(context: Context, experiment: str, after: int, key_id: str) -> _News:
    def load(session: Session) -> _News:
        row = session.get(ExperimentRow, experiment)
        last = 0 if row is None else row.event_seq
        start = after if after <= last else 0  # a restored database may have lost events
        rows = load_events(session, experiment, after=start, limit=_BATCH) if last > start else ()
        active = load_held(session, experiment)
        return _News(
            after=start,
            events=[view_of(EventView, row).model_dump(mode="json") for row in rows],
            progress=_progress(*active[-1]) if active else None,
            is_allowed=is_living(session, key_id),
        )

    return context.store.read(load)


def _progress(run: RunRow, said: ProgressRow) -> dict[str, Any]:
    return {
        "run": run.id,
        "phase": run.phase,
        "state": run.state,
        "step": said.step,
        "loss": None if said.loss is None else float(said.loss),
        "toks_per_s": said.toks_per_s,
        "last_heartbeat_at": instant(said.heartbeat_at),
    }
