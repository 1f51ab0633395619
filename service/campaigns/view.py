"""What the experiments of a campaign contribute to its comparison, and how the API shows it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gonogo.contract.api import CampaignMember, CampaignState, CampaignView, NextStep
from gonogo.contract.campaign import CampaignSpec
from gonogo.contract.comparison import Comparison
from gonogo.contract.decision import Verdict
from gonogo.contract.lifecycle import ExperimentState
from gonogo.contract.order import Order
from gonogo.judge.compare.campaign import Member, planned_runs, question_of
from gonogo.judge.compare.question import Question
from gonogo.judge.compare.unit import NoUnit, Unit
from gonogo.judge.comparing import unit_of_decision
from gonogo.ledger.recorded import parse_decision
from service.db.documents import Stop
from service.db.schema import CampaignRow, DecisionRow, ExperimentRow, RunRow
from service.db.store import Session
from service.experiments.workers import ran_on
from service.instants import instant, stamp
from service.queries.experiments import Outline, load_experiments_of, load_last_automatic
from service.views.experiments import view_experiment

COUNTED = (Verdict.GO, Verdict.CONDITIONAL_GO)
"""Verdicts of runs that count: what fails its gate, or does not show it, wins nothing."""

MOST_FOLLOWED = 3
"""Active runs that are offered to be followed, at most."""


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
    name, verdict = decision.id, decision.verdict
    unit = _unit_of(session, name, question)
    if isinstance(unit, Unit) and verdict not in COUNTED:
        unit = NoUnit(name=name, why=f"its verdict is {verdict}")
    return Brought(experiment=row, decision=name, verdict=verdict, unit=unit)


def _unit_of(session: Session, decision: str, question: Question) -> Unit | NoUnit:
    row = session.get_one(DecisionRow, decision)
    run = session.get(RunRow, row.run) if row.run else None
    order = None if run is None or run.order is None else Order.model_validate(run.order)
    recorded = parse_decision(row.document)
    unit = unit_of_decision(row.id, recorded, None, question, order=order)
    if isinstance(unit, Unit):
        return replace(unit, host=None if run is None else ran_on(run))
    return unit


def view_campaign(session: Session, row: CampaignRow) -> CampaignView:
    """Return a campaign with its runs."""
    spec = CampaignSpec.model_validate(row.spec)
    brought = load_brought(session, load_experiments_of(session, row.id), question_of(spec))
    done = [one for one in brought if one.unit is not None]
    running = row.state == CampaignState.RUNNING
    planned = planned_runs(spec, [one.member() for one in brought]) if running else len(brought)
    return CampaignView(
        id=row.id,
        name=row.name,
        plan=row.plan,
        state=row.state,
        spec=spec,
        labels=row.labels,
        members=[one.view() for one in brought],
        done=len(done),
        planned=planned,
        eta_s=_eta_s(done, planned) if running and not spec.at_once else None,
        comparison=row.comparison,
        waiting_for=_waiting_for(session, brought) if running else None,
        text=_text(row, row.comparison, len(done), planned),
        next=_next(row, brought),
        submitted_by=row.created_by,
        created_at=stamp(row.created_at),
        ended_at=instant(row.ended_at),
    )


def _eta_s(done: Sequence[Brought], planned: int) -> float | None:
    """Return the seconds that the rest takes, each run as long as those before, waits included."""
    rows = [one.experiment for one in done]
    times = [row.ended_at - row.created_at for row in rows if row.ended_at is not None]
    return (planned - len(done)) * sum(times) / len(times) if times else None


def _waiting_for(session: Session, brought: Sequence[Brought]) -> str | None:
    going = next((one.experiment for one in brought if one.unit is None), None)
    return None if going is None else view_experiment(session, going).waiting_for


def _text(row: CampaignRow, comparison: Comparison | None, done: int, planned: int) -> str:
    if comparison is not None:
        return comparison.text
    if row.stop is not None:
        reason = f": {row.stop.reason}" if row.stop.reason else ""
        return f"cancelled by {row.stop.actor} after {done} run{'s' * (done != 1)}{reason}"
    return f"{done} of {planned} runs are made; nothing is compared before they are"


def _next(row: CampaignRow, brought: Sequence[Brought]) -> list[NextStep]:
    if row.state != CampaignState.RUNNING:
        return []
    active = [one.experiment for one in brought if one.unit is None]
    halted = [one.id for one in active if one.state == ExperimentState.AWAITING_DECISION]
    going = [] if halted else [one.id for one in active[:MOST_FOLLOWED]]
    return [
        *(
            NextStep(command=f"gonogo resume {name}", text="let the run that was halted go on")
            for name in halted
        ),
        *(
            NextStep(command=f"gonogo watch {name}", text="follow the run that goes on")
            for name in going
        ),
        NextStep(command=f"gonogo campaign cancel {row.id}", text="stop it for good"),
    ]
