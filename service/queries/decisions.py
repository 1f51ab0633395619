"""Decisions: documents as they were recorded, and outlines for lists."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from sqlalchemy import bindparam, case, func, select
from sqlalchemy.orm import Session

from gonogo.contract.decision import Cause, ConditionState, Decision, DecisionKind, Verdict
from gonogo.contract.errors import NotFound
from gonogo.contract.ids import Kind, is_id
from gonogo.ledger.recorded import parse_decision
from service.db.schema import DecisionRow, ExperimentRow
from service.queries.page import id_matches, load_page


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A decision but for its document, which holds facts and rules and is large."""

    id: str
    experiment: str
    phase: str | None
    run: str | None
    kind: DecisionKind
    verdict: Verdict | None
    hash: str
    at: float
    cause: Cause | None


_OUTLINE = [getattr(DecisionRow, field.name) for field in fields(Outline)]
_OUTLINES = (
    select(*_OUTLINE)
    .where(DecisionRow.experiment.in_(bindparam("experiments", expanding=True)))
    .order_by(DecisionRow.experiment, DecisionRow.seq)
)


def load_decision(session: Session, decision: str) -> DecisionRow:
    """Return a decision.

    Raises:
        NotFound: there is none.
    """
    row = session.get(DecisionRow, decision) if is_id(decision, Kind.DECISION) else None
    if row is None:
        raise NotFound(f"there is no decision {decision}")
    return row


def load_chain(session: Session, experiment: str) -> list[DecisionRow]:
    """Return the decisions of an experiment in their order."""
    query = select(DecisionRow).where(DecisionRow.experiment == experiment)
    return list(session.scalars(query.order_by(DecisionRow.seq)))


def load_decisions(session: Session, experiment: str) -> list[Decision]:
    """Return every decision of an experiment in its order, as the model that it is."""
    query = select(DecisionRow.document).where(DecisionRow.experiment == experiment)
    rows = session.scalars(query.order_by(DecisionRow.seq))
    return [parse_decision(document).decision for document in rows]


def load_decisions_page(
    session: Session, experiment: str, *, limit: int, after: int | None
) -> tuple[Sequence[DecisionRow], str | None]:
    """Return a page of an experiment's decisions, oldest first."""
    query = select(DecisionRow).where(DecisionRow.experiment == experiment)
    return load_page(session, query, DecisionRow.seq, limit=limit, after=after)


def load_outlines(session: Session, experiments: Sequence[str]) -> list[Outline]:
    """Return the outlines of experiments' decisions, in each one's order."""
    rows = session.execute(_OUTLINES, {"experiments": experiments})
    return [Outline(**row._mapping) for row in rows]


def load_last_automatic(session: Session, experiments: Sequence[str]) -> dict[str, Outline]:
    """Return experiment → the outline of its last automatic decision, of those that have one."""
    query = select(*_OUTLINE).where(
        DecisionRow.experiment.in_(experiments), DecisionRow.kind == DecisionKind.AUTO
    )
    rows = session.execute(query.order_by(DecisionRow.experiment, DecisionRow.seq))
    return {row.experiment: Outline(**row._mapping) for row in rows}


def load_documents(session: Session, decisions: Sequence[str]) -> dict[str, str]:
    """Return decision → its document, as it was recorded."""
    if not decisions:
        return {}
    query = select(DecisionRow.id, DecisionRow.document).where(DecisionRow.id.in_(decisions))
    return {name: document for name, document in session.execute(query)}


def load_first_document(session: Session) -> str | None:
    """Return the document of the oldest decision; None if there is none."""
    return session.scalars(select(DecisionRow.document).order_by(DecisionRow.id).limit(1)).first()


def load_ids(session: Session) -> set[str]:
    """Return the id of every decision."""
    return set(session.scalars(select(DecisionRow.id)))


def find_decisions(
    session: Session, beginning: str, *, limit: int
) -> Iterator[tuple[DecisionRow, str]]:
    """Yield decisions whose id begins so, newest first, each with its experiment's name."""
    query = (
        select(DecisionRow, ExperimentRow.name)
        .join(ExperimentRow, ExperimentRow.id == DecisionRow.experiment)
        .where(id_matches(DecisionRow.id, beginning))
        .order_by(DecisionRow.id.desc())
        .limit(limit)
    )
    yield from ((row, name) for row, name in session.execute(query))


def count_verdicts(session: Session) -> dict[str | None, tuple[int, int]]:
    """Return verdict → how many decisions have it, and how many by a person (`Decision.by_hand`).

    A document is canonical JSON: what is quoted within a text of it has other quotation marks.
    """
    waives = DecisionRow.document.contains(f'"state":"{ConditionState.WAIVED}"', autoescape=True)
    waived = (DecisionRow.kind == DecisionKind.CONDITION) & waives
    by_hand = case(((DecisionRow.kind == DecisionKind.HUMAN) | waived, 1))
    query = select(DecisionRow.verdict, func.count(), func.count(by_hand))
    found = session.execute(query.group_by(DecisionRow.verdict))
    return {verdict: (number, hands) for verdict, number, hands in found}
