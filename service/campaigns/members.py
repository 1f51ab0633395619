"""What the experiments of a campaign contribute to its comparison."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gonogo.contract.api import CampaignMember
from gonogo.contract.decision import Verdict
from gonogo.contract.lifecycle import ExperimentState
from gonogo.contract.order import Order
from gonogo.judge.compare.campaign import Member
from gonogo.judge.compare.question import Question
from gonogo.judge.compare.unit import NoUnit, Unit
from gonogo.judge.comparing import unit_of_decision
from gonogo.ledger.recorded import parse_decision
from service.db.documents import Stop
from service.db.schema import DecisionRow, ExperimentRow, RunRow
from service.db.store import Session
from service.experiments.workers import ran_on
from service.queries.decisions import Outline, load_last_automatic

COUNTED = (Verdict.GO, Verdict.CONDITIONAL_GO)
"""Verdicts of runs that count: what fails its gate, or does not show it, wins nothing."""

_UNITS: dict[tuple[str, str, str], Unit | NoUnit] = {}
"""Cache: id and hash of a decision, and the question → what it contributes; it never changes."""
_MOST_UNITS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """One experiment, the decision that is compared, and what it contributes."""

    experiment: ExperimentRow
    decision: str | None = None
    verdict: Verdict | None = None
    unit: Unit | NoUnit | None = None
    """None: it is active, or a person stopped it and may resume it."""

    def member(self) -> Member:
        """Return it as a member, for the next step of the campaign."""
        row = self.experiment
        return Member(
            variant=row.variant or "",
            repeat=row.repeat or 0,
            brought=self.unit,
        )

    def view(self) -> CampaignMember:
        """Return it as the API shows it."""
        row, unit = self.experiment, self.unit
        return CampaignMember(
            experiment=row.id,
            variant=row.variant or "",
            repeat=row.repeat or 0,
            state=row.state,
            verdict=self.verdict,
            decision=self.decision,
            value=unit.value if isinstance(unit, Unit) else None,
            why=unit.why if isinstance(unit, NoUnit) else None,
        )


def is_done(state: ExperimentState, stop: Stop | None) -> bool:
    """Say whether an experiment is complete; one that was halted may be resumed."""
    if state == ExperimentState.AWAITING_DECISION:
        return stop is None
    return state == ExperimentState.FINISHED


def load_brought(
    session: Session, experiments: Sequence[ExperimentRow], question: Question
) -> list[Brought]:
    """Return what each experiment contributes, in the order of their begin."""
    done = [row.id for row in experiments if is_done(row.state, row.stop)]
    judged = load_last_automatic(session, done)
    return [_brought(session, row, judged.get(row.id), question) for row in experiments]


def _brought(
    session: Session, row: ExperimentRow, decision: Outline | None, question: Question
) -> Brought:
    if not is_done(row.state, row.stop):
        return Brought(experiment=row)
    if decision is None:
        said = row.outcome.code if row.outcome is not None else "it ended"
        return Brought(experiment=row, unit=NoUnit(name=row.id, why=f"it was not judged: {said}"))
    name = decision.id
    key = (name, decision.hash, repr(question))
    unit = _UNITS.get(key)
    if unit is None:
        if len(_UNITS) >= _MOST_UNITS:
            _UNITS.clear()
        unit = _UNITS[key] = _unit_of(session, name, question)
    verdict = decision.verdict
    if isinstance(unit, Unit) and verdict not in COUNTED:
        unit = NoUnit(name=name, why=f"its verdict is {verdict}")
    return Brought(experiment=row, decision=name, verdict=verdict, unit=unit)


def _unit_of(session: Session, decision: str, question: Question) -> Unit | NoUnit:
    """Return what a recorded decision contributes."""
    row = session.get_one(DecisionRow, decision)
    run = session.get(RunRow, row.run) if row.run else None
    order = None if run is None or run.order is None else Order.model_validate(run.order)
    recorded = parse_decision(row.document)
    unit = unit_of_decision(row.id, recorded, None, question, order=order)
    if isinstance(unit, Unit):
        return replace(unit, host=None if run is None else ran_on(run))
    return unit
