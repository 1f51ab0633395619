"""Pages of a long list, by a key that only grows."""

from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute, Session

_Row = TypeVar("_Row")


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
