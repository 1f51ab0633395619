"""The report over REST: Markdown with its charts, or one HTML file."""

from enum import StrEnum

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse

from service.http.auth import Service, Viewer
from service.report.html import POLICY
from service.report.writing import find_picture, report_for

router = APIRouter(tags=["experiments"])


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
    return FileResponse(find_picture(context, experiment, picture), media_type="image/svg+xml")
