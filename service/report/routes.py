"""Which calls give the report? `GET /experiments/{id}/report`, as Markdown."""

from fastapi import APIRouter, Response

from service.auth import Service, Viewer
from service.report.writing import write_report

router = APIRouter(tags=["experiments"])


@router.get(
    "/experiments/{experiment}/report",
    operation_id="report",
    response_class=Response,
    responses={200: {"content": {"text/markdown": {}}, "description": "The report."}},
)
def report(context: Service, _: Viewer, experiment: str) -> Response:
    """Write the report of an experiment into `GONOGO_HOME/reports/` and return it."""
    return Response(write_report(context, experiment), media_type="text/markdown")
