"""Database access of routes.

`Reading` is a session of the request's own, closed before the answer leaves. `Writing` runs a
function in one transaction in somebody's name, and returns its result after the commit.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

from fastapi import Depends
from pydantic import BaseModel

from service.context import Context
from service.db.store import Session
from service.experiments.lifecycle import Deed
from service.http.auth import Principal, Service
from service.http.idempotency import answer_once

_P = ParamSpec("_P")
_T = TypeVar("_T")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """A creating POST, as far as it is known again when it is repeated."""

    caller: Principal
    route: str
    key: str | None
    """Its Idempotency-Key."""
    body: BaseModel


@dataclass(frozen=True, slots=True)
class Writer:
    """The writer's queue, for the routes of one service."""

    context: Context

    def __call__(
        self,
        actor: str,
        change: Callable[Concatenate[Deed, _P], _T],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        """Do something in somebody's name, and return what came of it after the commit.

        Raises:
            Unavailable: the database does not answer, or too many wait for it.
        """
        return self.context.write(actor, change, *args, **kwargs)

    def once(
        self,
        creation: Creation,
        create: Callable[Concatenate[Deed, _P], dict[str, Any]],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> dict[str, Any]:
        """Create something, or return the answer that was stored when the same was asked before.

        Raises:
            Rejected, Conflict: see `answer_once`.
            Unavailable: the database does not answer, or too many wait for it.
        """
        said = creation.body.model_dump(mode="json") if creation.key is not None else None

        def change(deed: Deed) -> dict[str, Any]:
            return answer_once(
                deed.session,
                actor=creation.caller.key_id,
                route=creation.route,
                key=creation.key,
                body=said,
                now=deed.now,
                create=lambda: create(deed, *args, **kwargs),
            )

        return self(creation.caller.actor, change)


async def _get_writer(context: Service) -> Writer:
    return Writer(context)


Writing = Annotated[Writer, Depends(_get_writer)]
