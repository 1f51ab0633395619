"""The pages: one function each, rows in, template out."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse

from gonogo.contract.api import CampaignState
from gonogo.contract.errors import NotFound
from gonogo.contract.lifecycle import ExperimentState
from service.campaigns import view_campaign
from service.charts import draw
from service.evidence.artifacts import list_artifacts, load_artifact
from service.evidence.files import load_log
from service.http.answers import file_response
from service.http.auth import Service
from service.http.dependencies import Cursor, Reading
from service.pages import sign_in
from service.pages.drawings import goodput_bar, goodput_rows, interval_chart, ratio_text
from service.pages.guard import PageRoute, Visitor
from service.pages.load import load_experiment_page
from service.pages.render import STATIC, lamp_of, lamp_of_all, load_static, render
from service.queries.callers import load_alerts, load_workers
from service.queries.experiments import load_campaign, load_campaigns, load_experiments
from service.queries.runs import load_run
from service.report.files import report_for
from service.report.html import POLICY
from service.text import observed_text, ratio_words, threshold_text
from service.views.experiments import view_experiments
from service.views.goodput import load_fleet_goodput
from service.views.rows import view_alert, view_worker

REFRESH_S = 2
FLEET_REFRESH_S = 30
FLEET_WINDOWS = (24.0, 7 * 24.0)
"""Hours."""
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


@router.get("/fleet")
def fleet(session: Reading, context: Service, who: Visitor) -> Response:
    """Show where the device time of all runs went."""
    now = context.now()
    windows = [load_fleet_goodput(session, now, hours) for hours in FLEET_WINDOWS]
    page = render(
        "fleet.html",
        who=who,
        windows=windows,
        bar=goodput_bar,
        rows=goodput_rows,
        ratio=ratio_words,
        refresh_s=FLEET_REFRESH_S,
    )
    return HTMLResponse(page)


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
