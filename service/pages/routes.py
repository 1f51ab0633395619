"""The pages: one function each, rows in, template out; and what an experiment's page shows."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse

from gonogo.contract.api import CampaignState
from gonogo.contract.decision import Decision, Verdict
from gonogo.contract.errors import NotFound
from gonogo.contract.lifecycle import ExperimentState, RunState
from gonogo.contract.order import Order
from gonogo.judge.follow_up.explanation import cause_of
from service.campaigns import view_campaign
from service.charts import draw
from service.db.schema import RunRow
from service.db.store import Session
from service.evidence.artifacts import list_artifacts, load_artifact, load_stack
from service.evidence.files import load_log, load_log_names
from service.evidence.series import load_curves, load_gate_now
from service.experiments.state import decision_about
from service.http.answers import file_response
from service.http.auth import Service
from service.http.dependencies import Cursor, Reading
from service.pages import sign_in
from service.pages.render import (
    STATIC,
    charts_of,
    goodput_bar,
    goodput_rows,
    load_static,
    ratio_text,
    render,
)
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
from service.views.rows import load_experiment_goodput, load_run_view, view_alert, view_worker


def load_experiment_page(
    session: Session, experiment: str, run: str | None, now: float
) -> dict[str, Any]:
    """Return what an experiment's page shows; `run` names the run, else the one to look at."""
    row = load_experiment(session, experiment)
    view = view_experiment(session, row)
    rows = runs_of(session, experiment)
    decisions = load_decisions(session, experiment)
    living = [found for found in rows if found.state != RunState.ENDED]
    asked = [found for found in rows if found.id == run]
    chosen = next(reversed(asked or living or rows), None)
    return {
        "view": view,
        "living": view.state is not ExperimentState.FINISHED,
        "runs": [load_run_view(session, found) for found in rows],
        "decisions": decisions,
        "run": _load_run(session, chosen, decisions, now) if chosen else None,
        "goodput": load_experiment_goodput(session, row, now),
        "took_s": row.started_at and max(0.0, (row.ended_at or now) - row.started_at),
    }


def _load_run(
    session: Session,
    row: RunRow,
    decisions: Sequence[Decision],
    now: float,
) -> dict[str, Any]:
    progress = load_progress(session, row.id)
    view = load_run_view(session, row)
    order = Order.model_validate(row.order) if row.order else None
    judged = decision_about(decisions, row.id)
    decided = list(judged.criteria) if judged is not None else []
    criteria = decided or (load_gate_now(session, row.id, order) if order else [])
    findings = load_findings(session, row.id)
    bad = view.outcome is not None and view.verdict is not Verdict.GO
    return {
        "view": view,
        "order": order,
        "findings": findings,
        "criteria": criteria,
        "decided": bool(decided),  # else the criteria show how the gate stands now
        "charts": charts_of(load_curves(session, row.id)),
        "cause": cause_of(findings, view.outcome, decided) if bad else None,
        "stack": load_stack(session, row, findings),
        "logs": load_log_names(session, row.id),
        "artifacts": list_artifacts(session, row),
        "age_s": progress.heartbeat_at and max(0.0, now - progress.heartbeat_at),
    }


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
        refresh_s=REFRESH_S if found["living"] else None,
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
