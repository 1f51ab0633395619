"""What woke somebody, or should have."""

from fastapi import APIRouter

from gonogo.contract.api import AlertView
from gonogo.contract.ids import Kind
from service.http.auth import Service, Viewer
from service.http.paging import Cursor, Limit, Page, id_cursor
from service.http.transactions import Reading
from service.queries.alerts import load_alerts
from service.views.news import view_alert

router = APIRouter(tags=["overview"])


@router.get("/alerts", operation_id="list_alerts")
def list_alerts(
    session: Reading, context: Service, _: Viewer, limit: Limit = 100, cursor: Cursor = None
) -> Page[AlertView]:
    """List alerts, newest first, each with what became of its deliveries."""
    rows, after = load_alerts(session, limit=limit, after=id_cursor(cursor, Kind.ALERT))
    items = [view_alert(row, deliveries, context.url) for row, deliveries in rows]
    return Page[AlertView](items=items, next_cursor=after)
