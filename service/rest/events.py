"""What happened, over all experiments, in one order."""

from typing import Annotated

from fastapi import APIRouter, Query

from gonogo.contract.api import EventView
from service.http.auth import Viewer
from service.http.paging import Cursor, Limit, Page, number_cursor
from service.http.transactions import Reading
from service.queries.events import load_events_page
from service.views.news import view_event

router = APIRouter(tags=["overview"])


@router.get("/events", operation_id="list_events")
def list_events(
    session: Reading,
    _: Viewer,
    after: Annotated[int, Query(ge=0, lt=2**53, description="`cursor` of the last one seen.")] = 0,
    limit: Limit = 200,
    cursor: Cursor = None,
) -> Page[EventView]:
    """List the events of all experiments in one order that never changes."""
    first = number_cursor(cursor) or after
    rows, next_cursor = load_events_page(session, limit=limit, after=first)
    return Page[EventView](items=[view_event(row) for row in rows], next_cursor=next_cursor)
