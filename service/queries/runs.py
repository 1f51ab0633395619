"""Runs, and their last telemetry."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.errors import NotFound
from gonogo.contract.ids import Kind, is_id
from gonogo.contract.lifecycle import RunState
from gonogo.contract.outcome import TAKEN_OVER
from gonogo.judge.follow_up.action import Attempt
from service.db.schema import AssessmentRow, ExperimentRow, ProgressRow, RunRow
from service.queries.page import id_matches

HELD = (
    RunState.CLAIMED,
    RunState.PREFLIGHT,
    RunState.STARTING,
    RunState.RUNNING,
    RunState.HALTING,
)
"""States in which a run belongs to a worker: from its claim to its end."""


def load_run(session: Session, run: str) -> RunRow:
    """Return a run without locking it.

    Raises:
        NotFound: there is none.
    """
    row = session.get(RunRow, run) if is_id(run, Kind.RUN) else None
    if row is None:
        raise NotFound(f"there is no run {run}")
    return row


def load_progress(session: Session, run: str) -> ProgressRow:
    """Return what telemetry reported last of a run that is there."""
    return session.get_one(ProgressRow, run)


def load_mute(session: Session, runs: Collection[str]) -> set[str]:
    """Return which of these runs have reported no step."""
    if not runs:
        return set()
    query = select(ProgressRow.run).where(ProgressRow.run.in_(runs), ProgressRow.step == 0)
    return {*session.scalars(query)}


def load_held(session: Session) -> list[tuple[RunRow, ProgressRow]]:
    """Return the runs that workers hold, each with its progress, by id."""
    query = (
        select(RunRow, ProgressRow)
        .join(ProgressRow, ProgressRow.run == RunRow.id)
        .where(RunRow.state.in_(HELD))
        .order_by(RunRow.id)
    )
    return [(run, progress) for run, progress in session.execute(query)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Going:
    """A run that a worker holds, as its followers see it."""

    run: str
    experiment: str
    phase: str
    state: str
    progress: ProgressRow


def load_going(session: Session, experiments: Sequence[str]) -> list[Going]:
    """Return the runs of experiments that workers hold, without their documents."""
    query = (
        select(RunRow.id, RunRow.experiment, RunRow.phase, RunRow.state, ProgressRow)
        .join(ProgressRow, ProgressRow.run == RunRow.id)
        .where(RunRow.experiment.in_(experiments))
        .where(RunRow.state.in_(HELD))
    )
    return [
        Going(run=run, experiment=experiment, phase=phase, state=state, progress=progress)
        for run, experiment, phase, state, progress in session.execute(query)
    ]


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
    """Return the results of the ended runs of a phase, in the order of their start.

    With `taken_over`, runs are included that were declared dead and replaced.
    """
    query = (
        select(AssessmentRow.attempt)
        .join(RunRow, RunRow.id == AssessmentRow.run)
        .where(RunRow.experiment == experiment, RunRow.phase == phase)
        .order_by(RunRow.attempt)
    )
    found = session.scalars(query)
    return [row for row in found if taken_over or row.outcome.code not in TAKEN_OVER]


def load_facts_text(session: Session, run: str) -> str | None:
    """Return the facts that a run was judged by, as they are stored; None before its end."""
    query = select(AssessmentRow.facts).where(AssessmentRow.run == run)
    return session.scalars(query).first()
