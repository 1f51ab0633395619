"""What is over all experiments: events, alerts, workers, names, webhooks, plans and schemas."""

from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Body, Query, Response
from pydantic import BaseModel, Field, field_validator

from gonogo.contract.api import (
    SUBSCRIPTIONS,
    AlertBody,
    AlertView,
    EventView,
    FoundPage,
    FoundView,
    Submission,
    WorkerView,
)
from gonogo.contract.decision import DecisionKind
from gonogo.contract.errors import NotFound, Rejected, hint
from gonogo.contract.goodput import ExperimentGoodput
from gonogo.contract.schemas import SCHEMAS, schema
from gonogo.contract.wire import Instant, Kind, Submitted, new_id
from gonogo.ledger.recorded import parse_decision
from gonogo.planning.resolve import warnings_of
from gonogo.planning.source import (
    bundled_campaign_names,
    bundled_plan,
    bundled_plan_names,
    parse_plan,
    schema_documents,
)
from service.alerts.webhooks import (
    TIMEOUT_S,
    check_reach,
    post_alert,
    subscribe,
    unsubscribe,
)
from service.db.schema import CampaignRow, ExperimentRow, WebhookRow
from service.db.store import Session
from service.experiments.lifecycle import Deed
from service.experiments.state import load_decided
from service.experiments.submission import resolve_submission
from service.experiments.workers import load_warnings
from service.http.answers import WireResponse
from service.http.auth import Admin, Service, Viewer
from service.http.dependencies import (
    Cursor,
    IdempotencyKey,
    Limit,
    Page,
    Reading,
    create_once,
    id_cursor,
    number_cursor,
)
from service.queries.callers import load_alerts, load_webhook, load_webhooks, load_workers_page
from service.queries.experiments import (
    find_decisions,
    find_named,
    load_events_page,
    load_experiment,
)
from service.queries.runs import find_runs
from service.settings import check_secret
from service.text import stamp
from service.views.rows import load_experiment_goodput, view_alert, view_of, view_worker

router = APIRouter(tags=["overview"])
Text = Annotated[
    str,
    Query(max_length=200, description="Id, short id (exp_7Q2M9XKD), its beginning, or a name."),
]


@router.get("/workers", operation_id="list_workers")
def list_workers(
    session: Reading, context: Service, _: Viewer, limit: Limit = 200, cursor: Cursor = None
) -> Page[WorkerView]:
    """List the workers that ever claimed."""
    rows, after = load_workers_page(session, limit=limit, after=cursor)
    now = context.now()
    return Page[WorkerView](items=[view_worker(row, now) for row in rows], next_cursor=after)


@router.get("/events", operation_id="list_events")
def list_events(
    session: Reading,
    _: Viewer,
    after: Annotated[int, Query(ge=0, lt=2**53, description="`cursor` of the last one seen.")] = 0,
    limit: Limit = 200,
    cursor: Cursor = None,
) -> Page[EventView]:
    """List the events of all experiments in one order that never changes."""
    first = number_cursor(cursor) or after
    rows, next_cursor = load_events_page(session, limit=limit, after=first)
    return Page[EventView](items=[view_of(EventView, row) for row in rows], next_cursor=next_cursor)


@router.get("/alerts", operation_id="list_alerts")
def list_alerts(
    session: Reading, context: Service, _: Viewer, limit: Limit = 100, cursor: Cursor = None
) -> Page[AlertView]:
    """List alerts, newest first, each with what became of its deliveries."""
    rows, after = load_alerts(session, limit=limit, after=id_cursor(cursor, Kind.ALERT))
    items = [view_alert(row, deliveries, context.url) for row, deliveries in rows]
    return Page[AlertView](items=items, next_cursor=after)


@router.get("/experiments/{experiment}/goodput", operation_id="show_experiment_goodput")
def show_experiment_goodput(
    session: Reading, context: Service, _: Viewer, experiment: str
) -> ExperimentGoodput:
    """Say where the time of an experiment and of each of its runs went."""
    row = load_experiment(session, experiment)
    return load_experiment_goodput(session, row, context.now())


@router.get("/find", operation_id="list_found")
def find(
    session: Reading,
    _: Viewer,
    text: Text = "",
    kind: Annotated[list[Kind] | None, Query(description="Only of these kinds.")] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="So many of each kind.")] = 20,
) -> FoundPage:
    """Find what a text may name: experiments and campaigns by name too, runs, decisions by id."""
    finds = {
        Kind.EXPERIMENT: _experiments,
        Kind.RUN: _runs,
        Kind.DECISION: _decisions,
        Kind.CAMPAIGN: _campaigns,
    }
    wanted = (find for each, find in finds.items() if kind is None or each in kind)
    found = [row for find in wanted for row in find(session, text, limit)]
    return FoundPage(items=sorted(found, key=lambda row: (row.at, row.id), reverse=True))


def _beginning(kind: Kind, text: str) -> str:
    """Return the beginning of an id: `EXP_01k`, `01k` → `exp_01K`."""
    head, tail = f"{kind.value}_", text
    if text[: len(head)].lower() == head:
        tail = text[len(head) :]
    elif head.startswith(text.lower()):
        tail = ""
    return head + tail.upper()


def _experiments(session: Session, text: str, limit: int) -> Iterator[FoundView]:
    beginning = _beginning(Kind.EXPERIMENT, text)
    rows = find_named(session, ExperimentRow, beginning, text, limit=limit)
    decided = load_decided(session, [row.id for row in rows])
    for row in rows:
        by_hand = bool(decided[row.id].overrides) and row.verdict is not None
        yield _found(Kind.EXPERIMENT, row, row.name, experiment=row.id, by_hand=by_hand)


def _campaigns(session: Session, text: str, limit: int) -> Iterator[FoundView]:
    beginning = _beginning(Kind.CAMPAIGN, text)
    for row in find_named(session, CampaignRow, beginning, text, limit=limit):
        yield _found(Kind.CAMPAIGN, row, row.name, experiment=None, verdict=None)


def _runs(session: Session, text: str, limit: int) -> Iterator[FoundView]:
    for row, name in find_runs(session, _beginning(Kind.RUN, text), limit=limit):
        yield _found(Kind.RUN, row, name, phase=row.phase)


def _decisions(session: Session, text: str, limit: int) -> Iterator[FoundView]:
    for row, name in find_decisions(session, _beginning(Kind.DECISION, text), limit=limit):
        # the document of an automatic decision may be large, and is not read
        is_auto = row.kind == DecisionKind.AUTO
        by_hand = not is_auto and parse_decision(row.document).decision.by_hand
        more = {"phase": row.phase, "state": "decided", "at": stamp(row.at), "by_hand": by_hand}
        yield _found(Kind.DECISION, row, name, **more)


def _found(kind: Kind, row: Any, name: str, **more: Any) -> FoundView:
    known = {"id": row.id, "kind": kind, "name": name}
    for field in ("experiment", "state", "verdict"):
        if field not in more:
            known[field] = getattr(row, field)
    if "at" not in more:
        known["at"] = stamp(row.created_at)
    return FoundView.model_validate({**known, **more})


class WebhookBody(Submitted):
    """POST /webhooks."""

    url: Annotated[str, Field(max_length=2000)]
    types: list[str] = Field(default_factory=list)
    """Alert types; empty = every type. `decision.made:no_go` asks for decisions of one verdict."""
    secret: Annotated[str, Field(pattern=r"^whsec_[A-Za-z0-9+/=]{32,120}$")] | None = None
    """Standard Webhooks secret; one is made when none is given."""

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError("expected http://HOST… or https://HOST…")
        return url

    @field_validator("types")
    @classmethod
    def _are_sent(cls, types: list[str]) -> list[str]:
        for text in types:
            if text not in SUBSCRIPTIONS:
                raise ValueError(f"found {text!r}; {hint(text, SUBSCRIPTIONS)}")
        return types

    @field_validator("secret")
    @classmethod
    def _can_sign(cls, secret: str | None) -> str | None:
        try:
            return check_secret(secret) if secret else None
        except Rejected as error:
            raise ValueError(error.detail) from error


class WebhookView(BaseModel):
    """A subscription; the secret is shown once, when it is made."""

    id: str
    url: str
    types: list[str]
    created_at: Instant
    secret: str | None = None


@router.post(
    "/webhooks", operation_id="create_webhook", status_code=201, response_model=WebhookView
)
def create_webhook(
    context: Service, caller: Admin, body: WebhookBody, key: IdempotencyKey = None
) -> WireResponse:
    """Subscribe a URL to alerts."""
    check_reach(body.url)  # here, in a thread: looking a name up may take long
    made = create_once(context, caller, "POST /webhooks", key, body, _create, body)
    return WireResponse(made, 201)


def _create(deed: Deed, body: WebhookBody) -> dict[str, Any]:
    row = subscribe(deed, body.url, body.types, body.secret)
    return _webhook(row, row.secret).model_dump(mode="json")


@router.get("/webhooks", operation_id="list_webhooks")
def list_webhooks(
    session: Reading, _: Admin, limit: Limit = 100, cursor: Cursor = None
) -> Page[WebhookView]:
    """List the subscriptions."""
    rows, after = load_webhooks(session, limit=limit, after=id_cursor(cursor, Kind.WEBHOOK))
    return Page[WebhookView](items=[_webhook(row) for row in rows], next_cursor=after)


@router.delete("/webhooks/{webhook}", operation_id="delete_webhook", status_code=204)
def delete_webhook(context: Service, caller: Admin, webhook: str) -> Response:
    """End a subscription; alerts already queued for it are not sent any more."""
    context.write(caller.name, unsubscribe, webhook)
    return Response(status_code=204)


class TriedView(BaseModel):
    """What came of a ping."""

    delivered: bool
    error: str | None = None


@router.post("/webhooks/{webhook}/test", operation_id="test_webhook")
def ping_webhook(context: Service, _: Admin, webhook: str) -> TriedView:
    """Send a subscription a signed `ping` now, once, and say what came of it."""
    row = context.store.read(lambda session: load_webhook(session, webhook))
    alert, now = new_id(Kind.ALERT), context.now()
    body = AlertBody.model_validate(
        {
            "type": "ping",
            "timestamp": stamp(now),
            "data": {"alert_id": alert, "text": "a test from gonogo", "url": context.url},
        }
    )
    error = post_alert(row.url, row.secret, alert, body, now, timeout_s=TIMEOUT_S)
    return TriedView(delivered=error is None, error=error)


def _webhook(row: WebhookRow, secret: str | None = None) -> WebhookView:
    return view_of(WebhookView, row, secret=secret)


plans = APIRouter(tags=["plans"])


class PlanView(BaseModel):
    """A plan that ships with gonogo."""

    name: str
    profile: str
    world_size: int
    phases: list[dict[str, Any]]
    digest: str


class ValidationView(BaseModel):
    """A plan that is valid."""

    valid: bool = True
    plan: dict[str, Any]
    digest: str
    train: dict[str, Any]
    warnings: list[str]
    """What is accepted and may still come to nothing."""


@plans.get("/plans", operation_id="list_plans")
def list_plans(_: Viewer) -> Page[PlanView]:
    """List the bundled plans."""
    bundled = [
        parse_plan(bundled_plan(name))
        for name in (*bundled_plan_names(), *bundled_campaign_names())
    ]
    return Page[PlanView](
        items=[
            PlanView(
                name=plan.name,
                profile=plan.profile,
                world_size=plan.workload.world_size,
                phases=[
                    {"name": phase.name, "steps": phase.steps, "init_from": phase.init_from}
                    for phase in plan.phases
                ],
                digest=plan.digest(),
            )
            for plan in bundled
        ]
    )


@plans.get("/plans/{name}", operation_id="show_plan")
def show_plan(_: Viewer, name: str) -> dict[str, Any]:
    """Show a bundled plan as it can be submitted."""
    return bundled_plan(name)


@plans.post("/plans/validate", operation_id="validate_plan")
def validate_plan(
    session: Reading,
    context: Service,
    _: Viewer,
    submission: Annotated[Submission, Body(examples=[{"plan": "demo"}])],
) -> ValidationView:
    """Check a plan (a bundled one's name, or the plan itself) with its overrides."""
    resolved = resolve_submission(submission)
    plan = resolved.parsed()
    waits = load_warnings(session, plan, context.now())
    return ValidationView(
        plan=resolved.plan,
        digest=resolved.plan_digest(),
        train=resolved.train,
        warnings=[*warnings_of(plan), *waits],
    )


@plans.get("/schemas/{name}", operation_id="show_schema", tags=["schemas"])
def show_schema(_: Viewer, name: str) -> dict[str, Any]:
    """Return the JSON Schema of a document, or of what a workload takes (`nsa.train`)."""
    of_workloads = schema_documents()
    if name in of_workloads:
        return of_workloads[name]
    if name not in SCHEMAS:
        known = ", ".join([*SCHEMAS, *of_workloads])
        raise NotFound(f"there is no schema {name!r}; there are {known}")
    return schema(name)
