"""Queries of runs: their telemetry, findings and times."""

from collections.abc import Iterator, Sequence

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session, load_only

from gonogo.contract.errors import NotFound
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.lifecycle import RunState
from gonogo.contract.outcome import TAKEN_OVER
from gonogo.contract.wire import Kind, is_id
from gonogo.judge.follow_up.decide import Attempt
from service.db.schema import (
    AssessmentRow,
    ExperimentRow,
    FindingRow,
    ProgressRow,
    RunRow,
)
from service.queries.experiments import id_matches, in_order, load_page

HELD = (
    RunState.CLAIMED,
    RunState.PREFLIGHT,
    RunState.STARTING,
    RunState.RUNNING,
    RunState.HALTING,
)


def load_run(session: Session, run: str) -> RunRow:
    """Return a run without locking it."""
    row = session.get(RunRow, run) if is_id(run, Kind.RUN) else None
    if row is None:
        raise NotFound(f"there is no run {run}")
    return row


def load_progress(session: Session, run: str) -> ProgressRow:
    """Return what telemetry reported last of a run that is there."""
    return session.get_one(ProgressRow, run)


def load_held(session: Session, experiment: str | None = None) -> list[tuple[RunRow, ProgressRow]]:
    """Return the runs (of one experiment) that workers hold, each with its progress, by id."""
    query = (
        select(RunRow, ProgressRow)
        .join(ProgressRow, ProgressRow.run == RunRow.id)
        .where(RunRow.state.in_(HELD))
        .order_by(RunRow.id)
    )
    if experiment is not None:
        query = query.where(RunRow.experiment == experiment)
    return [(run, progress) for run, progress in session.execute(query)]


def load_runs_of_worker(session: Session, worker: str) -> list[RunRow]:
    """Return the runs of a worker that have not ended, oldest first."""
    query = select(RunRow).where(RunRow.worker == worker, RunRow.state != RunState.ENDED)
    return list(session.scalars(query.order_by(RunRow.created_at)))


def load_queued(session: Session, limit: int) -> list[str]:
    """Return the runs that wait for a worker, oldest first, `limit` of them at most."""
    query = select(RunRow.id).where(RunRow.state == RunState.QUEUED)
    return list(session.scalars(query.order_by(RunRow.created_at, RunRow.id).limit(limit)))


def load_unjudged(session: Session) -> Sequence[RunRow]:
    """Return the runs that have ended and were not judged, oldest end first."""
    query = select(RunRow).where(RunRow.state == RunState.ENDED, RunRow.judged.is_(False))
    return session.scalars(query.order_by(RunRow.ended_at)).all()


def find_runs(session: Session, beginning: str, *, limit: int) -> Iterator[tuple[RunRow, str]]:
    """Yield runs whose id begins so, newest first, each with its experiment's name."""
    query = (
        select(RunRow, ExperimentRow.name)
        .join(ExperimentRow, ExperimentRow.id == RunRow.experiment)
        .where(id_matches(RunRow.id, beginning))
        .order_by(RunRow.id.desc())
        .limit(limit)
    )
    yield from ((row, name) for row, name in session.execute(query))


def load_attempts(
    session: Session, experiment: str, phase: str, *, taken_over: bool = False
) -> list[Attempt]:
    """Return the results of a phase's ended runs; `taken_over`: also of those declared dead."""
    query = (
        select(AssessmentRow.attempt)
        .join(RunRow, RunRow.id == AssessmentRow.run)
        .where(RunRow.experiment == experiment, RunRow.phase == phase)
        .order_by(RunRow.attempt)
    )
    found = session.scalars(query)
    return [row for row in found if taken_over or row.outcome.code not in TAKEN_OVER]


def load_findings(session: Session, run: str) -> list[Finding]:
    """Return the findings of a run."""
    query = select(FindingRow.document).where(FindingRow.run == run).order_by(FindingRow.n)
    return [Finding.model_validate_json(document) for document in session.scalars(query)]


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


def load_waited(session: Session, runs: Sequence[str]) -> dict[str, float]:
    """Return run → until when an engine let it wait, Unix seconds; of those that waited."""
    query = select(ProgressRow.run, ProgressRow.waited_until).where(
        ProgressRow.run.in_(runs), ProgressRow.waited_until.is_not(None)
    )
    return {run: until for run, until in session.execute(query) if until is not None}
