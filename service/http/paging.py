"""How are long lists answered? In pages: `?limit=&cursor=` → `{items, next_cursor}`."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, ConfigDict
from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute, Session

from gonogo.contract.ids import Kind, is_id
from service.http.problems import BadRequest

_T = TypeVar("_T")
_Row = TypeVar("_Row")

Limit = Annotated[int, Query(ge=1, le=1000, description="Items in this page.")]
Cursor = Annotated[
    str | None,
    Query(
        max_length=200,
        pattern=r"^[A-Za-z0-9_.-]+$",
        description="`next_cursor` of the page before.",
    ),
]


class Page(BaseModel, Generic[_T]):
    """One page of a list; `next_cursor` is null on the last."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    items: list[_T]
    next_cursor: str | None = None


def load_page(
    session: Session,
    query: Select[_Row],
    key: "InstrumentedAttribute[Any]",
    *,
    limit: int,
    after: Any = None,
    newest_first: bool = False,
) -> tuple[Sequence[_Row], str | None]:
    """Return the rows beyond `after` in the order of `key`, and the cursor of the next page."""
    if after is not None:
        query = query.where(key < after if newest_first else key > after)
    query = query.order_by(key.desc() if newest_first else key).limit(limit + 1)
    rows = session.scalars(query).all()
    if len(rows) <= limit:
        return rows, None
    return rows[:limit], str(getattr(rows[limit - 1], key.key))


def number_cursor(cursor: str | None) -> int | None:
    """Return a cursor that counts.

    Raises:
        BadRequest: it does not.
    """
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        raise BadRequest(f"cursor: {cursor!r} is not the `next_cursor` of a page of this list")
    return int(cursor)


def id_cursor(cursor: str | None, kind: Kind) -> str | None:
    """Return a cursor that is an id.

    Raises:
        BadRequest: it is not.
    """
    if cursor is not None and not is_id(cursor, kind):
        raise BadRequest(f"cursor: {cursor!r} is not the `next_cursor` of a page of this list")
    return cursor


def page_of(
    rows: Sequence[_Row], next_cursor: str | None, view: Callable[[_Row], Any]
) -> dict[str, Any]:
    """Return a page as JSON."""
    return {"items": [view(row) for row in rows], "next_cursor": next_cursor}
