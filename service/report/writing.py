"""How does a report come into being? Read, draw, write, answer.

It lies in `GONOGO_HOME/reports/{experiment}/`: `report.md`, its pictures beside it, and
`report.html`, one file that holds them. A picture is drawn anew only when the numbers that it shows
have changed. Writing is atomic; two requests at a time write the same. Where matplotlib is missing
or the folder cannot be written, the report says so.
"""

import asyncio
import hashlib
import logging
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from anyio import to_thread

from gonogo.contract.errors import NotFound, Unavailable
from service.context import Context
from service.queries.experiments import load_experiment
from service.report.html import render_report
from service.report.load import load_report_view
from service.report.markdown import build_report, pictures_of
from service.report.plots import DRAWING, Picture, draw
from service.report.view import ReportView

REPORT = "report.md"
PAGE = "report.html"
PATIENCE_S = 120.0
"""With one report, before the next is begun; reading gigabytes of checkpoints takes seconds."""
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


async def report_for(context: Context, experiment: str) -> Written:
    """Return the report of an experiment to a route, one at a time.

    Many who ask for reports wait here and not in the threads that everybody's requests need. One
    that reads a run directory whose file system hangs is left to its thread.

    Raises:
        NotFound: there is no such experiment.
        Unavailable: it does not come to its end.
    """
    async with context.reporting:
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await to_thread.run_sync(
                    write_report, context, experiment, abandon_on_cancel=True
                )
        except TimeoutError as error:
            text = f"the report took longer than {PATIENCE_S:g} s: does a run's file system hang?"
            raise Unavailable(text) from error


def _title(view: ReportView) -> str:
    experiment = view.experiment
    return f"{experiment.verdict_words or experiment.state}: {experiment.name}"


def _pictures(view: ReportView, folder: Path) -> dict[str, bytes]:
    """Return the pictures that a report names."""
    if view.no_plots:
        return {}
    names = [f"{picture.name}.png" for picture in pictures_of(view)]
    return {name: (folder / name).read_bytes() for name in names}


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
    """Draw the pictures into `folder`; the view says so where there are none."""
    pictures = pictures_of(view)
    if not pictures:
        return replace(view, no_plots="no run has begun yet")
    try:
        for picture in pictures:
            _save_picture(picture, folder)
    except ImportError:
        return replace(view, no_plots="matplotlib is not installed (extra `server`)")
    return view


def _save_picture(picture: Picture, folder: Path) -> None:
    """Draw a picture unless the one that is there shows the same numbers."""
    path, mark = folder / f"{picture.name}.png", folder / f".{picture.name}.shows"
    shows = hashlib.sha256(f"{DRAWING} {picture!r}".encode()).hexdigest()
    if path.exists() and mark.exists() and mark.read_text() == shows:
        return
    mark.unlink(missing_ok=True)
    _save(path, draw(picture))
    _save(mark, shows.encode())


def _save(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)
