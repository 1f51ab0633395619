"""Live events of experiments: server-sent events from the append-only table.

`id` is the experiment's `seq`: a reader that reconnects with `Last-Event-ID` misses nothing and
gets nothing twice. Between events, `progress` messages (without an id) carry step, loss and speed.
A comment every 15 s keeps the connection open. All streams of a process ask the database together,
four times a second; a stream ends when its key is revoked.
"""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from gonogo.contract.canonical import wire_value
from service.context import Context
from service.http.problems import TooMany
from service.instants import instant
from service.queries.callers import load_living_ids
from service.queries.experiments import load_events, load_last_seqs
from service.queries.runs import Going, load_going
from service.views.news import view_event

POLL_S = 0.25
PING_S = 15.0
MAX_STREAMS = 200
"""Streams of all keys; one key may have half of them."""
_BATCH = 500
Progress = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _News:
    """The state of the followed experiments."""

    seq: dict[str, int]
    """Experiment → number of its last event."""
    progress: dict[str, Progress]
    keys: frozenset[str]
    """The followers' keys that are not revoked."""


class Streams:
    """Every stream of one process.

    Args:
        context: the service.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._open: Counter[str] = Counter()
        """Key → number of its streams."""
        self._opening = threading.Lock()
        self._followed: Counter[str] = Counter()
        self._asking = asyncio.Lock()
        self._news = _News(seq={}, progress={}, keys=frozenset())
        self._asked_at = float("-inf")

    def follow(self, experiment: str, *, after: int, follow: bool, key_id: str) -> "EventStream":
        """Return the stream of an experiment's events with `seq` > `after`.

        Args:
            experiment: which one.
            after: number of the last event received.
            follow: whether to wait for future events.
            key_id: the caller's key; the stream ends when it is revoked.

        Raises:
            TooMany: too many streams are open, of all or of this key.
        """
        with self._opening:
            if self._open.total() >= MAX_STREAMS:
                raise TooMany("too many event streams are open")
            if self._open[key_id] >= MAX_STREAMS // 2:
                raise TooMany("too many event streams of this key are open")
            self._open[key_id] += 1
        then = partial(self._leave, key_id)
        return EventStream(self._stream(experiment, after, follow, key_id), then=then)

    def _leave(self, key_id: str) -> None:
        with self._opening:
            self._open[key_id] -= 1
            self._open = +self._open

    async def _stream(
        self, experiment: str, after: int, follow: bool, key_id: str
    ) -> AsyncGenerator[str]:
        shown: Progress | None = None
        quiet_s = 0.0
        self._followed[experiment] += 1
        try:
            yield "retry: 1000\n\n"
            while not self._context.closing.is_set():
                news = await self._ask(experiment, key_id)
                if key_id not in news.keys:
                    return  # it was revoked
                events: list[dict[str, Any]] = []
                if news.seq.get(experiment, 0) != after:
                    load = partial(_load, self._context, experiment, after)
                    after, events = await run_in_threadpool(load)
                for event in events:
                    after = event["seq"]
                    yield format_event(event["type"], event, after)
                progress = news.progress.get(experiment)
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
            self._followed[experiment] -= 1

    async def _ask(self, experiment: str, key_id: str) -> _News:
        """Return what is new, asked for all at once and not again before `POLL_S`."""
        async with self._asking:
            now = asyncio.get_running_loop().time()
            known = experiment in self._news.seq and key_id in self._news.keys
            if not known or now - self._asked_at >= POLL_S:
                followed, keys = list(+self._followed), list(self._open)
                self._news = await run_in_threadpool(_load_news, self._context, followed, keys)
                self._asked_at = now
            return self._news


class EventStream(StreamingResponse):
    """Server-sent events; closed with the answer, however early the caller has gone.

    Args:
        events: what is sent.
        then: called once it is over.
    """

    def __init__(self, events: AsyncGenerator[str], *, then: Callable[[], None]) -> None:
        super().__init__(
            events,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        self._events, self._then = events, then

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what there is."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._then()
            await self._events.aclose()


def format_event(kind: str, data: Any, number: int | None = None) -> str:
    """Return one server-sent event, in ASCII: some readers take U+2028 for the end of a line."""
    head = f"id: {number}\n" if number is not None else ""
    text = json.dumps(wire_value(data), separators=(",", ":"))
    return f"{head}event: {kind}\ndata: {text}\n\n"


def _load_news(context: Context, experiments: list[str], keys: list[str]) -> _News:
    return context.store.read(
        lambda session: _News(
            seq=load_last_seqs(session, experiments),
            progress={run.experiment: _progress(run) for run in load_going(session, experiments)},
            keys=load_living_ids(session, keys),
        )
    )


def _load(context: Context, experiment: str, after: int) -> tuple[int, list[dict[str, Any]]]:
    """Return the events after a number; all of them if the database lost that number."""

    def load(session: Any) -> tuple[int, list[dict[str, Any]]]:
        last = load_last_seqs(session, [experiment]).get(experiment, 0)
        start = after if after <= last else 0
        rows = load_events(session, experiment, after=start, limit=_BATCH)
        return start, [view_event(row).model_dump(mode="json") for row in rows]

    return context.store.read(load)


def _progress(run: Going) -> Progress:
    said = run.progress
    return {
        "run": run.run,
        "phase": run.phase,
        "state": run.state,
        "step": said.step,
        "loss": float(said.loss) if said.loss is not None else None,
        "toks_per_s": said.toks_per_s,
        "last_heartbeat_at": instant(said.heartbeat_at),
    }
