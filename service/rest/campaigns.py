"""Campaigns: submit, list, show, cancel."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Response

from gonogo.contract.api import CampaignDryRun, CampaignSubmission, CampaignView, VerbBody
from gonogo.contract.ids import Kind
from gonogo.planning.campaigns import ResolvedCampaign
from service.campaigns import (
    build_dry_run,
    cancel,
    create_campaign,
    resolve,
    view_campaign,
    warnings_for,
)
from service.experiments.lifecycle import Deed
from service.http.answers import LOCATION_HEADER, WireResponse
from service.http.auth import Operator, Service, Viewer
from service.http.dependencies import (
    Creation,
    Cursor,
    IdempotencyKey,
    Limit,
    Page,
    Reading,
    create_once,
    id_cursor,
)
from service.queries.experiments import load_campaign, load_campaigns

router = APIRouter(tags=["campaigns"])
Submitted = Annotated[
    CampaignSubmission, Body(examples=[{"plan": "campaign-buckets", "repeats": 4}])
]


@router.post(
    "/campaigns",
    operation_id="create_campaign",
    status_code=201,
    response_model=CampaignView,
    responses={
        201: {
            "description": "Its first run is begun at once.",
            "headers": LOCATION_HEADER,
        },
        200: {
            "model": CampaignDryRun,
            "description": "`dry_run`: what would run; nothing is stored.",
        },
    },
)
def submit(
    context: Service,
    caller: Operator,
    submission: Submitted,
    key: IdempotencyKey = None,
) -> WireResponse:
    """Submit a campaign, or (`dry_run`) only resolve its variants."""
    resolved = resolve(submission)
    if submission.dry_run:
        waits = context.store.read(lambda session: warnings_for(session, resolved, context.now()))
        return WireResponse(build_dry_run(resolved, waits))
    creation = Creation(caller=caller, route="POST /campaigns", key=key, body=submission)
    answer = create_once(context, creation, _create, submission, resolved)
    location = f"/api/v1/campaigns/{answer['id']}"
    return WireResponse(answer, 201, headers={"Location": location})


def _create(
    deed: Deed, submission: CampaignSubmission, resolved: ResolvedCampaign
) -> dict[str, Any]:
    row = create_campaign(deed, submission, resolved)
    warnings = warnings_for(deed.session, resolved, deed.now)
    return view_campaign(deed.session, row).model_copy(update={"warnings": warnings}).wire()


@router.get("/campaigns", operation_id="list_campaigns")
def list_campaigns(
    session: Reading, _: Viewer, limit: Limit = 50, cursor: Cursor = None
) -> Page[CampaignView]:
    """List campaigns, newest first."""
    first = id_cursor(cursor, Kind.CAMPAIGN)
    rows, after = load_campaigns(session, limit=limit, after=first)
    return Page[CampaignView](
        items=[view_campaign(session, row) for row in rows], next_cursor=after
    )


@router.get("/campaigns/{campaign}", operation_id="show_campaign")
def show_campaign(session: Reading, _: Viewer, campaign: str) -> CampaignView:
    """Show a campaign: its runs, and what they came to."""
    return view_campaign(session, load_campaign(session, campaign))


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
    """Stop a campaign and its active runs."""
    changed, view = context.write(caller.name, _cancel, campaign, action.reason if action else "")
    response.status_code = 202 if changed else 200
    return view


def _cancel(deed: Deed, campaign: str, reason: str) -> tuple[bool, CampaignView]:
    changed = cancel(deed, campaign, reason)
    deed.session.flush()
    return changed, view_campaign(deed.session, load_campaign(deed.session, campaign))
