"""Stored accounts of time, alone and summed."""

from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session, defer, load_only

from gonogo.contract.goodput import Part
from service.db.schema import AccountRow, ProgressRow, RunRow
from service.queries.experiments import in_order

COLUMNS = {part: getattr(AccountRow, f"{part.value}_s") for part in Part}
_SUMS = [func.sum(column * AccountRow.devices) for column in COLUMNS.values()]
_ASKED = (
    *(RunRow.id, RunRow.experiment, RunRow.phase, RunRow.attempt, RunRow.state, RunRow.judged),
    *(RunRow.gpus, RunRow.resume_from, RunRow.outcome),
    *(RunRow.created_at, RunRow.claimed_at, RunRow.ended_at),
)
"""What an account is made of; a run's documents are large."""


def load_timed_runs(session: Session, experiment: str) -> list[RunRow]:
    """Return the runs of an experiment, oldest first, with what an account is made of."""
    query = select(RunRow).where(RunRow.experiment == experiment).options(load_only(*_ASKED))
    return list(session.scalars(in_order(query)))


def load_taken(session: Session, runs: Sequence[str]) -> dict[str, AccountRow]:
    """Return run → its account, of those of which one was taken."""
    query = select(AccountRow).where(AccountRow.run.in_(runs))
    return {row.run: row for row in session.scalars(query)}


def load_waited(session: Session, runs: Sequence[str]) -> dict[str, float]:
    """Return run → until when an engine let it wait, Unix seconds; of those that waited."""
    query = select(ProgressRow.run, ProgressRow.waited_until).where(
        ProgressRow.run.in_(runs), ProgressRow.waited_until.is_not(None)
    )
    return {run: until for run, until in session.execute(query) if until is not None}


def sum_accounts(session: Session, ended_after: float) -> tuple[int, Mapping[Part, float]]:
    """Return the number of accounts of recent runs, and their device seconds by part.

    Recent runs are active, or ended after `ended_after` (Unix seconds).
    """
    late = or_(RunRow.ended_at.is_(None), RunRow.ended_at >= ended_after)
    query = select(func.count(), *_SUMS).join(RunRow, RunRow.id == AccountRow.run).where(late)
    count, *found = session.execute(query).one()
    return count, {part: float(value or 0.0) for part, value in zip(COLUMNS, found, strict=True)}


def load_accounts_in(session: Session, states: Sequence[str]) -> Iterator[AccountRow]:
    """Yield the accounts of runs in these states by run, without what their lines came to."""
    query = select(AccountRow).join(RunRow, RunRow.id == AccountRow.run)
    query = query.where(RunRow.state.in_(states)).options(defer(AccountRow.told))
    yield from session.scalars(query.order_by(AccountRow.run))
