"""Campaigns: submit, list, show, cancel."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.api import CampaignSubmission, CampaignView, VerbBody
from gonogo.contract.ids import Kind
from gonogo.contract.output import CampaignDryRun
from service.campaigns.create import (
    build_dry_run,
    create_campaign,
    load_campaign,
    resolve,
    warnings_for,
)
from service.campaigns.step import cancel
from service.campaigns.view import view_campaign
from service.db.schema import CampaignRow
from service.experiments.lifecycle import Deed
from service.http.auth import Operator, Service, Viewer
from service.http.idempotency import IdempotencyKey, answer_once
from service.http.paging import Cursor, Limit, Page, id_cursor, load_page
from service.http.problems import LOCATION_HEADER, WireResponse

router = APIRouter(tags=["campaigns"])
Submitted = Annotated[
    CampaignSubmission,
    Body(
        openapi_examples={
            "bundled": {
                "summary": "A bundled campaign",
                "value": {"plan": "campaign-buckets", "repeats": 4},
            }
        }
    ),
]
_LINKS = {
    name: {
        "operationId": operation,
        "parameters": {"campaign": "$response.body#/id"},
        "description": text,
    }
    for name, operation, text in (
        ("show", "show_campaign", "The campaign as it stands."),
        ("cancel", "cancel_campaign", "Stop it for good."),
    )
}


@router.post(
    "/campaigns",
    operation_id="create_campaign",
    status_code=201,
    response_model=CampaignView,
    responses={
        201: {
            "description": "Its first run is begun at once.",
            "links": _LINKS,
            "headers": LOCATION_HEADER,
        },
        200: {
            "model": CampaignDryRun,
            "description": "`dry_run`: what would run; nothing is stored.",
        },
    },
)
def submit(
    context: Service, caller: Operator, submission: Submitted, key: IdempotencyKey = None
) -> WireResponse:
    """Submit a campaign, or (`dry_run`) only resolve its variants."""
    resolved = resolve(submission)
    if submission.dry_run:
        waits = context.store.read(lambda session: warnings_for(session, resolved, context.now()))
        return WireResponse(build_dry_run(resolved, waits))

    def work(session: Session) -> dict[str, Any]:
        deed = Deed(session=session, now=context.now(), actor=caller.actor)

        def create() -> dict[str, Any]:
            row = create_campaign(deed, submission, resolved)
            warnings = warnings_for(session, resolved, deed.now)
            return view_campaign(session, row).model_copy(update={"warnings": warnings}).wire()

        return answer_once(
            session,
            actor=caller.key_id,
            route="POST /campaigns",
            key=key,
            body=submission.model_dump(mode="json"),
            now=deed.now,
            create=create,
        )

    answer = context.store.write(work)
    location = f"/api/v1/campaigns/{answer['id']}"
    return WireResponse(answer, 201, headers={"Location": location})


@router.get("/campaigns", operation_id="list_campaigns")
def list_campaigns(
    context: Service, _: Viewer, limit: Limit = 50, cursor: Cursor = None
) -> Page[CampaignView]:
    """List campaigns, newest first."""
    after_id = id_cursor(cursor, Kind.CAMPAIGN)

    def work(session: Session) -> Page[CampaignView]:
        rows, after = load_page(
            session,
            select(CampaignRow),
            CampaignRow.id,
            limit=limit,
            after=after_id,
            newest_first=True,
        )
        return Page(items=[view_campaign(session, row) for row in rows], next_cursor=after)

    return context.store.read(work)


@router.get("/campaigns/{campaign}", operation_id="show_campaign")
def show_campaign(context: Service, _: Viewer, campaign: str) -> CampaignView:
    """Show a campaign: its runs, and what they came to."""
    return context.store.read(
        lambda session: view_campaign(session, load_campaign(session, campaign))
    )


@router.post(
    "/campaigns/{campaign}/cancel",
    operation_id="cancel_campaign",
    status_code=202,
    response_model=CampaignView,
    responses={
        200: {"model": CampaignView, "description": "It was asked before; nothing changed."},
        202: {"description": "It is being done."},
    },
)
def cancel_campaign(
    context: Service,
    caller: Operator,
    campaign: str,
    response: Response,
    action: Annotated[VerbBody | None, Body()] = None,
) -> CampaignView:
    """Stop a campaign and the run that goes on of it."""

    def work(session: Session) -> tuple[bool, CampaignView]:
        deed = Deed(session=session, now=context.now(), actor=caller.actor)
        changed = cancel(deed, campaign, action.reason if action else "")
        session.flush()
        return changed, view_campaign(session, load_campaign(session, campaign))

    changed, view = context.store.write(work)
    response.status_code = 202 if changed else 200
    return view
