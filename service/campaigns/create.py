"""Submission of campaigns: frozen, then run by the conductor."""

from typing import Any

from sqlalchemy import select

from gonogo.contract.api import CampaignState, CampaignSubmission
from gonogo.contract.ids import Kind, new_id
from gonogo.planning.campaigns import (
    ResolvedCampaign,
    first_order,
    resolve_campaign,
    unseen_changes,
)
from gonogo.planning.checks import warnings_of
from gonogo.planning.source import bundled_plan
from service.db.schema import CampaignRow
from service.db.store import Session
from service.experiments.forecasts import check_labels
from service.experiments.lifecycle import Deed
from service.experiments.submission import check_texts
from service.experiments.workers import load_warnings
from service.queries.campaigns import load_campaign


def resolve(submission: CampaignSubmission) -> ResolvedCampaign:
    """Return the campaign that a submission freezes.

    Raises:
        Rejected: anything wrong with the plan, an override or a variant.
        NotFound: no such bundled plan or configuration.
    """
    check_texts(submission.name, submission.labels)
    check_labels(submission.labels)
    plan = submission.plan
    data = bundled_plan(plan) if isinstance(plan, str) else plan
    return resolve_campaign(data, submission.set, submission.repeats)


def create_campaign(
    deed: Deed, submission: CampaignSubmission, resolved: ResolvedCampaign
) -> CampaignRow:
    """Store a campaign; the conductor begins its first run."""
    row = CampaignRow(
        id=new_id(Kind.CAMPAIGN),
        name=submission.name or resolved.plan,
        plan=resolved.plan,
        spec=resolved.spec.model_dump(mode="json", exclude_unset=True),
        variants={name: plan.wire() for name, plan in resolved.variants.items()},
        labels=dict(submission.labels),
        state=CampaignState.RUNNING,
        created_by=deed.actor,
        created_at=deed.now,
    )
    deed.session.add(row)
    deed.session.flush()
    return row


def build_dry_run(resolved: ResolvedCampaign, waits: list[str]) -> dict[str, Any]:
    """Return what would run: every variant's resolved plan and order.

    Args:
        resolved: the campaign that was submitted.
        waits: why its runs would wait.
    """
    told = [text for plan in resolved.variants.values() for text in warnings_of(plan.parsed())]
    return {
        "dry_run": True,
        "plan": resolved.plan,
        "spec": resolved.spec.model_dump(mode="json"),
        "runs": len(resolved.variants) * resolved.spec.repeats,
        "most_runs": len(resolved.variants) * resolved.spec.bound,
        "warnings": list(dict.fromkeys([*told, *waits])),
        "orders": {name: first_order(plan).document() for name, plan in resolved.variants.items()},
    }


def warnings_for(session: Session, resolved: ResolvedCampaign, now: float) -> list[str]:
    """Return why its runs will wait, as the workers are now, or come to nothing."""
    unseen = unseen_changes(resolved)
    found: dict[str, None] = {} if unseen is None else {unseen: None}
    for plan in resolved.variants.values():
        found |= dict.fromkeys(load_warnings(session, plan.parsed(), now))
    return list(found)


def lock_campaign(deed: Deed, campaign: str) -> CampaignRow:
    """Return a campaign, locked until the transaction ends; before any of its experiments.

    Raises:
        NotFound: there is none.
    """
    load_campaign(deed.session, campaign)
    query = select(CampaignRow).where(CampaignRow.id == campaign).with_for_update()
    return deed.session.scalars(query.execution_options(populate_existing=True)).one()
