"""What the page of an experiment shows: models of its rows, and charts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from gonogo.contract.api import ArtifactsView, ExperimentView, RunView
from gonogo.contract.decision import CriterionResult, Decision, Verdict
from gonogo.contract.errors import Unavailable
from gonogo.contract.finding import Finding
from gonogo.contract.goodput import ExperimentGoodput
from gonogo.contract.lifecycle import ExperimentState, RunState
from gonogo.contract.order import Order
from gonogo.judge.follow_up.explanation import cause_of
from service.charts import Chart
from service.db.schema import RunRow
from service.db.store import Session
from service.evidence.artifacts import Excerpt, list_artifacts, load_stack
from service.evidence.files import load_log_names
from service.evidence.series import load_gate_now
from service.experiments.overview import last_judged
from service.pages.curves import load_charts
from service.queries.experiments import load_decisions, load_experiment, runs_of
from service.queries.runs import load_findings, load_progress
from service.views.experiments import view_experiment
from service.views.goodput import load_experiment_goodput
from service.views.rows import load_run_view

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """The run that a page shows whole."""

    view: RunView
    order: Order | None
    findings: Sequence[Finding]
    criteria: Sequence[CriterionResult]
    decided: bool
    """Whether the criteria are those of a decision; else they show how the gate stands now."""
    charts: Sequence[Chart]
    cause: str | None
    stack: Excerpt | None
    logs: Sequence[str]
    artifacts: ArtifactsView | None
    """None while too many wait for run directories that do not answer."""
    age_s: float | None
    """Seconds since the last heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentPage:
    """An experiment, and one of its runs."""

    view: ExperimentView
    runs: Sequence[RunView]
    decisions: Sequence[Decision]
    run: RunPage | None
    goodput: ExperimentGoodput
    took_s: float | None
    """From its first run's start to its end, or until now."""

    @property
    def living(self) -> bool:
        """Whether the page may change by itself."""
        return self.view.state is not ExperimentState.FINISHED


def load_experiment_page(
    session: Session, experiment: str, run: str | None, now: float
) -> ExperimentPage:
    """Return an experiment's page; `run` names the run to show, else the one to look at."""
    row = load_experiment(session, experiment)
    view = view_experiment(session, row)
    rows = runs_of(session, experiment)
    decisions = load_decisions(session, experiment)
    chosen = next((found for found in rows if found.id == run), None) or _most_telling(rows)
    page = _load_run(session, chosen, decisions, now) if chosen else None
    return ExperimentPage(
        view=view,
        runs=[load_run_view(session, found) for found in rows],
        decisions=decisions,
        run=page,
        goodput=load_experiment_goodput(session, row, now),
        took_s=None if row.started_at is None else max(0.0, (row.ended_at or now) - row.started_at),
    )


def _most_telling(rows: Sequence[RunRow]) -> RunRow | None:
    living = [row for row in rows if row.state != RunState.ENDED]
    found = living or list(rows)
    return found[-1] if found else None


def _load_run(
    session: Session,
    row: RunRow,
    decisions: Sequence[Decision],
    now: float,
) -> RunPage:
    progress = load_progress(session, row.id)
    view = load_run_view(session, row)
    order = Order.model_validate(row.order) if row.order else None
    judged = last_judged(decisions, row.id)
    decided = list(judged.criteria) if judged is not None else []
    criteria = decided or (load_gate_now(session, row.id, order) if order else [])
    findings = load_findings(session, row.id)
    bad = view.outcome is not None and view.verdict is not Verdict.GO
    return RunPage(
        view=view,
        order=order,
        findings=findings,
        criteria=criteria,
        decided=bool(decided),
        charts=load_charts(session, row.id),
        cause=cause_of(findings, view.outcome, decided) if bad else None,
        stack=_where_answered(partial(load_stack, session, row, findings)),
        logs=load_log_names(session, row.id),
        artifacts=_where_answered(partial(list_artifacts, session, row)),
        age_s=None if progress.heartbeat_at is None else max(0.0, now - progress.heartbeat_at),
    )


def _where_answered(look: Callable[[], _T]) -> _T | None:
    try:
        return look()
    except Unavailable:
        return None
