"""Queries of campaigns, experiments, phases, decisions and events."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, case, func, inspect, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session, defer

from gonogo.contract.decision import ConditionState, Decision, DecisionKind
from gonogo.contract.errors import NotFound
from gonogo.contract.lifecycle import ExperimentState
from gonogo.contract.wire import SHORT_LENGTH, Kind, is_id
from gonogo.ledger.recorded import parse_decision
from service.db.schema import (
    CampaignRow,
    ConditionRow,
    DecisionRow,
    EventRow,
    ExperimentRow,
    PhaseRow,
    RunRow,
)

_T = TypeVar("_T")


def load_page(
    session: Session,
    query: Select[_T],
    key: "InstrumentedAttribute[Any]",
    *,
    limit: int,
    after: Any = None,
    newest_first: bool = False,
) -> tuple[Sequence[_T], str | None]:
    """Return the rows beyond `after` in the order of `key`, and the cursor of the next page."""
    if after is not None:
        query = query.where(key < after if newest_first else key > after)
    query = query.order_by(key.desc() if newest_first else key).limit(limit + 1)
    rows = session.scalars(query).all()
    if len(rows) <= limit:
        return rows, None
    return rows[:limit], str(getattr(rows[limit - 1], key.key))


def id_matches(key: "InstrumentedAttribute[str]", text: str) -> ColumnElement[bool]:
    """Return whether an id begins with a text, such as `run_01K`, or is shown as it."""
    begins = key.startswith(text, autoescape=True)
    _, _, letters = text.partition("_")
    shown = len(letters) == SHORT_LENGTH
    return or_(begins, key.endswith(letters, autoescape=True)) if shown else begins


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


def in_order(query: Select[RunRow]) -> Select[RunRow]:
    """Return a query for runs of experiments with each one's in the order in which they were made.

    That is by phase and attempt: a clock that was set back gives another order.
    """
    its_phase = (PhaseRow.experiment == RunRow.experiment) & (PhaseRow.name == RunRow.phase)
    return query.outerjoin(PhaseRow, its_phase).order_by(PhaseRow.position, RunRow.attempt)


def has_plan(experiment: ExperimentRow) -> bool:
    """Say whether a row was read with its plan: lists leave plans out, which are large."""
    return "resolved" not in inspect(experiment).unloaded


def load_experiment(session: Session, experiment: str) -> ExperimentRow:
    """Return an experiment without locking it."""
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


_Named = TypeVar("_Named", ExperimentRow, CampaignRow)


def find_named(
    session: Session, table: type[_Named], beginning: str, name: str, *, limit: int
) -> Sequence[_Named]:
    """Return rows whose id has this beginning or that are called so."""
    query = select(table).where(or_(id_matches(table.id, beginning), table.name == name))
    return session.scalars(query.order_by(table.id.desc()).limit(limit)).all()


def count_states(session: Session) -> dict[str, int]:
    """Return state → how many experiments are in it; a state of none is left out."""
    query = select(ExperimentRow.state, func.count()).group_by(ExperimentRow.state)
    return {state: count for state, count in session.execute(query)}


def phases_of(session: Session, experiment: str) -> list[PhaseRow]:
    """Return the phases of an experiment in their order."""
    query = select(PhaseRow).where(PhaseRow.experiment == experiment)
    return list(session.scalars(query.order_by(PhaseRow.position)))


def load_phases(session: Session, experiments: Sequence[str]) -> dict[str, list[PhaseRow]]:
    """Return experiment → its phases in their order."""
    query = select(PhaseRow).where(PhaseRow.experiment.in_(experiments))
    return _grouped(session.scalars(query.order_by(PhaseRow.position)))


def runs_of(session: Session, experiment: str, phase: str | None = None) -> list[RunRow]:
    """Return the runs of an experiment (or of one phase), oldest first."""
    query = select(RunRow).where(RunRow.experiment == experiment)
    if phase is not None:
        query = query.where(RunRow.phase == phase)
    return list(session.scalars(in_order(query)))


def load_seen_runs(session: Session, experiments: Sequence[str]) -> dict[str, list[RunRow]]:
    """Return experiment → its runs, oldest first, without the documents that no list shows."""
    query = select(RunRow).where(RunRow.experiment.in_(experiments)).options(*map(defer, UNSEEN))
    return _grouped(session.scalars(in_order(query)))


def load_condition_rows(
    session: Session, experiments: Sequence[str]
) -> dict[str, list[ConditionRow]]:
    """Return experiment → its conditions in the order in which they were set."""
    query = select(ConditionRow).where(ConditionRow.experiment.in_(experiments))
    return _grouped(session.scalars(query.order_by(ConditionRow.n)))


_Row = TypeVar("_Row", PhaseRow, RunRow, ConditionRow)


def _grouped(rows: Iterable[_Row]) -> dict[str, list[_Row]]:
    found: dict[str, list[_Row]] = {}
    for row in rows:
        found.setdefault(row.experiment, []).append(row)
    return found


def load_campaign(session: Session, campaign: str) -> CampaignRow:
    """Return a campaign without locking it."""
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


def load_decision(session: Session, decision: str) -> DecisionRow:
    """Return a decision."""
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


def load_outlines(session: Session, experiments: Sequence[str]) -> Sequence[DecisionRow]:
    """Return experiments' decisions in each one's order, without their documents."""
    query = select(DecisionRow).where(DecisionRow.experiment.in_(experiments))
    query = query.order_by(DecisionRow.experiment, DecisionRow.seq)
    return session.scalars(query.options(defer(DecisionRow.document))).all()


def load_last_automatic(session: Session, experiments: Sequence[str]) -> dict[str, DecisionRow]:
    """Return experiment → its last automatic decision, of those that have one."""
    rows = load_outlines(session, experiments)
    return {row.experiment: row for row in rows if row.kind is DecisionKind.AUTO}


def load_documents(session: Session, decisions: Sequence[str]) -> dict[str, str]:
    """Return decision → its document, as it was recorded."""
    if not decisions:
        return {}
    query = select(DecisionRow.id, DecisionRow.document).where(DecisionRow.id.in_(decisions))
    return {name: document for name, document in session.execute(query)}


def load_first_document(session: Session) -> str | None:
    """Return the document of the oldest decision; None if there is none."""
    return session.scalars(select(DecisionRow.document).order_by(DecisionRow.id).limit(1)).first()


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
    """Return verdict → how many decisions have it, and how many of them by a person."""
    waives = DecisionRow.document.contains(f'"state":"{ConditionState.WAIVED}"', autoescape=True)
    waived = (DecisionRow.kind == DecisionKind.CONDITION) & waives
    by_hand = case(((DecisionRow.kind == DecisionKind.HUMAN) | waived, 1))
    query = select(DecisionRow.verdict, func.count(), func.count(by_hand))
    found = session.execute(query.group_by(DecisionRow.verdict))
    return {verdict: (number, hands) for verdict, number, hands in found}


def load_events(
    session: Session, experiment: str, *, after: int = 0, limit: int | None = None
) -> Sequence[EventRow]:
    """Return the events of an experiment beyond number `after`, oldest first."""
    query = select(EventRow).where(EventRow.experiment == experiment, EventRow.seq > after)
    return session.scalars(query.order_by(EventRow.seq).limit(limit)).all()


def load_events_page(
    session: Session, *, limit: int, after: int
) -> tuple[Sequence[EventRow], str | None]:
    """Return a page of the events of all experiments, in their one order."""
    query = select(EventRow)
    return load_page(session, query, EventRow.cursor, limit=limit, after=after)
