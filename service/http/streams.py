"""How are events followed live? Server-sent events from the append-only table.

`id` is the experiment's `seq`: whoever reconnects with `Last-Event-ID` misses nothing and gets
nothing twice. Between events, `progress` messages (without an id) carry step, loss and speed of the
run; a comment every 15 s keeps the connection.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from gonogo.contract.canonical import wire_value
from gonogo.contract.lifecycle import RunState
from service.context import Context
from service.db.schema import EventRow, ProgressRow, RunRow
from service.http.problems import TooMany
from service.instants import instant
from service.views.news import view_event

POLL_S = 0.25
PING_S = 15.0
MAX_STREAMS = 200
_BATCH = 500
_open = threading.BoundedSemaphore(MAX_STREAMS)


def stream_events(
    context: Context, experiment: str, *, after: int, follow: bool
) -> AsyncIterator[str]:
    """Return the stream of an experiment's events with `seq` > `after`.

    Raises:
        TooMany: too many streams are open.
    """
    if not _open.acquire(blocking=False):
        raise TooMany("too many event streams are open")
    return _stream(context, experiment, after, follow)


async def _stream(
    context: Context, experiment: str, after: int, follow: bool
) -> AsyncIterator[str]:
    shown: dict[str, Any] | None = None
    quiet_s = 0.0
    try:
        yield "retry: 1000\n\n"
        while not context.closing.is_set():
            events, progress = await run_in_threadpool(_load, context, experiment, after)
            for event in events:
                after = event["seq"]
                yield format_event(event["type"], event, after)
            if progress is not None and progress != shown:
                shown = progress
                yield format_event("progress", progress)
            if len(events) == _BATCH:
                continue
            if not follow:
                return
            quiet_s = 0.0 if events else quiet_s + POLL_S
            if quiet_s >= PING_S:
                quiet_s = 0.0
                yield ": still here\n\n"
            await asyncio.sleep(POLL_S)
    finally:
        _open.release()


def format_event(kind: str, data: Any, number: int | None = None) -> str:
    """Return one server-sent event."""
    head = f"id: {number}\n" if number is not None else ""
    text = json.dumps(wire_value(data), ensure_ascii=False, separators=(",", ":"))
    return f"{head}event: {kind}\ndata: {text}\n\n"


def _load(
    context: Context, experiment: str, after: int
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    def work(session: Session) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        query = (
            select(EventRow)
            .where(EventRow.experiment == experiment, EventRow.seq > after)
            .order_by(EventRow.seq)
            .limit(_BATCH)
        )
        events = [view_event(row).model_dump(mode="json") for row in session.scalars(query)]
        return events, _progress(session, experiment)

    return context.store.read(work)


def _progress(session: Session, experiment: str) -> dict[str, Any] | None:
    """Return what the living run is at, or None."""
    query = (
        select(RunRow, ProgressRow)
        .join(ProgressRow, ProgressRow.run == RunRow.id)
        .where(RunRow.experiment == experiment, RunRow.state != RunState.ENDED.value)
    )
    found = session.execute(query).first()
    if found is None or found[0].state == RunState.QUEUED:
        return None
    run, progress = found
    return {
        "run": run.id,
        "phase": run.phase,
        "state": run.state,
        "step": progress.step,
        "loss": float(progress.loss) if progress.loss is not None else None,
        "toks_per_s": progress.toks_per_s,
        "last_heartbeat_at": instant(progress.heartbeat_at),
    }
