"""Which calls give the report? As Markdown with its pictures, or as one HTML file."""

from enum import StrEnum

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse

from service.http.auth import Service, Viewer
from service.report.html import POLICY
from service.report.writing import find_picture, report_for

router = APIRouter(tags=["experiments"])


class Format(StrEnum):
    """What the report is wanted as."""

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
    "/experiments/{experiment}/report/{picture}.png",
    operation_id="show_report_picture",
    response_class=FileResponse,
    responses={200: {"content": {"image/png": {}}, "description": "The picture."}},
)
def report_picture(context: Service, _: Viewer, experiment: str, picture: str) -> Response:
    """Return a picture of the report that was asked for last."""
    return FileResponse(find_picture(context, experiment, picture), media_type="image/png")
