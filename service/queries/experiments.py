"""Experiments with their phases, runs and conditions."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from sqlalchemy import BindParameter, Select, bindparam, func, inspect, or_, select
from sqlalchemy.orm import Session, defer

from gonogo.contract.decision import Verdict
from gonogo.contract.errors import NotFound
from gonogo.contract.ids import Kind, is_id
from gonogo.contract.lifecycle import ExperimentState, PhaseState
from service.db.schema import ConditionRow, DecisionRow, ExperimentRow, PhaseRow, RunRow
from service.queries.page import id_matches, load_page

UNSEEN = (
    RunRow.order,
    RunRow.preflight,
    RunRow.model,
    RunRow.exit,
    RunRow.promised,
    RunRow.sizes,
    RunRow.change,
    RunRow.carried,
)
"""Documents of a run that are large and of which an experiment's view says nothing."""


class SeenPhase(NamedTuple):
    """A phase as it is shown; a list has hundreds, and a mapped row of each costs far more."""

    experiment: str
    name: str
    steps: int
    state: PhaseState
    verdict: Verdict | None
    init_from: str | None


AnyPhase = PhaseRow | SeenPhase
_SEEN = [getattr(PhaseRow, name) for name in SeenPhase._fields]
_Row = TypeVar("_Row", SeenPhase, RunRow, ConditionRow)

# Built once: to build one of these costs about what it takes to ask it.
_ASKED: BindParameter[str] = bindparam("experiments", expanding=True)
_PHASES = select(*_SEEN).where(PhaseRow.experiment.in_(_ASKED)).order_by(PhaseRow.position)


def in_order(query: Select[RunRow]) -> Select[RunRow]:
    """Return a query for runs of experiments with each one's in the order in which they were made.

    That is by phase and attempt: a clock that was set back gives another order.
    """
    its_phase = (PhaseRow.experiment == RunRow.experiment) & (PhaseRow.name == RunRow.phase)
    return query.outerjoin(PhaseRow, its_phase).order_by(PhaseRow.position, RunRow.attempt)


_RUNS = in_order(select(RunRow).where(RunRow.experiment.in_(_ASKED)).options(*map(defer, UNSEEN)))
_CONDITIONS = (
    select(ConditionRow).where(ConditionRow.experiment.in_(_ASKED)).order_by(ConditionRow.n)
)


def has_plan(experiment: ExperimentRow) -> bool:
    """Say whether a row was read with its plan: lists leave plans out, which are large."""
    return "resolved" not in inspect(experiment).unloaded


def load_experiment(session: Session, experiment: str) -> ExperimentRow:
    """Return an experiment without locking it.

    Raises:
        NotFound: there is none.
    """
    row = session.get(ExperimentRow, experiment) if is_id(experiment, Kind.EXPERIMENT) else None
    if row is None:
        raise NotFound(f"there is no experiment {experiment}")
    return row


def load_experiments(
    session: Session, *, limit: int, after: str | None, state: ExperimentState | None = None
) -> tuple[Sequence[ExperimentRow], str | None]:
    """Return a page of experiments, newest first, without the frozen plans, which are large."""
    query = select(ExperimentRow).options(defer(ExperimentRow.resolved))
    if state is not None:
        query = query.where(ExperimentRow.state == state.value)
    return load_page(session, query, ExperimentRow.id, limit=limit, after=after, newest_first=True)


def load_experiments_of(session: Session, campaign: str) -> Sequence[ExperimentRow]:
    """Return the experiments of a campaign in the order in which they were begun."""
    query = select(ExperimentRow).where(ExperimentRow.campaign == campaign)
    return session.scalars(query.order_by(ExperimentRow.created_at, ExperimentRow.id)).all()


def load_awaiting(session: Session) -> Sequence[ExperimentRow]:
    """Return the experiments that wait for a person, oldest first."""
    query = select(ExperimentRow).where(
        ExperimentRow.state == ExperimentState.AWAITING_DECISION.value
    )
    return session.scalars(query.order_by(ExperimentRow.id)).all()


def find_experiments(
    session: Session, beginning: str, name: str, *, begins: bool, limit: int
) -> Sequence[ExperimentRow]:
    """Return experiments whose id has this beginning or that have this name, newest first.

    With `begins`, `name` is the beginning of a name.
    """
    by_id = id_matches(ExperimentRow.id, beginning)
    named = ExperimentRow.name.startswith(name, autoescape=True)
    by_name = named if begins else ExperimentRow.name == name
    query = select(ExperimentRow).where(or_(by_id, by_name))
    return session.scalars(query.order_by(ExperimentRow.id.desc()).limit(limit)).all()


def load_changed(session: Session) -> dict[str, float]:
    """Return finished experiment → when it ended or was last decided on, Unix seconds."""
    decided = (
        select(func.max(DecisionRow.at))
        .where(DecisionRow.experiment == ExperimentRow.id)
        .scalar_subquery()
    )
    query = select(ExperimentRow.id, ExperimentRow.ended_at, decided).where(
        ExperimentRow.state == ExperimentState.FINISHED.value
    )
    return {
        experiment: max(ended or 0.0, last or 0.0)
        for experiment, ended, last in session.execute(query)
    }


def count_states(session: Session) -> dict[str, int]:
    """Return state → how many experiments are in it; a state of none is left out."""
    query = select(ExperimentRow.state, func.count()).group_by(ExperimentRow.state)
    return {state: count for state, count in session.execute(query)}


def phases_of(session: Session, experiment: str) -> list[PhaseRow]:
    """Return the phases of an experiment in their order."""
    query = select(PhaseRow).where(PhaseRow.experiment == experiment)
    return list(session.scalars(query.order_by(PhaseRow.position)))


def load_phase(session: Session, experiment: str, name: str) -> PhaseRow:
    """Return a phase that is there."""
    return session.get_one(PhaseRow, (experiment, name))


def load_phases(session: Session, experiments: Sequence[str]) -> dict[str, list[SeenPhase]]:
    """Return experiment → its phases in their order."""
    rows = session.execute(_PHASES, {"experiments": experiments})
    return _grouped(map(SeenPhase._make, rows))


def runs_of(session: Session, experiment: str, phase: str | None = None) -> list[RunRow]:
    """Return the runs of an experiment (or of one phase), oldest first."""
    query = select(RunRow).where(RunRow.experiment == experiment)
    if phase is not None:
        query = query.where(RunRow.phase == phase)
    return list(session.scalars(in_order(query)))


def load_seen_runs(session: Session, experiments: Sequence[str]) -> dict[str, list[RunRow]]:
    """Return experiment → its runs, oldest first, without the documents that no list shows."""
    return _grouped(session.scalars(_RUNS, {"experiments": experiments}))


def load_condition_rows(
    session: Session, experiments: Sequence[str]
) -> dict[str, list[ConditionRow]]:
    """Return experiment → its conditions in the order in which they were set."""
    return _grouped(session.scalars(_CONDITIONS, {"experiments": experiments}))


def _grouped(rows: Iterable[_Row]) -> dict[str, list[_Row]]:
    found: dict[str, list[_Row]] = {}
    for row in rows:
        found.setdefault(row.experiment, []).append(row)
    return found
