"""What may a person mean? A name of experiments, or the beginning of an id, looked up at once."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from gonogo.contract.api import FoundPage, FoundView
from gonogo.contract.ids import Kind
from service.db.schema import CampaignRow, DecisionRow, ExperimentRow, RunRow
from service.http.auth import Service, Viewer
from service.instants import stamp

router = APIRouter(tags=["overview"])
FINDABLE = (Kind.EXPERIMENT, Kind.RUN, Kind.DECISION, Kind.CAMPAIGN)
Text = Annotated[
    str,
    Query(max_length=200, description="Beginning of an id, with or without its kind, or a name."),
]


@router.get("/find", operation_id="list_found")
def find(
    context: Service,
    _: Viewer,
    text: Text = "",
    kind: Annotated[list[Kind] | None, Query(description="Only of these kinds.")] = None,
    begins: Annotated[bool, Query(description="Also names that only begin so.")] = False,
    limit: Annotated[int, Query(ge=1, le=100, description="So many of each kind.")] = 20,
) -> FoundPage:
    """Find what a text may name: experiments and campaigns by name too, runs, decisions by id."""
    kinds = [each for each in FINDABLE if kind is None or each in kind]
    found = context.store.read(
        lambda session: [
            *(_experiments(session, text, limit, begins) if Kind.EXPERIMENT in kinds else ()),
            *(_runs(session, text, limit) if Kind.RUN in kinds else ()),
            *(_decisions(session, text, limit) if Kind.DECISION in kinds else ()),
            *(_campaigns(session, text, limit, begins) if Kind.CAMPAIGN in kinds else ()),
        ]
    )
    return FoundPage(items=sorted(found, key=lambda row: (row.at, row.id), reverse=True))


def _beginning(kind: Kind, text: str) -> str:
    """Return the beginning of an id: `EXP_01k`, `01k` → `exp_01K`."""
    head, tail = f"{kind.value}_", text
    if text[: len(head)].lower() == head:
        tail = text[len(head) :]
    elif head.startswith(text.lower()):
        tail = ""
    return head + tail.upper()


def _experiments(session: Session, text: str, limit: int, begins: bool) -> Iterator[FoundView]:
    by_id = ExperimentRow.id.startswith(_beginning(Kind.EXPERIMENT, text), autoescape=True)
    named = ExperimentRow.name.startswith(text, autoescape=True)
    by_name = named if begins else ExperimentRow.name == text
    query = select(ExperimentRow).where(or_(by_id, by_name))
    for row in session.scalars(query.order_by(ExperimentRow.id.desc()).limit(limit)):
        yield FoundView(
            id=row.id,
            kind=Kind.EXPERIMENT,
            name=row.name,
            experiment=row.id,
            state=row.state,
            verdict=row.verdict,
            at=stamp(row.created_at),
        )


def _campaigns(session: Session, text: str, limit: int, begins: bool) -> Iterator[FoundView]:
    by_id = CampaignRow.id.startswith(_beginning(Kind.CAMPAIGN, text), autoescape=True)
    named = CampaignRow.name.startswith(text, autoescape=True)
    by_name = named if begins else CampaignRow.name == text
    query = select(CampaignRow).where(or_(by_id, by_name))
    for row in session.scalars(query.order_by(CampaignRow.id.desc()).limit(limit)):
        yield FoundView(
            id=row.id,
            kind=Kind.CAMPAIGN,
            name=row.name,
            experiment=None,
            state=row.state,
            at=stamp(row.created_at),
        )


def _runs(session: Session, text: str, limit: int) -> Iterator[FoundView]:
    query = (
        select(RunRow, ExperimentRow.name)
        .join(ExperimentRow, ExperimentRow.id == RunRow.experiment)
        .where(RunRow.id.startswith(_beginning(Kind.RUN, text), autoescape=True))
        .order_by(RunRow.id.desc())
        .limit(limit)
    )
    for row, name in session.execute(query):
        yield FoundView(
            id=row.id,
            kind=Kind.RUN,
            name=name,
            experiment=row.experiment,
            phase=row.phase,
            state=row.state,
            verdict=row.verdict,
            at=stamp(row.created_at),
        )


def _decisions(session: Session, text: str, limit: int) -> Iterator[FoundView]:
    query = (
        select(DecisionRow, ExperimentRow.name)
        .join(ExperimentRow, ExperimentRow.id == DecisionRow.experiment)
        .where(DecisionRow.id.startswith(_beginning(Kind.DECISION, text), autoescape=True))
        .order_by(DecisionRow.id.desc())
        .limit(limit)
    )
    for row, name in session.execute(query):
        yield FoundView(
            id=row.id,
            kind=Kind.DECISION,
            name=name,
            experiment=row.experiment,
            phase=row.phase,
            state="decided",
            verdict=row.verdict,
            at=stamp(row.at),
        )
