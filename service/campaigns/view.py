"""Campaigns as the API shows them."""

from collections.abc import Iterator, Sequence

from gonogo.contract.api import CampaignState, CampaignView, NextStep
from gonogo.contract.campaign import CampaignSpec
from gonogo.contract.comparison import Comparison
from gonogo.contract.lifecycle import ExperimentState
from gonogo.judge.compare.campaign import planned_runs, question_of
from gonogo.judge.compare.unit import Unit
from service.campaigns.members import Brought, load_brought
from service.db.schema import CampaignRow
from service.db.store import Session
from service.instants import instant, stamp
from service.queries.experiments import load_experiments_of
from service.queries.workers import load_workers
from service.views.experiments import view_experiment

MOST_FOLLOWED = 3
"""Active runs that are offered to be followed, at most."""


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
        next=_next(row, spec, brought),
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
    """Return what the active run waits for; a queued run may wait for the host of the others."""
    going = next((one.experiment for one in brought if one.unit is None), None)
    if going is None:
        return None
    waits = view_experiment(session, going).waiting_for
    up = {row.host for row in load_workers(session)}
    hosts = [one.unit.host for one in brought if isinstance(one.unit, Unit) and one.unit.host in up]
    if waits is None or going.awaiting or not hosts:
        return waits
    return f"{waits}, on host {hosts[-1]} as long as a worker of it lives"


def _text(row: CampaignRow, comparison: Comparison | None, done: int, planned: int) -> str:
    if comparison is not None:
        return comparison.text
    if row.stop is not None:
        reason = f": {row.stop.reason}" if row.stop.reason else ""
        return f"cancelled by {row.stop.actor} after {done} run{'s' * (done != 1)}{reason}"
    return f"{done} of {planned} runs are made; nothing is compared before they are"


def _next(row: CampaignRow, spec: CampaignSpec, brought: Sequence[Brought]) -> list[NextStep]:
    """Return the next commands: to follow an active campaign, or to compare an ended one again."""
    halted = [
        one.experiment.id
        for one in brought
        if one.experiment.state == ExperimentState.AWAITING_DECISION and one.unit is None
    ]
    if row.state == CampaignState.RUNNING:
        found = [
            NextStep(command=f"gonogo resume {name}", text="let the run that was halted go on")
            for name in halted
        ]
        going = [one.experiment.id for one in brought if one.unit is None and not halted]
        found += [
            NextStep(command=f"gonogo watch {name}", text="follow the run that goes on")
            for name in going[:MOST_FOLLOWED]
        ]
        return [
            *found,
            NextStep(command=f"gonogo campaign cancel {row.id}", text="stop it for good"),
        ]
    told = _compared(row.comparison)
    if not told:
        return []
    command = " ".join(f"{name}={','.join(rows)}" for name, rows in told.items())
    options = " ".join(_options(spec))
    return [
        NextStep(
            command=f"gonogo compare {command} {options}",
            text="compare the recorded decisions again",
        )
    ]


def _compared(comparison: Comparison | None) -> dict[str, list[str]]:
    """Return variant → decisions of its runs that count; nothing where some were not compared.

    Of those not even all counted, or they were made on several hosts, or nothing that was ordered
    differed: what decisions alone come to might be a winner all the same.
    """
    if comparison is None or any(one.basis is None for one in comparison.variants[1:]):
        return {}
    return {one.name: [run.name for run in one.runs] for one in comparison.variants}


def _options(spec: CampaignSpec) -> Iterator[str]:
    """Yield how the same is asked on the command line."""
    yield f"--metric {spec.metric} --warmup {spec.warmup_steps} --margin {spec.margin:g}"
    yield f"--confidence {question_of(spec).confidence:.10g}"
    if spec.aggregate is not None:
        yield f"--aggregate {spec.aggregate}"
    if spec.better is not None:
        yield f"--{spec.better}"
    if spec.per_device:
        yield "--per-device"
    yield from (f"--shown-by {name}" for name in spec.shown_by)
    yield from (f"--alike-in {name}={share:g}" for name, share in spec.alike_in.items())
