"""Look-up by name or by the beginning of an id."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Query

from gonogo.contract.api import FoundPage, FoundView
from gonogo.contract.decision import DecisionKind
from gonogo.contract.ids import Kind
from gonogo.ledger.recorded import parse_decision
from service.db.schema import DecisionRow
from service.db.store import Session
from service.experiments.overview import load_decided
from service.http.auth import Viewer
from service.http.dependencies import Reading
from service.instants import stamp
from service.queries.experiments import find_campaigns, find_decisions, find_experiments
from service.queries.runs import find_runs

router = APIRouter(tags=["overview"])
FINDABLE = (Kind.EXPERIMENT, Kind.RUN, Kind.DECISION, Kind.CAMPAIGN)
Text = Annotated[
    str,
    Query(max_length=200, description="Id, short id (exp_7Q2M9XKD), its beginning, or a name."),
]


@router.get("/find", operation_id="list_found")
def find(
    session: Reading,
    _: Viewer,
    text: Text = "",
    kind: Annotated[list[Kind] | None, Query(description="Only of these kinds.")] = None,
    begins: Annotated[bool, Query(description="Also names that only begin so.")] = False,
    limit: Annotated[int, Query(ge=1, le=100, description="So many of each kind.")] = 20,
) -> FoundPage:
    """Find what a text may name: experiments and campaigns by name too, runs, decisions by id."""
    kinds = [each for each in FINDABLE if kind is None or each in kind]
    found = [
        *(_experiments(session, text, limit, begins) if Kind.EXPERIMENT in kinds else ()),
        *(_runs(session, text, limit) if Kind.RUN in kinds else ()),
        *(_decisions(session, text, limit) if Kind.DECISION in kinds else ()),
        *(_campaigns(session, text, limit, begins) if Kind.CAMPAIGN in kinds else ()),
    ]
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
    beginning = _beginning(Kind.EXPERIMENT, text)
    rows = list(find_experiments(session, beginning, text, begins=begins, limit=limit))
    decided = load_decided(session, [row.id for row in rows])
    for row in rows:
        yield FoundView(
            id=row.id,
            kind=Kind.EXPERIMENT,
            name=row.name,
            experiment=row.id,
            state=row.state,
            verdict=row.verdict,
            by_hand=bool(decided[row.id].overrides) and row.verdict is not None,
            at=stamp(row.created_at),
        )


def _campaigns(session: Session, text: str, limit: int, begins: bool) -> Iterator[FoundView]:
    beginning = _beginning(Kind.CAMPAIGN, text)
    for row in find_campaigns(session, beginning, text, begins=begins, limit=limit):
        yield FoundView(
            id=row.id,
            kind=Kind.CAMPAIGN,
            name=row.name,
            experiment=None,
            state=row.state,
            at=stamp(row.created_at),
        )


def _runs(session: Session, text: str, limit: int) -> Iterator[FoundView]:
    for row, name in find_runs(session, _beginning(Kind.RUN, text), limit=limit):
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
    for row, name in find_decisions(session, _beginning(Kind.DECISION, text), limit=limit):
        yield FoundView(
            id=row.id,
            kind=Kind.DECISION,
            name=name,
            experiment=row.experiment,
            phase=row.phase,
            state="decided",
            verdict=row.verdict,
            by_hand=_is_by_hand(row),
            at=stamp(row.at),
        )


def _is_by_hand(row: DecisionRow) -> bool:
    """Say whether a person decided; what the judge decided, which may be large, is not read."""
    return row.kind != DecisionKind.AUTO and parse_decision(row.document).decision.by_hand
