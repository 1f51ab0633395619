"""Writes reports to `GONOGO_HOME/reports/{experiment}/`, and serves them.

`report.md` has its charts beside it, `report.html` holds them. That page loads nothing, and raw
HTML in a text stays text.
"""

import asyncio
import html
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Response
from fastapi.responses import FileResponse
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup

from gonogo.contract.errors import NotFound, Unavailable
from service.charts import draw, style, svg_file
from service.context import Context
from service.http.auth import Service, Viewer
from service.queries.experiments import load_experiment
from service.report.details import build_report
from service.report.summary import title_of
from service.report.view import load_report_view, pictures_of

REPORT = "report.md"
PAGE = "report.html"
PATIENCE_S = 120.0
_log = logging.getLogger(__name__)
_one_at_a_time = threading.Lock()
router = APIRouter(tags=["experiments"])


def reports_dir(home: Path, experiment: str) -> Path:
    """Return the folder of an experiment's report."""
    return home / "reports" / experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A report."""

    text: str
    """In Markdown; its charts lie beside it."""
    page: str
    """The same as HTML, with the charts inside."""


def write_report(context: Context, experiment: str) -> Written:
    """Write the report of an experiment and return it, even if it cannot be saved."""
    view = context.store.read(lambda session: load_report_view(session, experiment, context))
    text = build_report(view)
    pictures = {f"{row.name}.svg": draw(row.chart) for row in pictures_of(view)}
    written = Written(text=text, page=render_report(text, pictures, title_of(view)))
    folder = reports_dir(context.settings.home, experiment)
    files = {name: svg_file(drawn) for name, drawn in pictures.items()}
    with _one_at_a_time:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in {**files, PAGE: written.page, REPORT: text}.items():
                temporary = folder / f".{name}.tmp"
                temporary.write_text(content)
                temporary.replace(folder / name)
        except OSError as error:
            _log.warning("report not saved: %s", error, extra={"action": "report_not_saved"})
    return written


async def report_for(context: Context, experiment: str) -> Written:
    """Return the report of an experiment to a route; reports are made one at a time."""
    async with context.reporting:
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await to_thread.run_sync(
                    write_report, context, experiment, abandon_on_cancel=True
                )
        except TimeoutError as error:
            text = f"the report took longer than {PATIENCE_S:g} s: does a run's file system hang?"
            raise Unavailable(text) from error


class Format(StrEnum):
    """Format of the report."""

    MARKDOWN = "markdown"
    HTML = "html"


@router.get(
    "/experiments/{experiment}/report",
    operation_id="show_report",
    response_class=Response,
    responses={
        200: {"content": {"text/markdown": {}, "text/html": {}}, "description": "The report."}
    },
)
async def report(
    context: Service, _: Viewer, experiment: str, format: Format = Format.MARKDOWN
) -> Response:
    """Write the report of an experiment into `GONOGO_HOME/reports/` and return it."""
    written = await report_for(context, experiment)
    if format is Format.HTML:
        headers = {"Content-Security-Policy": POLICY}
        return Response(written.page, media_type="text/html", headers=headers)
    return Response(written.text, media_type="text/markdown")


@router.get(
    "/experiments/{experiment}/report/{picture}.svg",
    operation_id="show_report_picture",
    response_class=FileResponse,
    responses={200: {"content": {"image/svg+xml": {}}, "description": "The chart."}},
)
def report_picture(context: Service, _: Viewer, experiment: str, picture: str) -> Response:
    """Return a chart of the report that was requested last."""
    context.store.read(lambda session: load_experiment(session, experiment))
    folder = reports_dir(context.settings.home, experiment).resolve()
    path = (folder / f"{picture}.svg").resolve()
    if path.parent != folder or not path.is_file():
        raise NotFound("there is no such picture; open the report first")
    return FileResponse(path, media_type="image/svg+xml")


POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""What the page may load: what it holds."""
OPEN = "Look here first"
_STYLE = (Path(__file__).parent / "report.css").read_text()
_KINDS = {
    **dict.fromkeys(("GO", "met"), "good"),
    **dict.fromkeys(("CONDITIONAL_GO", "INCONCLUSIVE", "inconclusive", "open"), "open"),
    **dict.fromkeys(("NO_GO", "FAIL", "error", "halt", "missed", "DIFFERS"), "bad"),
}
"""Bold word → class that colours it."""


class _Renderer(RendererHTML):
    """Renders charts, coloured verdicts, scrolling tables and folded sections."""

    pictures: Mapping[str, Markup] = {}

    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Return the chart of this name, or the description of any other picture."""
        found = self.pictures.get(str(tokens[idx].attrs.get("src", "")))
        if found is not None:
            return str(found)
        alt = self.renderInlineAsText(tokens[idx].children or (), options, env)
        return f"<em>{html.escape(alt)}</em>"

    def strong_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Colour a verdict."""
        kind = _KINDS.get(tokens[idx + 1].content)
        return "<strong>" if kind is None else f'<strong class="{kind}">'

    def table_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Begin a table that scrolls by itself."""
        return '<div class="scroll" tabindex="0"><table>\n'

    def table_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """End a table."""
        return "</table></div>\n"

    def heading_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Begin a heading; of the second level, a folded section."""
        if tokens[idx].tag != "h2":
            return f"<{tokens[idx].tag}>"
        first = not any(row.tag == "h2" for row in tokens[:idx])
        opened = " open" if tokens[idx + 1].content.startswith(OPEN) else ""
        return f"{'' if first else '</details>'}<details{opened}><summary>"

    def heading_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """End a heading."""
        tag = tokens[idx].tag
        return "</summary>\n" if tag == "h2" else f"</{tag}>\n"


def render_report(text: str, pictures: Mapping[str, Markup], title: str) -> str:
    """Return a report in Markdown as one HTML page; `pictures` has a chart for each file name."""
    reader = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")
    assert isinstance(reader.renderer, _Renderer)
    reader.renderer.pictures = pictures
    body = reader.render(text)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY.partition("; frame")[0]}">'
        f"<title>{html.escape(title)}</title><style>{style()}{_STYLE}</style></head>\n"
        f"<body>\n{body}{'</details>' if '<details' in body else ''}\n</body></html>\n"
    )
