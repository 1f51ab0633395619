"""What routes ask FastAPI for: sessions, pages of lists, ETags and idempotency keys."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Concatenate, Generic, ParamSpec, TypeVar

from fastapi import Depends, Header, Query
from pydantic import BaseModel, ConfigDict
from sqlalchemy import select

from gonogo.contract.canonical import digest
from gonogo.contract.errors import Conflict, Rejected
from gonogo.contract.wire import Kind, is_id
from service.context import Context
from service.db.schema import ExperimentRow, IdempotencyRow
from service.db.store import Session, insert_if_new
from service.experiments.lifecycle import Deed
from service.http.answers import BadRequest, Outdated
from service.http.auth import Principal, Service

_P = ParamSpec("_P")
_T = TypeVar("_T")
KEPT_S = 86_400.0

Limit = Annotated[int, Query(ge=1, le=1000, description="Items in this page.")]
Cursor = Annotated[
    str | None,
    Query(
        max_length=200,
        pattern=r"^[A-Za-z0-9_.-]+$",
        description="`next_cursor` of the page before.",
    ),
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="Repeat safely: the same key and body create once.",
    ),
]
IfMatch = Annotated[
    str | None,
    Header(max_length=200, description="`ETag` of the experiment as you saw it, or `*`."),
]


class Page(BaseModel, Generic[_T]):
    """One page of a list; `next_cursor` is null on the last."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    items: list[_T]
    next_cursor: str | None = None


def number_cursor(cursor: str | None) -> int | None:
    """Return a cursor that is a number; BadRequest for any other."""
    if cursor is not None and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        raise _bad_cursor(cursor)
    return None if cursor is None else int(cursor)


def id_cursor(cursor: str | None, kind: Kind) -> str | None:
    """Return a cursor that is an id; BadRequest for any other."""
    if cursor is not None and not is_id(cursor, kind):
        raise _bad_cursor(cursor)
    return cursor


def _bad_cursor(cursor: str) -> BadRequest:
    return BadRequest(f"cursor: {cursor!r} is not the `next_cursor` of a page of this list")


def etag_of(row: ExperimentRow) -> str:
    """Return the version of an experiment: the number of its last event."""
    return f'"{row.event_seq}"'


def check_if_match(row: ExperimentRow, if_match: str | None) -> None:
    """Refuse an action that was meant for an older version; the progress of runs is none."""
    if if_match is None:
        return
    named = {part.strip().strip('"') for part in if_match.split(",")}
    if "*" not in named and str(row.event_seq) not in named:
        raise Outdated


async def open_session(context: Service) -> AsyncIterator[Session]:
    """Yield a session that reads; fewer are open than there are connections, so none deadlocks."""
    async with context.readers:
        session = context.store.open_session()
        try:
            yield session
        finally:
            if context.store.sqlite:
                session.close()  # gives a snapshot back, which waits for nothing
            elif session.in_transaction():
                # Not in a thread of the routes: all of those may wait for this very connection.
                await asyncio.to_thread(session.close)


Reading = Annotated[Session, Depends(open_session, scope="function")]


def create_once(
    context: Context,
    caller: Principal,
    route: str,
    key: str | None,
    body: BaseModel,
    create: Callable[Concatenate[Deed, _P], dict[str, Any]],
    *args: _P.args,
    **kwargs: _P.kwargs,
) -> dict[str, Any]:
    """Create something, or return the answer that was stored for the same key and body.

    The scope of `key`, an Idempotency-Key, is caller and route.
    """

    def change(deed: Deed) -> dict[str, Any]:
        if key is None:
            return create(deed, *args, **kwargs)
        place = {"actor": caller.key_id, "route": route, "key": key}
        sent = digest(body.model_dump(mode="json"))
        values = {**place, "body_digest": sent, "created_at": deed.now}
        is_new = insert_if_new(deed.session, IdempotencyRow, values)
        row = deed.session.scalars(select(IdempotencyRow).filter_by(**place)).one()
        if is_new:
            row.answer = create(deed, *args, **kwargs)
        elif row.body_digest != sent:
            raise Rejected("this Idempotency-Key was used for another body")
        elif row.answer is None:
            raise Conflict("the first request with this Idempotency-Key is not finished yet")
        return row.answer

    return context.write(caller.name, change)
