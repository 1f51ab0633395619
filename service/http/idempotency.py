"""Idempotency keys of creating POSTs: the same key and body get the stored answer.

The key is stored in the transaction that creates. Its scope is actor and route, for 24 hours.
"""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Header
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from gonogo.contract.canonical import digest
from gonogo.contract.errors import Conflict, Rejected
from service.db.schema import IdempotencyRow
from service.db.store import insert_if_new

KEPT_S = 86_400.0

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="Repeat safely: the same key and body create once.",
    ),
]


def answer_once(
    session: Session,
    *,
    actor: str,
    route: str,
    key: str | None,
    body: Any,
    now: float,
    create: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """Return the answer of `create`, or the one stored under this key.

    Raises:
        Rejected: the key was used for another body.
        Conflict: the first request with this key is still under way.
    """
    if key is None:
        return create()
    body_digest = digest(body)
    values = {"actor": actor, "route": route, "key": key, "body_digest": body_digest}
    session.execute(
        delete(IdempotencyRow).where(
            IdempotencyRow.actor == actor,
            IdempotencyRow.route == route,
            IdempotencyRow.key == key,
            IdempotencyRow.created_at < now - KEPT_S,
        )
    )
    if insert_if_new(session, IdempotencyRow, {**values, "created_at": now}):
        answer = create()
        row = session.get_one(IdempotencyRow, (actor, route, key))
        row.answer = answer
        return answer
    found = session.scalars(
        select(IdempotencyRow).where(
            IdempotencyRow.actor == actor, IdempotencyRow.route == route, IdempotencyRow.key == key
        )
    ).one()
    if found.body_digest != body_digest:
        raise Rejected("this Idempotency-Key was used for another body")
    if found.answer is None:
        raise Conflict("the first request with this Idempotency-Key is still under way")
    return found.answer
