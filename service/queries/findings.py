"""Findings, in the order in which the detectors made them."""

from collections.abc import Iterator, Sequence

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from gonogo.contract.finding import Finding, Severity
from service.db.schema import FindingRow, RunRow
from service.queries.page import load_page


def load_documents(session: Session, run: str) -> Iterator[str]:
    """Yield the findings of a run as the texts that they are stored as."""
    query = select(FindingRow.document).where(FindingRow.run == run)
    yield from session.scalars(query.order_by(FindingRow.n))


def load_findings(session: Session, run: str) -> list[Finding]:
    """Return the findings of a run."""
    return [Finding.model_validate_json(document) for document in load_documents(session, run)]


def load_findings_page(
    session: Session, run: str, *, limit: int, after: int | None
) -> tuple[list[Finding], str | None]:
    """Return a page of the findings of a run, and the cursor of the next."""
    query = select(FindingRow).where(FindingRow.run == run)
    rows, cursor = load_page(session, query, FindingRow.n, limit=limit, after=after)
    return [Finding.model_validate_json(row.document) for row in rows], cursor


def load_known(session: Session, run: str) -> dict[str, Severity]:
    """Return key → severity of what was found in a run."""
    query = select(FindingRow.key, FindingRow.severity).where(FindingRow.run == run)
    return {key: severity for key, severity in session.execute(query)}


def count_findings(session: Session, run: str) -> int:
    """Return how many findings of a run are here."""
    query = select(func.count()).select_from(FindingRow).where(FindingRow.run == run)
    return session.scalars(query).one()


def load_halts(session: Session, runs: Sequence[str]) -> Iterator[tuple[str, Finding]]:
    """Yield the findings that halt one of these runs, each with its run."""
    query = select(FindingRow.run, FindingRow.document).where(
        FindingRow.run.in_(runs), FindingRow.severity == Severity.HALT
    )
    for run, document in session.execute(query):
        yield run, Finding.model_validate_json(document)


def load_recent_halts(session: Session, ended_after: float) -> Iterator[tuple[str, Finding]]:
    """Yield the halts of runs that are active or ended after this time (Unix s), each with its
    run."""
    recent = or_(RunRow.ended_at.is_(None), RunRow.ended_at > ended_after)
    query = select(FindingRow.run, FindingRow.document).join(RunRow, RunRow.id == FindingRow.run)
    query = query.where(FindingRow.severity == Severity.HALT, recent)
    for run, document in session.execute(query.order_by(FindingRow.run, FindingRow.n)):
        yield run, Finding.model_validate_json(document)


def count_halts(session: Session) -> int:
    """Return how many findings that halt were ever recorded."""
    query = select(func.count()).where(FindingRow.severity == Severity.HALT)
    return session.scalars(query).one()
