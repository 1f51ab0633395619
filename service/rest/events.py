"""What happened, over all experiments, in one order."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.api import EventView
from service.db.schema import EventRow
from service.http.auth import Service, Viewer
from service.http.paging import Cursor, Limit, Page, load_page, number_cursor, page_of
from service.views.news import view_event

router = APIRouter(tags=["overview"])


@router.get("/events", operation_id="list_events")
def list_events(
    context: Service,
    _: Viewer,
    after: Annotated[int, Query(ge=0, lt=2**53, description="`cursor` of the last one seen.")] = 0,
    limit: Limit = 200,
    cursor: Cursor = None,
) -> Page[EventView]:
    """List the events of all experiments in one order that never changes."""

    def work(session: Session) -> dict[str, Any]:
        rows, next_cursor = load_page(
            session,
            select(EventRow),
            EventRow.cursor,
            limit=limit,
            after=number_cursor(cursor) or after,
        )
        return page_of(rows, next_cursor, view_event)

    return Page[EventView](**context.store.read(work))
