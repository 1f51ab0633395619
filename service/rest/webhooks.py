"""Subscriptions of URLs to alerts: subscribe, list, try, end."""

from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field, field_validator

from gonogo.contract.api import SUBSCRIPTIONS, AlertBody
from gonogo.contract.errors import Rejected, hint
from gonogo.contract.ids import Kind, new_id
from gonogo.contract.wire import Instant, Submitted
from service.alerts.outbox import subscribe, unsubscribe
from service.alerts.post import TIMEOUT_S, Target, check_reach, post_alert
from service.db.schema import WebhookRow
from service.experiments.lifecycle import Deed
from service.http.answers import WireResponse
from service.http.auth import Admin, Service
from service.http.dependencies import (
    Creation,
    Cursor,
    IdempotencyKey,
    Limit,
    Page,
    Reading,
    Writing,
    id_cursor,
)
from service.instants import stamp
from service.queries.callers import load_webhook, load_webhooks
from service.settings import check_secret

router = APIRouter(tags=["overview"])


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
        if parts.scheme not in ("http", "https") or not parts.hostname:
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
    write: Writing, caller: Admin, body: WebhookBody, key: IdempotencyKey = None
) -> WireResponse:
    """Subscribe a URL to alerts."""
    check_reach(body.url)  # here, in a thread: looking a name up may take long
    creation = Creation(caller=caller, route="POST /webhooks", key=key, body=body)
    return WireResponse(write.once(creation, _create, body), 201)


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
def delete_webhook(write: Writing, caller: Admin, webhook: str) -> Response:
    """End a subscription; alerts already queued for it are not sent any more."""
    write(caller.actor, unsubscribe, webhook)
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
    target = Target(url=row.url, secret=row.secret)
    answer = post_alert(target, alert, body, now, timeout_s=TIMEOUT_S)
    return TriedView(delivered=answer.error is None, error=answer.error)


def _webhook(row: WebhookRow, secret: str | None = None) -> WebhookView:
    return WebhookView(
        id=row.id, url=row.url, types=row.types, created_at=stamp(row.created_at), secret=secret
    )
