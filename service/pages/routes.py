"""The pages: one function each, rows in, template out; and what an experiment's page shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse

from gonogo.contract.api import ArtifactsView, CampaignState, ExperimentView, RunView
from gonogo.contract.decision import CriterionResult, Decision, Verdict
from gonogo.contract.errors import NotFound
from gonogo.contract.finding import Finding
from gonogo.contract.goodput import ExperimentGoodput
from gonogo.contract.lifecycle import ExperimentState, RunState
from gonogo.contract.order import Order
from gonogo.judge.follow_up.explanation import cause_of
from service.campaigns import view_campaign
from service.charts import Chart, draw
from service.db.schema import RunRow
from service.db.store import Session
from service.evidence.artifacts import Excerpt, list_artifacts, load_artifact, load_stack
from service.evidence.files import load_log, load_log_names
from service.evidence.lowest_rank import load_curves
from service.evidence.series import load_gate_now
from service.experiments.state import decision_about
from service.http.answers import file_response
from service.http.auth import Service
from service.http.dependencies import Cursor, Reading
from service.pages import sign_in
from service.pages.drawings import charts_of, goodput_bar, goodput_rows, interval_chart, ratio_text
from service.pages.render import STATIC, lamp_of, lamp_of_all, load_static, render
from service.pages.sign_in import PageRoute, Visitor
from service.queries.callers import load_alerts, load_workers
from service.queries.experiments import (
    load_campaign,
    load_campaigns,
    load_decisions,
    load_experiment,
    load_experiments,
    runs_of,
)
from service.queries.runs import load_findings, load_progress, load_run
from service.report.files import POLICY, report_for
from service.text import observed_text, ratio_words, threshold_text
from service.views.experiments import view_experiment, view_experiments
from service.views.goodput import load_experiment_goodput
from service.views.rows import load_run_view, view_alert, view_worker


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
    artifacts: ArtifactsView
    age_s: float | None


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
    judged = decision_about(decisions, row.id)
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
        charts=charts_of(load_curves(session, row.id)),
        cause=cause_of(findings, view.outcome, decided) if bad else None,
        stack=load_stack(session, row, findings),
        logs=load_log_names(session, row.id),
        artifacts=list_artifacts(session, row),
        age_s=None if progress.heartbeat_at is None else max(0.0, now - progress.heartbeat_at),
    )


REFRESH_S = 2
PAGE = 50
LOG_LINES = 400
SANDBOX = {"Content-Security-Policy": "default-src 'none'; sandbox"}
router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/")
def experiments(session: Reading, who: Visitor, cursor: Cursor = None) -> Response:
    """List the experiments, newest first."""
    found, after = load_experiments(session, limit=PAGE, after=cursor)
    rows = view_experiments(session, found)
    page = render(
        "experiments.html",
        who=who,
        rows=rows,
        after=after,
        refresh_s=REFRESH_S,
        lamp=lamp_of_all(rows),
        waiting=sum(row.state is ExperimentState.AWAITING_DECISION for row in rows),
    )
    return HTMLResponse(page)


@router.get("/experiments/{experiment}")
def experiment(
    session: Reading,
    context: Service,
    who: Visitor,
    experiment: str,
    run: Annotated[str | None, Query(max_length=60)] = None,
) -> Response:
    """Show an experiment and one of its runs."""
    found = load_experiment_page(session, experiment, run, context.now())
    page = render(
        "experiment.html",
        who=who,
        page=found,
        refresh_s=REFRESH_S if found.living else None,
        lamp=lamp_of(found.view),
        draw=draw,
        observed=observed_text,
        threshold=threshold_text,
        bar=goodput_bar,
        rows=goodput_rows,
        ratio=ratio_words,
    )
    return HTMLResponse(page)


@router.get("/campaigns")
def campaigns(session: Reading, who: Visitor, cursor: Cursor = None) -> Response:
    """List the campaigns, newest first."""
    found, after = load_campaigns(session, limit=PAGE, after=cursor)
    rows = [view_campaign(session, row) for row in found]
    page = render("campaigns.html", who=who, rows=rows, after=after, refresh_s=REFRESH_S)
    return HTMLResponse(page)


@router.get("/campaigns/{campaign}")
def campaign(session: Reading, who: Visitor, campaign: str) -> Response:
    """Show a campaign: its runs by repeat and variant, and what they came to."""
    found = view_campaign(session, load_campaign(session, campaign))
    page = render(
        "campaign.html",
        who=who,
        c=found,
        repeats=sorted({row.repeat for row in found.members}),
        chart=interval_chart,
        ratio=ratio_text,
        refresh_s=REFRESH_S if found.state is CampaignState.RUNNING else None,
    )
    return HTMLResponse(page)


@router.get("/experiments/{experiment}/report")
async def report(context: Service, _: Visitor, experiment: str) -> Response:
    """Show the report: one page, its pictures inside."""
    written = await report_for(context, experiment)
    return HTMLResponse(written.page, headers={"Content-Security-Policy": POLICY})


@router.get("/runs/{run}/logs/{name}")
def log(session: Reading, who: Visitor, run: str, name: str) -> Response:
    """Show the end of a log."""
    number = name.removeprefix("rank").removesuffix(".log")
    rank = int(number) if number.isdecimal() and len(number) < 6 else None
    if rank is None and name != "torchrun.log":
        raise NotFound(f"there is no log {name}")
    experiment = load_run(session, run).experiment
    found = load_log(session, run, rank, LOG_LINES, 0)
    page = render(
        "log.html", who=who, log=found, lines=LOG_LINES, experiment=experiment, refresh_s=REFRESH_S
    )
    return HTMLResponse(page)


@router.get("/runs/{run}/artifacts")
def artifacts(session: Reading, who: Visitor, run: str) -> Response:
    """List the files of a run."""
    row = load_run(session, run)
    found = list_artifacts(session, row)
    return HTMLResponse(render("artifacts.html", who=who, found=found, experiment=row.experiment))


@router.get("/runs/{run}/artifacts/{path:path}")
def artifact(session: Reading, _: Visitor, run: str, path: str) -> Response:
    """Show a file of a run: pictures as such, everything else as text or as a download."""
    found = load_artifact(session, load_run(session, run), path)
    kind = "application/octet-stream"
    if path.endswith((".json", ".jsonl", ".log", ".txt", ".csv", ".xml")):
        kind = "text/plain"
    return file_response(found, media_type=kind, headers=SANDBOX)


@router.get("/workers")
def workers(session: Reading, context: Service, who: Visitor) -> Response:
    """List the workers."""
    now = context.now()
    rows = [view_worker(row, now) for row in load_workers(session)]
    return HTMLResponse(render("workers.html", who=who, rows=rows, refresh_s=REFRESH_S))


@router.get("/alerts")
def alerts(session: Reading, who: Visitor, cursor: Cursor = None) -> Response:
    """List the alerts, newest first."""
    found, after = load_alerts(session, limit=PAGE, after=cursor)
    rows = [view_alert(row, deliveries, "") for row, deliveries in found]
    page = render("alerts.html", who=who, rows=rows, after=after, refresh_s=REFRESH_S)
    return HTMLResponse(page)


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Serve a style sheet, a script or the icon; its address changes with its content."""
    if name not in STATIC:
        raise NotFound(f"there is no {name}")
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(load_static(name), media_type=STATIC[name], headers=headers)


PAGES = (sign_in.router, router)
