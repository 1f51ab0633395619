"""How does a report come into being? Read, draw, write, answer.

It lies in `GONOGO_HOME/reports/{experiment}/`: `report.md`, its pictures beside it, and
`report.html`, one file that holds them. The picture of
a run that has ended and is judged is drawn once. Writing is atomic; two requests at a time write
the same. Where matplotlib is missing or the folder cannot be written, the report says so.
"""

import logging
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from gonogo.contract.errors import NotFound
from gonogo.contract.lifecycle import RunState
from service.context import Context
from service.lifecycle import load_experiment
from service.report.html import render_report
from service.report.load import load_report_view
from service.report.markdown import build_report
from service.report.plots import can_plot, draw_overview, draw_run
from service.report.view import ReportView, RunReport

REPORT = "report.md"
PAGE = "report.html"
OVERVIEW = "overview.png"
_log = logging.getLogger(__name__)
_one_at_a_time = threading.Lock()


def reports_dir(home: Path, experiment: str) -> Path:
    """Return the folder of an experiment's report."""
    return home / "reports" / experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A report."""

    text: str
    """In Markdown; its pictures lie beside it."""
    page: str
    """The same as HTML, pictures inside."""


def write_report(context: Context, experiment: str) -> Written:
    """Write the report of an experiment and return it.

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
            page = render_report(text, _pictures(view, folder), _title(view))
            _save(folder / PAGE, page.encode())
            _save(folder / REPORT, text.encode())
        except OSError as error:
            _log.warning("report not saved: %s", error, extra={"action": "report_not_saved"})
            view = replace(view, no_plots=f"the report's folder cannot be written: {error}")
            text = build_report(view)
            page = render_report(text, {}, _title(view))
    return Written(text=text, page=page)


def _title(view: ReportView) -> str:
    return f"{view.experiment.name}: {view.experiment.verdict or view.experiment.state}"


def _pictures(view: ReportView, folder: Path) -> dict[str, bytes]:
    """Return the pictures that a report names."""
    names = [view.overview, *(run.plot for run in view.runs)]
    return {name: (folder / name).read_bytes() for name in names if name}


def find_picture(context: Context, experiment: str, name: str) -> Path:
    """Return a picture of a report that was written.

    Raises:
        NotFound: there is no such experiment, or no such picture.
    """
    context.store.read(lambda session: load_experiment(session, experiment))
    folder = reports_dir(context.settings.home, experiment).resolve()
    path = (folder / f"{name}.png").resolve()
    if path.parent != folder or not path.is_file():
        raise NotFound("there is no such picture; open the report first")
    return path


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
