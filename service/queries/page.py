"""Pages of a long list, by a key that only grows."""

from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, or_
from sqlalchemy.orm import InstrumentedAttribute, Session

from gonogo.contract.ids import SHORT_LENGTH

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


def id_matches(key: "InstrumentedAttribute[str]", text: str) -> ColumnElement[bool]:
    """Return whether an id begins with a text, such as `run_01K`, or is shown as it."""
    begins = key.startswith(text, autoescape=True)
    _, _, letters = text.partition("_")
    shown = len(letters) == SHORT_LENGTH
    return or_(begins, key.endswith(letters, autoescape=True)) if shown else begins
