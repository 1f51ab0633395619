"""Pages of long lists: `?limit=&cursor=` → `{items, next_cursor}`."""

from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, ConfigDict

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
