"""Which pages are there? One function each: rows in, template out."""

from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Response
from fastapi.responses import FileResponse, HTMLResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.api import CampaignState
from gonogo.contract.errors import NotFound
from service.campaigns.create import load_campaign
from service.campaigns.view import view_campaign
from service.db.schema import AlertRow, CampaignRow, DeliveryRow, ExperimentRow, WorkerRow
from service.evidence.artifacts import list_artifacts, load_artifact
from service.evidence.logs import load_log
from service.experiments.lifecycle import load_run
from service.http.auth import Service
from service.http.paging import Cursor, load_page
from service.pages import sign_in
from service.pages.charts import legend, line_chart
from service.pages.goodput import goodput_bar, goodput_rows
from service.pages.intervals import interval_chart, ratio_text
from service.pages.load import load_experiment_page
from service.pages.render import STATIC, load_static, render
from service.pages.route import PageRoute, Visitor
from service.report.gates import observed_text, threshold_text
from service.report.goodput import ratio_words
from service.report.html import POLICY
from service.report.writing import write_report
from service.views.experiments import select_experiments, view_experiments
from service.views.goodput import load_fleet_goodput
from service.views.news import view_alert, view_worker

REFRESH_S = 2
FLEET_REFRESH_S = 30
FLEET_WINDOWS = (24.0, 7 * 24.0)
"""Hours."""
PAGE = 50
LOG_LINES = 400
SANDBOX = {"Content-Security-Policy": "default-src 'none'; sandbox"}
router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/")
def experiments(context: Service, who: Visitor, cursor: Cursor = None) -> Response:
    """List the experiments, newest first."""

    def work(session: Session) -> tuple[list[Any], str | None]:
        rows, after = load_page(
            session,
            select_experiments(),
            ExperimentRow.id,
            limit=PAGE,
            after=cursor,
            newest_first=True,
        )
        return view_experiments(session, rows), after

    rows, after = context.store.read(work)
    page = render("experiments.html", who=who, rows=rows, after=after, refresh_s=REFRESH_S)
    return HTMLResponse(page)


@router.get("/experiments/{experiment}")
def experiment(
    context: Service,
    who: Visitor,
    experiment: str,
    run: Annotated[str | None, Query(max_length=60)] = None,
) -> Response:
    """Show an experiment and one of its runs."""
    found = context.store.read(
        lambda session: load_experiment_page(session, experiment, run, context.now())
    )
    page = render(
        "experiment.html",
        who=who,
        page=found,
        refresh_s=REFRESH_S if found.living else None,
        chart=line_chart,
        legend=legend,
        observed=observed_text,
        threshold=threshold_text,
        bar=goodput_bar,
        rows=goodput_rows,
        ratio=ratio_words,
    )
    return HTMLResponse(page)


@router.get("/campaigns")
def campaigns(context: Service, who: Visitor, cursor: Cursor = None) -> Response:
    """List the campaigns, newest first."""

    def work(session: Session) -> tuple[list[Any], str | None]:
        rows, after = load_page(
            session,
            select(CampaignRow),
            CampaignRow.id,
            limit=PAGE,
            after=cursor,
            newest_first=True,
        )
        return [view_campaign(session, row) for row in rows], after

    rows, after = context.store.read(work)
    page = render("campaigns.html", who=who, rows=rows, after=after, refresh_s=REFRESH_S)
    return HTMLResponse(page)


@router.get("/campaigns/{campaign}")
def campaign(context: Service, who: Visitor, campaign: str) -> Response:
    """Show a campaign: its runs by repeat and variant, and what they came to."""
    found = context.store.read(
        lambda session: view_campaign(session, load_campaign(session, campaign))
    )
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
def report(context: Service, _: Visitor, experiment: str) -> Response:
    """Show the report: one page, its pictures inside."""
    written = write_report(context, experiment)
    return HTMLResponse(written.page, headers={"Content-Security-Policy": POLICY})


@router.get("/runs/{run}/logs/{name}")
def log(context: Service, who: Visitor, run: str, name: str) -> Response:
    """Show the end of a log."""
    number = name.removeprefix("rank").removesuffix(".log")
    rank = int(number) if number.isdecimal() and len(number) < 6 else None
    if rank is None and name != "torchrun.log":
        raise NotFound(f"there is no log {name}")

    def work(session: Session) -> tuple[Any, str]:
        row = load_run(session, run)
        return load_log(session, run, rank, LOG_LINES, 0), row.experiment

    found, experiment = context.store.read(work)
    page = render(
        "log.html", who=who, log=found, lines=LOG_LINES, experiment=experiment, refresh_s=REFRESH_S
    )
    return HTMLResponse(page)


@router.get("/runs/{run}/artifacts")
def artifacts(context: Service, who: Visitor, run: str) -> Response:
    """List the files of a run."""

    def work(session: Session) -> tuple[Any, str]:
        row = load_run(session, run)
        return list_artifacts(session, row), row.experiment

    found, experiment = context.store.read(work)
    return HTMLResponse(render("artifacts.html", who=who, found=found, experiment=experiment))


@router.get("/runs/{run}/artifacts/{path:path}")
def artifact(context: Service, _: Visitor, run: str, path: str) -> Response:
    """Show a file of a run: pictures as such, everything else as text or as a download."""
    found = context.store.read(lambda session: load_artifact(session, load_run(session, run), path))
    kind = "application/octet-stream"
    if path.endswith((".json", ".jsonl", ".log", ".txt", ".csv", ".xml")):
        kind = "text/plain"
    if isinstance(found, bytes):
        return Response(found, media_type=kind, headers=SANDBOX)
    return FileResponse(found, media_type=kind, headers=SANDBOX)


@router.get("/workers")
def workers(context: Service, who: Visitor) -> Response:
    """List the workers."""
    rows = context.store.read(
        lambda session: [
            view_worker(row, context.now())
            for row in session.scalars(select(WorkerRow).order_by(WorkerRow.seen_at.desc()))
        ]
    )
    return HTMLResponse(render("workers.html", who=who, rows=rows, refresh_s=REFRESH_S))


@router.get("/fleet")
def fleet(context: Service, who: Visitor) -> Response:
    """Show where the device time of all runs went."""
    now = context.now()
    windows = context.store.read(
        lambda session: [load_fleet_goodput(session, now, hours) for hours in FLEET_WINDOWS]
    )
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
def alerts(context: Service, who: Visitor, cursor: Cursor = None) -> Response:
    """List the alerts, newest first."""

    def work(session: Session) -> tuple[list[Any], str | None]:
        rows, after = load_page(
            session,
            select(AlertRow),
            AlertRow.id,
            limit=PAGE,
            after=cursor,
            newest_first=True,
        )
        ids = [row.id for row in rows]
        sent: dict[str, list[DeliveryRow]] = {}
        for delivery in session.scalars(select(DeliveryRow).where(DeliveryRow.alert.in_(ids))):
            sent.setdefault(delivery.alert, []).append(delivery)
        return [view_alert(row, sent.get(row.id, []), "") for row in rows], after

    rows, after = context.store.read(work)
    page = render("alerts.html", who=who, rows=rows, after=after, refresh_s=REFRESH_S)
    return HTMLResponse(page)


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Serve a style sheet, a script or the icon; its address changes with its content."""
    if name not in STATIC:
        raise NotFound(f"there is no {name}")
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(load_static(name), media_type=STATIC[name], headers=headers)


def add_pages(app: FastAPI) -> None:
    """Add every page to the application."""
    app.include_router(sign_in.router)
    app.include_router(router)
