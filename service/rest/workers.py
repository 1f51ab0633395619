"""The hosts that ever claimed a run."""

from typing import Any

from fastapi import APIRouter
from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.api import WorkerView
from service.db.schema import WorkerRow
from service.http.auth import Service, Viewer
from service.http.paging import Cursor, Limit, Page, load_page, page_of
from service.views.news import view_worker

router = APIRouter(tags=["overview"])


@router.get("/workers", operation_id="list_workers")
def list_workers(
    context: Service, _: Viewer, limit: Limit = 200, cursor: Cursor = None
) -> Page[WorkerView]:
    """List the workers that ever claimed."""

    def work(session: Session) -> dict[str, Any]:
        rows, after = load_page(
            session, select(WorkerRow), WorkerRow.name, limit=limit, after=cursor
        )
        return page_of(rows, after, lambda row: view_worker(row, context.now()))

    return Page[WorkerView](**context.store.read(work))
