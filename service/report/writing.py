"""How does a report come into being? Read, draw, write, answer.

It lies in `GONOGO_HOME/reports/{experiment}/`: `report.md`, its pictures beside it. The picture of
a run that has ended and is judged is drawn once. Writing is atomic; two requests at a time write
the same. Where matplotlib is missing or the folder cannot be written, the report says so.
"""

import logging
import threading
from dataclasses import replace
from pathlib import Path

from gonogo.contract.lifecycle import RunState
from service.context import Context
from service.report.load import load_report_view
from service.report.markdown import build_report
from service.report.plots import can_plot, draw_overview, draw_run
from service.report.view import ReportView, RunReport

REPORT = "report.md"
OVERVIEW = "overview.png"
_log = logging.getLogger(__name__)
_one_at_a_time = threading.Lock()


def reports_dir(home: Path, experiment: str) -> Path:
    """Return the folder of an experiment's report."""
    return home / "reports" / experiment


def write_report(context: Context, experiment: str) -> str:
    """Write the report of an experiment and return its text.

    Raises:
        NotFound: there is no such experiment.
    """
    view = context.store.read(lambda session: load_report_view(session, experiment, context))
    folder = reports_dir(context.settings.home, experiment)
    with _one_at_a_time:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            view = save_plots(view, folder)
            text = build_report(view)
            _save(folder / REPORT, text.encode())
        except OSError as error:
            _log.warning("report not saved: %s", error, extra={"action": "report_not_saved"})
            view = replace(view, no_plots=f"the report's folder cannot be written: {error}")
            text = build_report(view)
    return text


def save_plots(view: ReportView, folder: Path) -> ReportView:
    """Draw the pictures into `folder` and return the view that names them."""
    drawable = [run for run in view.runs if can_plot(run)]
    if not drawable:
        return replace(view, no_plots="no run has two steps yet")
    try:
        names = {run.view.id: _save_run(run, folder) for run in drawable}
        _save(folder / OVERVIEW, draw_overview(drawable))
    except ImportError:
        return replace(view, no_plots="matplotlib is not installed (extra `server`)")
    runs = tuple(replace(run, plot=names.get(run.view.id)) for run in view.runs)
    return replace(view, runs=runs, overview=OVERVIEW)


def _save_run(run: RunReport, folder: Path) -> str:
    """Draw one run unless its last picture is there; a final one bears no mark of being live."""
    name = f"{run.view.phase}-{run.view.attempt}.png"
    live = folder / f".{name}.live"
    final = run.view.state is RunState.ENDED and run.view.verdict is not None
    if final and (folder / name).exists() and not live.exists():
        return name
    if not final:
        live.touch()
    _save(folder / name, draw_run(run))
    if final:
        live.unlink(missing_ok=True)
    return name


def _save(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)
