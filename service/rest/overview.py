"""What goes on across experiments? Workers, all events, alerts, webhooks."""

import secrets
from base64 import b64encode
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field, field_validator
from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.api import AlertView, EventView, WorkerView
from gonogo.contract.errors import NotFound, Rejected
from gonogo.contract.ids import Kind, is_id, new_id
from gonogo.contract.wire import Submitted
from service.alerts.message import check_secret
from service.auth import Admin, Service, Viewer
from service.db.schema import AlertRow, DeliveryRow, EventRow, WebhookRow, WorkerRow
from service.idempotency import IdempotencyKey, answer_once
from service.paging import Cursor, Limit, Page, load_page, number_cursor, page_of
from service.problems import WireResponse
from service.views import stamp, view_alert, view_event, view_worker

router = APIRouter(tags=["overview"])


@router.get("/workers", operation_id="list_workers")
def list_workers(
    context: Service, _: Viewer, limit: Limit = 200, cursor: Cursor = None
) -> Page[WorkerView]:
    """List the workers that ever claimed."""

    def work(session: Session) -> dict[str, Any]:
        rows, after = load_page(
            session, select(WorkerRow), WorkerRow.name, limit=limit, after=cursor
        )
        return page_of(rows, after, lambda row: view_worker(row, context.now()))

    return Page[WorkerView](**context.store.read(work))


@router.get("/events", operation_id="list_events")
def list_events(
    context: Service,
    _: Viewer,
    after: Annotated[int, Query(ge=0, lt=2**53, description="`cursor` of the last one seen.")] = 0,
    limit: Limit = 200,
    cursor: Cursor = None,
) -> Page[EventView]:
    """List the events of all experiments in one order that never changes."""

    def work(session: Session) -> dict[str, Any]:
        rows, next_cursor = load_page(
            session,
            select(EventRow),
            EventRow.cursor,
            limit=limit,
            after=number_cursor(cursor) or after,
        )
        return page_of(rows, next_cursor, view_event)

    return Page[EventView](**context.store.read(work))


@router.get("/alerts", operation_id="list_alerts")
def list_alerts(
    context: Service, _: Viewer, limit: Limit = 100, cursor: Cursor = None
) -> Page[AlertView]:
    """List alerts, newest first, each with what became of its deliveries."""

    def work(session: Session) -> dict[str, Any]:
        rows, after = load_page(
            session, select(AlertRow), AlertRow.id, limit=limit, after=cursor, newest_first=True
        )
        ids = [row.id for row in rows]
        deliveries: dict[str, list[DeliveryRow]] = {}
        for delivery in session.scalars(select(DeliveryRow).where(DeliveryRow.alert.in_(ids))):
            deliveries.setdefault(delivery.alert, []).append(delivery)
        return page_of(
            rows, after, lambda row: view_alert(row, deliveries.get(row.id, []), context.url)
        )

    return Page[AlertView](**context.store.read(work))


class WebhookBody(Submitted):
    """POST /webhooks."""

    url: Annotated[str, Field(max_length=2000)]
    types: list[Annotated[str, Field(pattern=r"^[a-z]+\.[a-z_]+$", max_length=40)]] = Field(
        default_factory=list
    )
    """Alert types; empty = every type."""
    secret: Annotated[str, Field(pattern=r"^whsec_[A-Za-z0-9+/=]{32,120}$")] | None = None
    """Standard Webhooks secret; one is made when none is given."""

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("expected http://HOST… or https://HOST…")
        return url

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
    created_at: str
    secret: str | None = None


@router.post(
    "/webhooks", operation_id="create_webhook", status_code=201, response_model=WebhookView
)
def create_webhook(
    context: Service, caller: Admin, body: WebhookBody, key: IdempotencyKey = None
) -> WireResponse:
    """Subscribe a URL to alerts."""

    def work(session: Session) -> dict[str, Any]:
        def create() -> dict[str, Any]:
            secret = body.secret or f"whsec_{b64encode(secrets.token_bytes(32)).decode()}"
            row = WebhookRow(
                id=new_id(Kind.WEBHOOK),
                url=body.url,
                secret=secret,
                types=sorted(set(body.types)),
                created_at=context.now(),
            )
            session.add(row)
            return _webhook(row, secret).model_dump(mode="json")

        return answer_once(
            session,
            actor=caller.key_id,
            route="POST /webhooks",
            key=key,
            body=body.model_dump(mode="json"),
            now=context.now(),
            create=create,
        )

    return WireResponse(context.store.write(work), 201)


@router.get("/webhooks", operation_id="list_webhooks")
def list_webhooks(
    context: Service, _: Admin, limit: Limit = 100, cursor: Cursor = None
) -> Page[WebhookView]:
    """List the subscriptions."""

    def work(session: Session) -> dict[str, Any]:
        query = select(WebhookRow).where(WebhookRow.disabled_at.is_(None))
        rows, after = load_page(session, query, WebhookRow.id, limit=limit, after=cursor)
        return page_of(rows, after, _webhook)

    return Page[WebhookView](**context.store.read(work))


@router.delete("/webhooks/{webhook}", operation_id="delete_webhook", status_code=204)
def delete_webhook(context: Service, _: Admin, webhook: str) -> Response:
    """End a subscription; alerts already queued for it are not sent any more."""

    def work(session: Session) -> None:
        known = is_id(webhook, Kind.WEBHOOK)
        row = session.get(WebhookRow, webhook) if known else None
        if row is None or row.disabled_at is not None:
            raise NotFound(f"there is no webhook {webhook}")
        row.disabled_at = context.now()

    context.store.write(work)
    return Response(status_code=204)


def _webhook(row: WebhookRow, secret: str | None = None) -> WebhookView:
    return WebhookView(
        id=row.id, url=row.url, types=row.types, created_at=stamp(row.created_at), secret=secret
    )
