"""The hosts that ever claimed a run."""

from fastapi import APIRouter

from gonogo.contract.api import WorkerView
from service.http.auth import Service, Viewer
from service.http.paging import Cursor, Limit, Page
from service.http.transactions import Reading
from service.queries.workers import load_workers_page
from service.views.news import view_worker

router = APIRouter(tags=["overview"])


@router.get("/workers", operation_id="list_workers")
def list_workers(
    session: Reading, context: Service, _: Viewer, limit: Limit = 200, cursor: Cursor = None
) -> Page[WorkerView]:
    """List the workers that ever claimed."""
    rows, after = load_workers_page(session, limit=limit, after=cursor)
    now = context.now()
    return Page[WorkerView](items=[view_worker(row, now) for row in rows], next_cursor=after)
