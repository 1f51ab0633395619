"""Which version of an experiment does a person act on? `ETag` and `If-Match`."""

from typing import Annotated

from fastapi import Header

from service.db.schema import ExperimentRow
from service.http.problems import Outdated

IfMatch = Annotated[
    str | None,
    Header(max_length=200, description="`ETag` of the experiment as you saw it, or `*`."),
]


def etag_of(row: ExperimentRow) -> str:
    """Return the version of an experiment: everything that happens to it is an event."""
    return f'"{row.event_seq}"'


def check_if_match(row: ExperimentRow, if_match: str | None) -> None:
    """Refuse an action that was meant for an older version.

    Raises:
        Outdated: `If-Match` names another version.
    """
    if if_match is None:
        return
    named = {part.strip() for part in if_match.split(",")}
    if "*" not in named and etag_of(row) not in named:
        raise Outdated
