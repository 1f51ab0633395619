"""Campaigns."""

from collections.abc import Sequence

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from gonogo.contract.errors import NotFound
from gonogo.contract.ids import Kind, is_id
from service.db.schema import CampaignRow
from service.queries.page import id_matches, load_page


def load_campaign(session: Session, campaign: str) -> CampaignRow:
    """Return a campaign without locking it.

    Raises:
        NotFound: there is none.
    """
    row = session.get(CampaignRow, campaign) if is_id(campaign, Kind.CAMPAIGN) else None
    if row is None:
        raise NotFound(f"there is no campaign {campaign}")
    return row


def load_campaigns(
    session: Session, *, limit: int, after: str | None
) -> tuple[Sequence[CampaignRow], str | None]:
    """Return a page of campaigns, newest first."""
    query = select(CampaignRow)
    return load_page(session, query, CampaignRow.id, limit=limit, after=after, newest_first=True)


def find_campaigns(
    session: Session, beginning: str, name: str, *, begins: bool, limit: int
) -> Sequence[CampaignRow]:
    """Return campaigns whose id begins so or that are called so, newest first.

    As `service.queries.experiments.find_experiments` does of experiments.
    """
    by_id = id_matches(CampaignRow.id, beginning)
    named = CampaignRow.name.startswith(name, autoescape=True)
    by_name = named if begins else CampaignRow.name == name
    query = select(CampaignRow).where(or_(by_id, by_name))
    return session.scalars(query.order_by(CampaignRow.id.desc()).limit(limit)).all()
