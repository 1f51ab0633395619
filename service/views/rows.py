"""Runs, decisions, events, alerts, workers and spent time as REST shows them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from gonogo.contract.api import (
    AlertView,
    DeliveryState,
    DeliveryView,
    RunView,
    WorkerState,
    WorkerView,
)
from gonogo.contract.goodput import ExperimentGoodput, goodput_of
from gonogo.contract.heartbeat import Identity
from gonogo.contract.outcome import OutcomeCode
from gonogo.goodput.account import RunTimes, Seconds, account_experiment, account_run
from service.db.schema import (
    AlertRow,
    DecisionRow,
    DeliveryRow,
    ExperimentRow,
    PhaseRow,
    RunRow,
    WorkerRow,
)
from service.db.store import Session
from service.evidence.series import load_account
from service.experiments.workers import is_heard, ran_on
from service.queries.runs import load_halts, load_progress, load_timed_runs, load_waited
from service.text import instant, stamp

_View = TypeVar("_View", bound=BaseModel)


def view_of(kind: type[_View], row: object, /, **more: Any) -> _View:
    """Return a view: `more`, and the attributes of a row that bear the names of its fields.

    Moments, Unix seconds in a row, are shown as RFC 3339.
    """
    for name in kind.model_fields:
        if name not in more and hasattr(row, name):
            value = getattr(row, name)
            more[name] = instant(value) if name == "at" or name.endswith("_at") else value
    return kind(**more)


def load_run_view(session: Session, row: RunRow) -> RunView:
    """Return a run with what telemetry reported last; without an order, the steps of its phase."""
    progress, order = load_progress(session, row.id), row.order or {}
    identity = row.model or progress.identity
    steps = int(order.get("steps") or 0)
    return view_of(
        RunView,
        row,
        step=progress.step,
        steps=steps or session.get_one(PhaseRow, (row.experiment, row.phase)).steps,
        init_from=order.get("init_from"),
        loss=float(progress.loss) if progress.loss is not None else None,
        toks_per_s=progress.toks_per_s,
        last_heartbeat_at=instant(progress.heartbeat_at),
        identity=Identity.model_validate(identity) if identity else None,
        host=ran_on(row),
    )


def view_decision(row: DecisionRow) -> dict[str, Any]:
    """Return a decision's document as it was recorded, so that its digests hold anywhere."""
    found: dict[str, Any] = json.loads(row.document)
    return found


def view_worker(row: WorkerRow, now: float) -> WorkerView:
    """Return a worker."""
    state = WorkerState.UP if is_heard(row, now) else WorkerState.SILENT
    if state is WorkerState.UP and row.draining:
        state = WorkerState.DRAINING
    seen_at = stamp(row.seen_at)
    return view_of(WorkerView, row.claim, id=row.name, state=state, last_seen_at=seen_at)


def view_alert(row: AlertRow, deliveries: list[DeliveryRow], url: str) -> AlertView:
    """Return an alert with the state of its deliveries."""
    states = {delivery.state for delivery in deliveries}
    state = DeliveryState.UNSUBSCRIBED if row.spread else DeliveryState.PENDING
    if deliveries:
        worst = (DeliveryState.PENDING, DeliveryState.FAILED, DeliveryState.DELIVERED)
        state = next(name for name in worst if name in states)
    return view_of(
        AlertView,
        row,
        text=str(row.data.get("text", "")),
        data={**row.data, "url": alert_url(row, url)},
        state=state,
        deliveries=[view_of(DeliveryView, delivery) for delivery in deliveries],
    )


def alert_url(row: AlertRow, url: str) -> str:
    """Return where a person reads about an alert."""
    return f"{url}/experiments/{row.experiment}" if row.experiment else url


_UNSEEN = frozenset(
    {
        OutcomeCode.KEEPER_LOST,
        OutcomeCode.WORKER_LOST,
        OutcomeCode.NODE_LOST,
        OutcomeCode.ISOLATED,
        OutcomeCode.SUPERSEDED,
    }
)
"""Ends after which nobody can say what the run did since its last line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAccount:
    """A run with its seconds."""

    row: RunRow
    opened_at: float
    seconds: Seconds

    def ended_at(self, now: float) -> float:
        """Return when it ended, or now; Unix seconds, never before it was opened."""
        ended_at = now if self.row.ended_at is None else self.row.ended_at
        return max(self.opened_at, ended_at)


def load_accounts(session: Session, experiment: str, now: float) -> list[RunAccount]:
    """Return the accounts of an experiment's runs, oldest first; `now` in Unix seconds."""
    runs = load_timed_runs(session, experiment)
    found = _load_found(session, runs)
    waited = load_waited(session, [run.id for run in runs])
    accounts: list[RunAccount] = []
    before = 0.0
    for run in runs:
        opened_at = max(run.created_at, before)
        placed_at = max(filter(None, (run.claimed_at, waited.get(run.id))), default=None)
        times = _times(run, runs, opened_at, placed_at, found.get(run.id))
        seconds = account_run(times, load_account(session, run.id), now)
        accounts.append(RunAccount(row=run, opened_at=opened_at, seconds=seconds))
        before = accounts[-1].ended_at(now)
    return accounts


def _load_found(session: Session, runs: Iterable[RunRow]) -> dict[str, float]:
    found: dict[str, float] = {}
    for run, finding in load_halts(session, [run.id for run in runs]):
        found[run] = min(finding.at, found.get(run, finding.at))
    return found


def _times(
    run: RunRow,
    runs: Sequence[RunRow],
    opened: float,
    placed: float | None,
    found: float | None,
) -> RunTimes:
    code = run.outcome.code if run.outcome is not None else None
    later = [row for row in runs if row.phase == run.phase and row.attempt > run.attempt]
    return RunTimes(
        opened_at=opened,
        placed_at=placed,
        ended_at=run.ended_at,
        found_at=found,
        again=run.attempt > 1,
        completed=code is OutcomeCode.COMPLETED,
        unseen_end=code in _UNSEEN,
        resumed_steps=tuple(row.resume_from.step if row.resume_from else 0 for row in later),
    )


def load_experiment_goodput(
    session: Session, experiment: ExperimentRow, now: float
) -> ExperimentGoodput:
    """Return where an experiment's time went, and that of each of its runs."""
    accounts = load_accounts(session, experiment.id, now)
    spans = ((row.opened_at, row.ended_at(now), row.seconds) for row in accounts)
    seconds = account_experiment(experiment.created_at, experiment.ended_at, spans, now)
    return ExperimentGoodput(
        experiment=experiment.id,
        runs={row.row.id: goodput_of(row.seconds) for row in accounts},
        **dict(goodput_of(seconds)),
    )
