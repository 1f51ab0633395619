"""What woke somebody, or should have."""

from typing import Any

from fastapi import APIRouter
from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.api import AlertView
from gonogo.contract.ids import Kind
from service.db.schema import AlertRow, DeliveryRow
from service.http.auth import Service, Viewer
from service.http.paging import Cursor, Limit, Page, id_cursor, load_page, page_of
from service.views.news import view_alert

router = APIRouter(tags=["overview"])


@router.get("/alerts", operation_id="list_alerts")
def list_alerts(
    context: Service, _: Viewer, limit: Limit = 100, cursor: Cursor = None
) -> Page[AlertView]:
    """List alerts, newest first, each with what became of its deliveries."""
    after_id = id_cursor(cursor, Kind.ALERT)

    def work(session: Session) -> dict[str, Any]:
        rows, after = load_page(
            session, select(AlertRow), AlertRow.id, limit=limit, after=after_id, newest_first=True
        )
        ids = [row.id for row in rows]
        deliveries: dict[str, list[DeliveryRow]] = {}
        for delivery in session.scalars(select(DeliveryRow).where(DeliveryRow.alert.in_(ids))):
            deliveries.setdefault(delivery.alert, []).append(delivery)
        return page_of(
            rows, after, lambda row: view_alert(row, deliveries.get(row.id, []), context.url)
        )

    return Page[AlertView](**context.store.read(work))
