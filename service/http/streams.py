"""Live events of an experiment: server-sent events from the append-only table.

`id` is the experiment's `seq`, so a reader that reconnects with `Last-Event-ID` misses nothing and
gets nothing twice. Between events, `progress` messages (without an id) carry step, loss and speed.
A stream ends when its key is revoked.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from fastapi.sse import ServerSentEvent
from starlette.concurrency import run_in_threadpool

from gonogo.contract.canonical import wire_value
from service.context import Context
from service.db.schema import ExperimentRow
from service.db.store import Session
from service.instants import instant
from service.queries.callers import is_living
from service.queries.experiments import load_events
from service.queries.runs import Going, load_going
from service.views.rows import view_event

POLL_S = 0.5
_BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class _News:
    after: int
    events: list[dict[str, Any]]
    progress: dict[str, Any] | None
    is_allowed: bool
    """Whether the key of the stream is not revoked."""


async def stream_events(
    context: Context, experiment: str, *, after: int, follow: bool, key_id: str
) -> AsyncIterator[ServerSentEvent]:
    """Yield the events with `seq` > `after`; with `follow`, also those of the future."""
    shown: dict[str, Any] | None = None
    yield ServerSentEvent(retry=1000)
    while not context.closing.is_set():
        news = await run_in_threadpool(_load_news, context, experiment, after, key_id)
        if not news.is_allowed:
            return
        after = news.after
        for event in news.events:
            after = event["seq"]
            yield _message(event["type"], event, after)
        if news.progress is not None and news.progress != shown:
            shown = news.progress
            yield _message("progress", shown)
        if len(news.events) == _BATCH:
            continue
        if not follow:
            return
        await asyncio.sleep(POLL_S)


def _message(kind: str, data: Any, number: int | None = None) -> ServerSentEvent:
    """Return one event, in ASCII: some readers take U+2028 for the end of a line."""
    text = json.dumps(wire_value(data), separators=(",", ":"))
    return ServerSentEvent(raw_data=text, event=kind, id=None if number is None else str(number))


def _load_news(context: Context, experiment: str, after: int, key_id: str) -> _News:
    def load(session: Session) -> _News:
        row = session.get(ExperimentRow, experiment)
        last = 0 if row is None else row.event_seq
        start = after if after <= last else 0  # a restored database may have lost events
        rows = load_events(session, experiment, after=start, limit=_BATCH) if last > start else ()
        active = load_going(session, [experiment])
        return _News(
            after=start,
            events=[view_event(row).model_dump(mode="json") for row in rows],
            progress=_progress(active[-1]) if active else None,
            is_allowed=is_living(session, key_id),
        )

    return context.store.read(load)


def _progress(run: Going) -> dict[str, Any]:
    loss = run.progress.loss
    return {
        "run": run.run,
        "phase": run.phase,
        "state": run.state,
        "step": run.progress.step,
        "loss": None if loss is None else float(loss),
        "toks_per_s": run.progress.toks_per_s,
        "last_heartbeat_at": instant(run.progress.heartbeat_at),
    }
