"""Submission of campaigns, and the next step of one, in a transaction that holds its lock.

`gonogo.judge.compare.campaign` decides what the step is. The experiments of a campaign are ordinary
ones.
"""

from typing import Any

from sqlalchemy import select

from gonogo.contract.api import (
    AlertType,
    CampaignPlace,
    CampaignState,
    CampaignSubmission,
    Submission,
)
from gonogo.contract.campaign import CampaignSpec
from gonogo.contract.errors import Conflict
from gonogo.contract.ids import Kind, new_id
from gonogo.contract.lifecycle import ExperimentState
from gonogo.judge.compare.campaign import Begin, End, next_step, question_of
from gonogo.planning.campaigns import (
    ResolvedCampaign,
    first_order,
    reseeded,
    resolve_campaign,
    unseen_changes,
)
from gonogo.planning.checks import warnings_of
from gonogo.planning.source import ResolvedPlan, bundled_plan
from service.campaigns.view import is_done, load_brought
from service.db.documents import Asked, StopKind
from service.db.schema import CampaignRow, ExperimentRow
from service.db.store import Session
from service.experiments.alert_text import with_next
from service.experiments.forecasts import check_labels
from service.experiments.lifecycle import Deed, lock_experiment, queue_alert, record_event
from service.experiments.submission import check_texts, create_experiment
from service.experiments.verbs import VERBS
from service.experiments.workers import load_warnings
from service.queries.experiments import load_campaign, load_experiments_of


def resolve(submission: CampaignSubmission) -> ResolvedCampaign:
    """Return the campaign that a submission freezes.

    Raises:
        Rejected: anything wrong with the plan, an override or a variant.
        NotFound: no such bundled plan or configuration.
    """
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


def build_dry_run(resolved: ResolvedCampaign, waits: list[str]) -> dict[str, Any]:
    """Return what would run: every variant's resolved plan and order.

    Args:
        waits: why its runs would wait.
    """
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
    unseen = unseen_changes(resolved)
    found: dict[str, None] = {} if unseen is None else {unseen: None}
    for plan in resolved.variants.values():
        found |= dict.fromkeys(load_warnings(session, plan.parsed(), now))
    return list(found)


def lock_campaign(deed: Deed, campaign: str) -> CampaignRow:
    """Return a campaign, locked until the transaction ends; before any of its experiments."""
    load_campaign(deed.session, campaign)
    query = select(CampaignRow).where(CampaignRow.id == campaign).with_for_update()
    return deed.session.scalars(query.execution_options(populate_existing=True)).one()


ENDED = AlertType.CAMPAIGN_ENDED


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
            _leave(deed, one.experiment.id)
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
    """Stop a campaign and its active runs; repeated it changes nothing.

    Raises:
        Conflict: it has finished.
    """
    row = lock_campaign(deed, campaign)
    if row.state == CampaignState.CANCELLED:
        return False
    if row.state != CampaignState.RUNNING:
        raise Conflict(f"{row.id} is {row.state}", state=row.state)
    row.stop = Asked(reason=reason, actor=deed.actor)
    for experiment in load_experiments_of(deed.session, row.id):
        one = lock_experiment(deed, experiment.id)
        if one.state != ExperimentState.FINISHED and not _is_cancelled(one):
            VERBS["cancel"](deed, one, reason, {})
    _end(deed, row, CampaignState.CANCELLED, f"cancelled by {deed.actor}")
    return True


def _is_cancelled(experiment: ExperimentRow) -> bool:
    return experiment.stop is not None and experiment.stop.kind is StopKind.CANCEL


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


def _leave(deed: Deed, experiment: str) -> None:
    """Let nobody be asked about a run that was compared as it is."""
    row = lock_experiment(deed, experiment)
    if row.state == ExperimentState.AWAITING_DECISION:
        VERBS["cancel"](deed, row, "its campaign asks nobody and goes on", {})


def _end(deed: Deed, row: CampaignRow, state: CampaignState, text: str) -> None:
    """End a campaign and alert, in the name of its last experiment."""
    row.state = state
    row.ended_at = deed.now
    deed.session.flush()
    experiments = load_experiments_of(deed.session, row.id)
    if not experiments:
        return
    last = lock_experiment(deed, experiments[-1].id)
    record_event(deed, last, ENDED.value, campaign=row.id, state=state.value, text=text)
    if state is CampaignState.FINISHED:
        alert = with_next(f"campaign {row.name}: {text}", f"campaign show {row.id}")
        queue_alert(deed, last, ENDED, alert)
