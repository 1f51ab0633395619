"""How does an experiment look from outside? With phases, conditions, forecast, next steps."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.api import CampaignPlace, ExperimentView, Forecast, OriginView, PhaseView
from gonogo.contract.decision import Condition, Verdict
from gonogo.contract.lifecycle import ExperimentState, RunState
from gonogo.contract.outcome import Outcome
from gonogo.judge.course.summary import phases_never_ran, summarise
from service.db.schema import ConditionRow, ExperimentRow, PhaseRow, RunRow
from service.experiments.forecasts import load_forecast
from service.experiments.takers import load_needs
from service.instants import instant, stamp
from service.told.awaited import expires_at, is_owed, open_approval
from service.told.decided import Decided, load_decided, standing_cause
from service.views.next_steps import next_steps, place_of


def view_experiment(session: Session, row: ExperimentRow) -> ExperimentView:
    """Return an experiment with its phases, conditions and forecast."""
    return view_experiments(session, [row])[0]


def view_experiments(session: Session, rows: Iterable[ExperimentRow]) -> list[ExperimentView]:
    """Return experiments, each with its phases, conditions and forecast."""
    rows = list(rows)
    ids = [row.id for row in rows]
    phases = _grouped(
        session.scalars(
            select(PhaseRow).where(PhaseRow.experiment.in_(ids)).order_by(PhaseRow.position)
        )
    )
    runs = _grouped(
        session.scalars(
            select(RunRow).where(RunRow.experiment.in_(ids)).order_by(RunRow.created_at, RunRow.id)
        )
    )
    conditions = _grouped(
        session.scalars(
            select(ConditionRow).where(ConditionRow.experiment.in_(ids)).order_by(ConditionRow.n)
        )
    )
    decided = load_decided(session, ids)
    return [
        _view_one(
            session,
            row,
            phases.get(row.id, []),
            runs.get(row.id, []),
            conditions.get(row.id, []),
            decided[row.id],
        )
        for row in rows
    ]


def _grouped(rows: Iterable[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row.experiment, []).append(row)
    return found


def _view_one(
    session: Session,
    row: ExperimentRow,
    phases: list[PhaseRow],
    runs: list[RunRow],
    conditions: list[ConditionRow],
    decided: Decided,
) -> ExperimentView:
    over = row.state == ExperimentState.FINISHED
    fresh_or_from = weights_of_phases(row)
    shown = [_view_phase(phase, runs, fresh_or_from.get(phase.name)) for phase in phases]
    asked = open_approval(row)
    hanging = [*map(view_condition, conditions), *([asked] if asked else [])]
    verdict = Verdict(row.verdict) if row.verdict else None
    origin = OriginView.model_validate(row.origin) if row.origin else None
    passed = verdict is Verdict.GO and not decided.overrides
    cause = None if passed else standing_cause(decided, runs)
    return ExperimentView(
        id=row.id,
        name=row.name,
        plan=row.plan,
        state=ExperimentState(row.state),
        outcome=Outcome.model_validate(row.outcome) if row.outcome else None,
        verdict=verdict,
        origin=origin,
        campaign=place_in_campaign(row),
        phases=shown,
        conditions=hanging,
        forecast=_OVER if over else load_forecast(session, row, phases, runs),
        labels=row.labels,
        submitted_by=row.created_by,
        created_at=stamp(row.created_at),
        started_at=instant(row.started_at),
        ended_at=instant(row.ended_at),
        waiting_for=_waiting_for(row, runs),
        waiting_until=instant(expires_at(row)),
        overrides=decided.overrides,
        never_ran=phases_never_ran(shown) if over else [],
        cause=cause,
        summary=summarise(verdict, shown, hanging, decided.overrides, finished=over, origin=origin),
        next=next_steps(place_of(row, phases, runs, hanging, cause, decided.last)),
    )


def place_in_campaign(row: ExperimentRow) -> CampaignPlace | None:
    """Return which run of a campaign an experiment is, if any."""
    if row.campaign is None or row.variant is None or row.repeat is None:
        return None
    return CampaignPlace(campaign=row.campaign, variant=row.variant, repeat=row.repeat)


def weights_of_phases(row: ExperimentRow) -> dict[str, str | None]:
    """Return by phase the one whose last weights it begins with, None where it starts fresh."""
    return {phase["name"]: phase.get("init_from") for phase in row.resolved["plan"]["phases"]}


def _view_phase(phase: PhaseRow, runs: Iterable[RunRow], init_from: str | None) -> PhaseView:
    return PhaseView(
        name=phase.name,
        state=phase.state,
        steps=phase.steps,
        init_from=init_from,
        verdict=phase.verdict,
        runs=[run.id for run in runs if run.phase == phase.name],
    )


def view_condition(row: ConditionRow) -> Condition:
    """Return a condition in its present state."""
    return Condition.model_validate({**row.document, "state": row.state})


_OVER = Forecast(basis="nothing is left")


def _waiting_for(row: ExperimentRow, runs: list[RunRow]) -> str | None:
    """Say what keeps an experiment from going on, if it is not working."""
    if row.awaiting:
        return str(row.awaiting["text"])
    queued = next((run for run in runs if run.state == RunState.QUEUED), None)
    if queued is not None:
        wanted = load_needs(row)
        allowing = "" if wanted is None else f"that has {wanted}, and "
        return f"a worker {allowing}with free devices, for phase {queued.phase}"
    lost = next((run for run in runs if run.lost), None)
    if lost is not None and is_owed(lost):
        return (
            f"the rest of run {lost.id}, which ended on host {lost.host} (or a takeover: it is "
            "judged by what is here)"
        )
    if lost is not None:
        return f"a sign of life of run {lost.id} on host {lost.host} (or a takeover)"
    return None
