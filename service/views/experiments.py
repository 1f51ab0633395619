"""Experiments as REST shows them: with phases, conditions, forecast and next steps."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from gonogo.contract.api import CampaignPlace, ExperimentView, Forecast, PhaseView
from gonogo.contract.decision import Cause, Condition, Verdict
from gonogo.contract.lifecycle import ExperimentState, RunState
from gonogo.evidence_round import where_it_stood
from gonogo.judge.follow_up.summary import phases_never_ran, summarise
from gonogo.planning.programs import worker_settings
from service.db.columns import StopKind
from service.db.schema import ConditionRow, ExperimentRow, PhaseRow, RunRow
from service.db.store import Session
from service.experiments.advance import resolved_of
from service.experiments.checkpoints import host_of, host_of_origin
from service.experiments.forecasts import claimed_s, load_forecast
from service.experiments.state import (
    GOING_ON,
    NO_CHECKPOINT,
    Decided,
    expires_at,
    is_owed,
    last_judged,
    load_decided,
    open_approval,
    standing_cause,
)
from service.experiments.submission import Created
from service.experiments.workers import hosts_of, load_waits
from service.queries.experiments import (
    load_condition_rows,
    load_phases,
    load_seen_runs,
)
from service.queries.runs import load_findings
from service.text import instant
from service.views.next_steps import Place, next_steps
from service.views.rows import view_of


def view_experiment(session: Session, row: ExperimentRow) -> ExperimentView:
    """Return an experiment with its phases, conditions and forecast."""
    return view_experiments(session, [row], whole=True)[0]


def view_new(session: Session, new: Created) -> ExperimentView:
    """Return an experiment as it has just been created, without asking the database again."""
    return _view_one(session, new.experiment, new.phases, [new.run], [], Decided(), whole=True)


def view_experiments(
    session: Session, rows: Iterable[ExperimentRow], *, whole: bool = False
) -> list[ExperimentView]:
    """Return experiments; `whole`: with a forecast of each, else of those that a worker is at."""
    rows = list(rows)
    ids = [row.id for row in rows]
    phases = load_phases(session, ids)
    runs = load_seen_runs(session, ids)
    conditions = load_condition_rows(session, ids)
    decided = load_decided(session, ids)
    waits = load_waits(session, chain.from_iterable(runs.values()))
    return [
        _view_one(
            session,
            row,
            phases.get(row.id, []),
            runs.get(row.id, []),
            conditions.get(row.id, []),
            decided[row.id],
            whole=whole,
            waits=waits,
        )
        for row in rows
    ]


def _view_one(
    session: Session,
    row: ExperimentRow,
    phases: Sequence[PhaseRow],
    runs: list[RunRow],
    conditions: list[ConditionRow],
    decided: Decided,
    *,
    whole: bool,
    waits: Mapping[str, str] | None = None,
) -> ExperimentView:
    over = row.state == ExperimentState.FINISHED
    shown = [_view_phase(phase, runs) for phase in phases]
    taken = {run.phase for run in runs if run.claimed_at is not None}
    never_ran = phases_never_ran(shown, taken) if over else []
    asked = open_approval(row)
    hanging = [*map(view_condition, conditions), *([asked] if asked else [])]
    passed = row.verdict is Verdict.GO and not decided.overrides
    cause = None if passed else standing_cause(decided, runs, hanging)
    cancelled = row.stop is not None and row.stop.kind is StopKind.CANCEL
    plan = resolved_of(row).parsed() if whole and row.needs is not None and not over else None
    return view_of(
        ExperimentView,
        row,
        campaign=place_in_campaign(row),
        phases=shown,
        conditions=hanging,
        forecast=_forecast(session, row, phases, runs, whole=whole),
        submitted_by=row.created_by,
        waiting_for=_waiting_for(row, runs, waits or {}),
        waiting_until=instant(expires_at(row)),
        overrides=decided.overrides,
        never_ran=never_ran,
        cause=cause,
        summary=summarise(
            row.verdict,
            shown,
            decided.overrides,
            finished=over,
            never_ran=never_ran,
            origin=row.origin,
            cancelled_by=row.stop.told() if row.stop is not None and cancelled else None,
        ),
        next=next_steps(
            Place(
                row=row,
                phases=phases,
                runs=runs,
                conditions=hanging,
                cause=cause,
                last_decision=decided.last,
                settings=worker_settings(plan) if plan is not None else {},
                stack=_stack(session, runs, cause) if whole and over else None,
                by_hand={override.phase for override in decided.overrides},
            )
        ),
    )


def _stack(session: Session, runs: list[RunRow], cause: Cause | None) -> str | None:
    run = last_judged(runs)
    if run is None or cause is None:
        return None
    code = None if run.outcome is None else run.outcome.code
    return where_it_stood(load_findings(session, run.id), cause.rank, code)


def place_in_campaign(row: ExperimentRow) -> CampaignPlace | None:
    """Return which run of a campaign an experiment is, if any."""
    if row.campaign is None or row.variant is None or row.repeat is None:
        return None
    return CampaignPlace(campaign=row.campaign, variant=row.variant, repeat=row.repeat)


def _view_phase(phase: PhaseRow, runs: Iterable[RunRow]) -> PhaseView:
    return view_of(PhaseView, phase, runs=[run.id for run in runs if run.phase == phase.name])


def view_condition(row: ConditionRow) -> Condition:
    """Return a condition in its present state."""
    return Condition.model_validate({**row.document, "state": row.state})


_OVER = Forecast(basis="nothing is left")
_UNASKED = Forecast(basis="shown for one experiment only")


def _forecast(
    session: Session,
    row: ExperimentRow,
    phases: Sequence[PhaseRow],
    runs: list[RunRow],
    *,
    whole: bool,
) -> Forecast:
    if row.state == ExperimentState.FINISHED:
        return _OVER.model_copy(update={"claimed_seconds": claimed_s(row)})
    is_active = any(run.state not in (RunState.QUEUED, RunState.ENDED) for run in runs)
    if not (whole or is_active):
        return _UNASKED
    return load_forecast(session, row, phases, runs)


def _where(row: ExperimentRow, queued: RunRow, runs: list[RunRow]) -> str:
    if queued.resume_from is None:
        return NO_CHECKPOINT if queued.reason in GOING_ON else ""
    host = host_of(queued.resume_from, runs) or host_of_origin(row)
    step = queued.resume_from.step
    return "" if host is None else f", which resumes from step {step} on {host.name}"


def _devices_of(queued: RunRow) -> str:
    if not queued.gpus:
        return "free devices"
    of = f" of profile {queued.profile}" if queued.profile else ""
    return f"{queued.gpus} free GPU{'s' * (queued.gpus != 1)}{of}"


def _waiting_for(row: ExperimentRow, runs: list[RunRow], waits: Mapping[str, str]) -> str | None:
    if row.awaiting:
        return row.awaiting.text
    queued = next((run for run in runs if run.state == RunState.QUEUED), None)
    if queued is not None:
        who = f"a worker with {_devices_of(queued)}"
        if row.needs is not None:
            who = f"a worker that has {row.needs}, and with free devices"
        return f"{who}, for phase {queued.phase}{_where(row, queued, runs)}"
    lost = next((run for run in runs if run.lost), None)
    if lost is not None and is_owed(lost):
        return (
            f"the rest of run {lost.id}, which ended on {hosts_of(lost)} (or a takeover: it is "
            "judged by what is here)"
        )
    if lost is not None:
        scheduler = f"; {waits[lost.id]}" if lost.id in waits else ""
        return f"a sign of life of run {lost.id} on {hosts_of(lost)} (or a takeover){scheduler}"
    waiting = next((run for run in runs if run.id in waits), None)
    if waiting is not None:
        return f"{waits[waiting.id]}, for phase {waiting.phase}"
    return None
