"""What do the experiments of a campaign bring to its comparison?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.api import CampaignMember
from gonogo.contract.decision import DecisionKind, Verdict
from gonogo.contract.lifecycle import ExperimentState
from gonogo.contract.order import Order
from gonogo.judge.compare.campaign import Member
from gonogo.judge.compare.question import Question
from gonogo.judge.compare.unit import NoUnit, Unit
from gonogo.judge.comparing import unit_of_decision
from gonogo.judge.ledger.recorded import parse_decision
from service.db.schema import CampaignRow, DecisionRow, ExperimentRow, RunRow

COUNTED = (Verdict.GO, Verdict.CONDITIONAL_GO)
"""Verdicts of runs that count: what fails its gate, or does not show it, wins nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """One experiment, the decision that is compared, and what that brings."""

    experiment: ExperimentRow
    decision: str | None = None
    verdict: Verdict | None = None
    unit: Unit | NoUnit | None = None
    """None: it goes on, or a person stopped it and may let it go on."""

    def member(self) -> Member:
        """Return it as the campaign's next step wants it."""
        row = self.experiment
        return Member(variant=row.variant or "", repeat=row.repeat or 0, brought=self.unit)

    def view(self) -> CampaignMember:
        """Return how it is shown."""
        row, unit = self.experiment, self.unit
        return CampaignMember(
            experiment=row.id,
            variant=row.variant or "",
            repeat=row.repeat or 0,
            state=ExperimentState(row.state),
            verdict=self.verdict,
            decision=self.decision,
            value=unit.value if isinstance(unit, Unit) else None,
            why=unit.why if isinstance(unit, NoUnit) else None,
        )


def load_experiments(session: Session, campaign: CampaignRow) -> Sequence[ExperimentRow]:
    """Return the experiments of a campaign in the order in which they were begun."""
    query = select(ExperimentRow).where(ExperimentRow.campaign == campaign.id)
    return session.scalars(query.order_by(ExperimentRow.created_at, ExperimentRow.id)).all()


def is_done(state: str, stop: Mapping[str, Any] | None) -> bool:
    """Say whether an experiment brings all that it will by itself; one that was halted may not."""
    if state == ExperimentState.AWAITING_DECISION:
        return stop is None
    return state == ExperimentState.FINISHED


def load_brought(
    session: Session, experiments: Sequence[ExperimentRow], question: Question
) -> list[Brought]:
    """Return what each experiment brings."""
    return [_brought(session, row, question) for row in experiments]


def _brought(session: Session, row: ExperimentRow, question: Question) -> Brought:
    if not is_done(row.state, row.stop):
        return Brought(experiment=row)
    query = (
        select(DecisionRow)
        .where(DecisionRow.experiment == row.id, DecisionRow.kind == DecisionKind.AUTO.value)
        .order_by(DecisionRow.seq.desc())
        .limit(1)
    )
    decision = session.scalars(query).first()
    if decision is None:
        said = (row.outcome or {}).get("code", "it ended")
        return Brought(experiment=row, unit=NoUnit(name=row.id, why=f"it was not judged: {said}"))
    run = session.get(RunRow, decision.run) if decision.run else None
    order = None if run is None or run.order is None else Order.model_validate(run.order)
    verdict = Verdict(decision.verdict) if decision.verdict else None
    recorded = parse_decision(decision.document)
    unit = unit_of_decision(decision.id, recorded, None, question, order=order)
    if isinstance(unit, Unit):
        unit = replace(unit, host=run.host if run is not None else None)
        if verdict not in COUNTED:
            unit = NoUnit(name=decision.id, why=f"its verdict is {verdict}")
    return Brought(experiment=row, decision=decision.id, verdict=verdict, unit=unit)
