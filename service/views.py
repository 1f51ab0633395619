"""How do rows look from outside? As the contract's API models."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.api import (
    AlertView,
    CampaignPlace,
    DeliveryView,
    EventView,
    ExperimentView,
    Forecast,
    OriginView,
    PhaseView,
    RunView,
    WorkerView,
)
from gonogo.contract.decision import Condition, Verdict
from gonogo.contract.finding import Finding
from gonogo.contract.heartbeat import Identity
from gonogo.contract.lifecycle import ExperimentState, RunState
from gonogo.contract.order import ResumePoint
from gonogo.contract.outcome import Outcome
from gonogo.judge.course.summary import phases_never_ran, summarise
from service.db.schema import (
    AlertRow,
    ConditionRow,
    DecisionRow,
    DeliveryRow,
    EventRow,
    ExperimentRow,
    FindingRow,
    PhaseRow,
    ProgressRow,
    RunRow,
    WorkerRow,
)
from service.forecasts import load_forecast
from service.takers import SILENT_S, load_needs
from service.told.awaited import expires_at, open_approval
from service.told.decided import Decided, load_decided, standing_cause
from service.told.next_steps import next_steps, place_of


def instant(seconds: float | None) -> str | None:
    """Return Unix seconds as RFC 3339 in UTC."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def stamp(seconds: float) -> str:
    """Return Unix seconds that are there as RFC 3339 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


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
    if lost is not None:
        return f"a sign of life of run {lost.id} on host {lost.host} (or a takeover)"
    return None


def view_run(row: RunRow, progress: ProgressRow) -> RunView:
    """Return a run with what telemetry said last."""
    identity = row.model or progress.identity
    steps = int((row.order or {}).get("steps") or 0)
    return RunView(
        id=row.id,
        experiment=row.experiment,
        phase=row.phase,
        attempt=row.attempt,
        reason=row.reason,
        state=row.state,
        suspect=row.suspect,
        lost=row.lost,
        outcome=Outcome.model_validate(row.outcome) if row.outcome else None,
        verdict=row.verdict,
        worker=row.worker,
        step=progress.step,
        steps=steps,
        init_from=(row.order or {}).get("init_from"),
        resume_from=ResumePoint.model_validate(row.resume_from) if row.resume_from else None,
        loss=float(progress.loss) if progress.loss is not None else None,
        toks_per_s=progress.toks_per_s,
        last_heartbeat_at=instant(progress.heartbeat_at),
        identity=Identity.model_validate(identity) if identity else None,
        dir=row.dir,
        host=row.host,
        created_at=stamp(row.created_at),
        started_at=instant(row.started_at),
        ended_at=instant(row.ended_at),
    )


def view_decision(row: DecisionRow) -> dict[str, Any]:
    """Return a decision's document as it was recorded, so that its digests hold anywhere."""
    found: dict[str, Any] = json.loads(row.document)
    return found


def view_finding(row: FindingRow) -> Finding:
    """Return a finding as it was recorded."""
    return Finding.model_validate_json(row.document)


def view_event(row: EventRow) -> EventView:
    """Return an event."""
    return EventView(
        id=row.id,
        experiment=row.experiment,
        seq=row.seq,
        cursor=row.cursor,
        type=row.type,
        run=row.run,
        phase=row.phase,
        actor=row.actor,
        at=stamp(row.at),
        data=row.data,
    )


def view_worker(row: WorkerRow, now: float) -> WorkerView:
    """Return a worker."""
    state = "silent" if now - row.seen_at > SILENT_S else "up"
    if state == "up" and row.draining:
        state = "draining"
    claim = row.claim
    return WorkerView(
        id=row.name,
        host=row.host,
        state=state,
        version=claim["version"],
        labels=claim["labels"],
        profiles=claim["profiles"],
        devices=claim["devices"],
        free=claim["free"],
        active=claim["active"],
        allow=claim.get("allow", []),
        allow_env=claim.get("allow_env", []),
        metrics_url=claim["metrics_url"],
        last_seen_at=stamp(row.seen_at),
    )


def view_alert(row: AlertRow, deliveries: list[DeliveryRow], url: str) -> AlertView:
    """Return an alert with the state of its deliveries."""
    states = {delivery.state for delivery in deliveries}
    state = "unsubscribed" if row.spread else "pending"
    if deliveries:
        state = next(name for name in ("pending", "failed", "delivered") if name in states)
    return AlertView(
        id=row.id,
        type=row.type,
        experiment=row.experiment,
        run=row.run,
        at=stamp(row.at),
        text=str(row.data.get("text", "")),
        data={**row.data, "url": alert_url(row, url)},
        state=state,
        deliveries=[
            DeliveryView(
                webhook=delivery.webhook,
                state=delivery.state,
                attempts=delivery.attempts,
                delivered_at=instant(delivery.delivered_at),
                error=delivery.error,
            )
            for delivery in deliveries
        ],
    )


def alert_url(row: AlertRow, url: str) -> str:
    """Return where a person reads about an alert."""
    return f"{url}/experiments/{row.experiment}" if row.experiment else url
