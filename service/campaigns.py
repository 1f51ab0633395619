"""Campaigns: variants of one phase, run in turns as ordinary experiments, and compared.

`gonogo.judge.compare.campaign` decides what the next step is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import select

from gonogo.contract.api import (
    AlertType,
    CampaignMember,
    CampaignPlace,
    CampaignState,
    CampaignSubmission,
    CampaignView,
    NextStep,
    Submission,
)
from gonogo.contract.campaign import CampaignSpec, Comparison
from gonogo.contract.decision import PASSING, Verdict
from gonogo.contract.errors import Conflict
from gonogo.contract.lifecycle import ExperimentState
from gonogo.contract.order import Order
from gonogo.contract.wire import Kind, new_id
from gonogo.judge.compare.campaign import Begin, End, Member, next_step, planned_runs, question_of
from gonogo.judge.compare.unit import NoUnit, Question, Unit
from gonogo.judge.directory import unit_of_decision
from gonogo.ledger.recorded import parse_decision
from gonogo.planning.campaigns import (
    ResolvedCampaign,
    first_order,
    reseeded,
    resolve_campaign,
)
from gonogo.planning.resolve import warnings_of
from gonogo.planning.source import ResolvedPlan, bundled_plan
from service.db.columns import Asked, Stop, StopKind
from service.db.schema import CampaignRow, DecisionRow, ExperimentRow, RunRow
from service.db.store import Session
from service.experiments.lifecycle import (
    Deed,
    lock_experiment,
    queue_alert,
    record_event,
    with_next,
)
from service.experiments.state import check_labels
from service.experiments.submission import check_texts, create_experiment
from service.experiments.verbs import VERBS
from service.experiments.workers import load_warnings, ran_on
from service.queries.experiments import (
    load_campaign,
    load_experiments_of,
    load_last_automatic,
)
from service.views.experiments import view_experiment
from service.views.rows import view_of


def resolve(submission: CampaignSubmission) -> ResolvedCampaign:
    """Return the campaign that a submission freezes."""
    check_texts(submission.name, submission.labels)
    check_labels(submission.labels)
    plan = submission.plan
    data = bundled_plan(plan) if isinstance(plan, str) else plan
    return resolve_campaign(data, submission.set, submission.repeats)


def create_campaign(
    deed: Deed, submission: CampaignSubmission, resolved: ResolvedCampaign
) -> CampaignRow:
    """Store a campaign; the conductor begins its first run."""
    row = CampaignRow(
        id=new_id(Kind.CAMPAIGN),
        name=submission.name or resolved.plan,
        plan=resolved.plan,
        spec=resolved.spec.model_dump(mode="json", exclude_unset=True),
        variants={name: plan.wire() for name, plan in resolved.variants.items()},
        labels=dict(submission.labels),
        state=CampaignState.RUNNING,
        created_by=deed.actor,
        created_at=deed.now,
    )
    deed.session.add(row)
    deed.session.flush()
    return row


def preview_campaign(resolved: ResolvedCampaign, waits: list[str]) -> dict[str, Any]:
    """Return what would run: every variant's resolved plan and order."""
    told = [text for plan in resolved.variants.values() for text in warnings_of(plan.parsed())]
    return {
        "dry_run": True,
        "plan": resolved.plan,
        "spec": resolved.spec.model_dump(mode="json"),
        "runs": len(resolved.variants) * resolved.spec.repeats,
        "most_runs": len(resolved.variants) * resolved.spec.bound,
        "warnings": list(dict.fromkeys([*told, *waits])),
        "orders": {name: first_order(plan).document() for name, plan in resolved.variants.items()},
    }


def warnings_for(session: Session, resolved: ResolvedCampaign, now: float) -> list[str]:
    """Return why its runs will wait, as the workers are now, or come to nothing."""
    found: dict[str, None] = {}
    for plan in resolved.variants.values():
        found |= dict.fromkeys(load_warnings(session, plan.parsed(), now))
    return list(found)


def lock_campaign(deed: Deed, campaign: str) -> CampaignRow:
    """Return a campaign, locked until the transaction ends; before any of its experiments."""
    load_campaign(deed.session, campaign)
    query = select(CampaignRow).where(CampaignRow.id == campaign).with_for_update()
    return deed.session.scalars(query.execution_options(populate_existing=True)).one()


def load_running(session: Session) -> list[str]:
    """Return the active campaigns whose experiments have ended."""
    query = (
        select(CampaignRow.id, ExperimentRow.state, ExperimentRow.stop)
        .outerjoin(ExperimentRow, ExperimentRow.campaign == CampaignRow.id)
        .where(CampaignRow.state == CampaignState.RUNNING.value)
        .order_by(CampaignRow.id)
    )
    done: dict[str, bool] = {}
    for campaign, state, stop in session.execute(query):  # without the plans, which are large
        done[campaign] = done.get(campaign, True) and (state is None or is_done(state, stop))
    return [campaign for campaign, every in done.items() if every]


def advance(deed: Deed, campaign: str) -> None:
    """Let a campaign take its next step, if there is one."""
    row = lock_campaign(deed, campaign)
    if row.state != CampaignState.RUNNING:
        return
    spec = CampaignSpec.model_validate(row.spec)
    experiments = load_experiments_of(deed.session, row.id)
    brought = load_brought(deed.session, experiments, question_of(spec))
    step = next_step(spec, [one.member() for one in brought])
    for one in brought:
        if one.unit is not None and one.experiment.state == ExperimentState.AWAITING_DECISION:
            left = lock_experiment(deed, one.experiment.id)
            if left.state == ExperimentState.AWAITING_DECISION:
                VERBS["cancel"](deed, left, "its campaign asks nobody and continues", {})
    if isinstance(step, Begin):
        for variant, repeat in [
            (step.variant, step.repeat),
            *(step.beside if spec.at_once else ()),
        ]:
            _begin(deed, row, variant, repeat)
    elif isinstance(step, End):
        row.comparison = step.comparison
        _end(deed, row, CampaignState.FINISHED, step.comparison.text)


def cancel(deed: Deed, campaign: str, reason: str) -> bool:
    """Stop a campaign and its active runs; repeated it changes nothing."""
    row = lock_campaign(deed, campaign)
    if row.state == CampaignState.CANCELLED:
        return False
    if row.state != CampaignState.RUNNING:
        raise Conflict(f"{row.id} is {row.state}", state=row.state)
    row.stop = Asked(reason=reason, actor=deed.actor)
    for experiment in load_experiments_of(deed.session, row.id):
        one = lock_experiment(deed, experiment.id)
        cancelled = one.stop is not None and one.stop.kind is StopKind.CANCEL
        if one.state != ExperimentState.FINISHED and not cancelled:
            VERBS["cancel"](deed, one, reason, {})
    _end(deed, row, CampaignState.CANCELLED, f"cancelled by {deed.actor}")
    return True


def _begin(deed: Deed, row: CampaignRow, variant: str, repeat: int) -> None:
    """Begin one run, in the name of who submitted the campaign."""
    plan = reseeded(ResolvedPlan.model_validate(row.variants[variant]), repeat)
    submission = Submission(
        plan=row.plan,
        name=f"{row.name[:120]} {variant} {repeat}",
        labels={**row.labels, "campaign": row.name, "variant": variant},
    )
    place = CampaignPlace(campaign=row.id, variant=variant, repeat=repeat)
    theirs = Deed(session=deed.session, now=deed.now, actor=row.created_by)
    create_experiment(theirs, submission, plan, place=place)


def _end(deed: Deed, row: CampaignRow, state: CampaignState, text: str) -> None:
    """End a campaign and alert, in the name of its last experiment."""
    row.state = state
    row.ended_at = deed.now
    deed.session.flush()
    experiments = load_experiments_of(deed.session, row.id)
    if not experiments:
        return
    last = lock_experiment(deed, experiments[-1].id)
    record_event(
        deed, last, AlertType.CAMPAIGN_ENDED.value, campaign=row.id, state=state.value, text=text
    )
    if state is CampaignState.FINISHED:
        alert = with_next(f"campaign {row.name}: {text}", f"campaign show {row.id}")
        queue_alert(deed, last, AlertType.CAMPAIGN_ENDED, alert)


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
        return Member(variant=row.variant or "", repeat=row.repeat or 0, brought=self.unit)

    def view(self) -> CampaignMember:
        """Return it as the API shows it."""
        row, unit = self.experiment, self.unit
        return view_of(
            CampaignMember,
            row,
            experiment=row.id,
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
    session: Session, row: ExperimentRow, decision: DecisionRow | None, question: Question
) -> Brought:
    if not is_done(row.state, row.stop):
        return Brought(experiment=row)
    if decision is None:
        said = row.outcome.code if row.outcome is not None else "it ended"
        return Brought(experiment=row, unit=NoUnit(name=row.id, why=f"it was not judged: {said}"))
    name, verdict = decision.id, decision.verdict
    unit = _unit_of(session, name, question)
    if isinstance(unit, Unit) and verdict not in PASSING:
        unit = NoUnit(name=name, why=f"its verdict is {verdict}")
    return Brought(experiment=row, decision=name, verdict=verdict, unit=unit)


def _unit_of(session: Session, decision: str, question: Question) -> Unit | NoUnit:
    row = session.get_one(DecisionRow, decision)
    run = session.get(RunRow, row.run) if row.run else None
    order = None if run is None or run.order is None else Order.model_validate(run.order)
    recorded = parse_decision(row.document)
    unit = unit_of_decision(row.id, recorded, question, order=order)
    if isinstance(unit, Unit):
        return replace(unit, host=None if run is None else ran_on(run))
    return unit


def view_campaign(session: Session, row: CampaignRow) -> CampaignView:
    """Return a campaign with its runs."""
    spec = CampaignSpec.model_validate(row.spec)
    brought = load_brought(session, load_experiments_of(session, row.id), question_of(spec))
    done = [one for one in brought if one.unit is not None]
    running = row.state == CampaignState.RUNNING
    going = next((one.experiment for one in brought if one.unit is None), None)
    planned = planned_runs(spec, [one.member() for one in brought]) if running else len(brought)
    return view_of(
        CampaignView,
        row,
        spec=spec,
        members=[one.view() for one in brought],
        done=len(done),
        planned=planned,
        eta_s=_eta_s(done, planned) if running and not spec.at_once else None,
        waiting_for=view_experiment(session, going).waiting_for if running and going else None,
        text=_text(row, row.comparison, len(done), planned),
        next=_next(row, brought),
        submitted_by=row.created_by,
    )


def _eta_s(done: Sequence[Brought], planned: int) -> float | None:
    """Return the seconds that the rest takes, each run as long as those before, waits included."""
    rows = [one.experiment for one in done]
    times = [row.ended_at - row.created_at for row in rows if row.ended_at is not None]
    return (planned - len(done)) * sum(times) / len(times) if times else None


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
    going = [] if halted else [one.id for one in active[:3]]
    return [
        *(
            NextStep(command=f"gonogo resume {name}", text="let the halted run continue")
            for name in halted
        ),
        *(NextStep(command=f"gonogo watch {name}", text="follow the active run") for name in going),
        NextStep(command=f"gonogo campaign cancel {row.id}", text="stop it for good"),
    ]
