"""ETag, If-Match and 304 for experiments.

An `ETag` is `"VERSION-DIGEST"`: the number of the experiment's last event, and a digest of the
answer. `If-None-Match` compares both. `If-Match` compares the version alone, so that the progress
of a run does not refuse an approval.
"""

import hashlib
from typing import Annotated, Any

from fastapi import Header
from pydantic import BaseModel

from service.db.schema import ExperimentRow
from service.http.problems import Outdated

IfMatch = Annotated[
    str | None,
    Header(max_length=200, description="`ETag` of the experiment as you saw it, or `*`."),
]
IfNoneMatch = Annotated[
    str | None,
    Header(max_length=2000, description="`ETag` of the answer that you have, or `*`."),
]
ETAG_HEADER: dict[str, Any] = {
    "ETag": {
        "description": "Version of the experiment and digest of this answer.",
        "schema": {"type": "string"},
    }
}
"""For the `headers` of a documented answer."""


def etag_of(row: ExperimentRow, view: BaseModel) -> str:
    """Return the validator of an answer that shows an experiment."""
    digest = hashlib.sha256(view.model_dump_json().encode("utf-8", "replace")).hexdigest()[:16]
    return f'"{row.event_seq}-{digest}"'


def is_same(etag: str, if_none_match: str | None) -> bool:
    """Say whether the caller has this very answer already (a weak comparison)."""
    if if_none_match is None:
        return False
    named = {part.strip().removeprefix("W/") for part in if_none_match.split(",")}
    return "*" in named or etag in named


def check_if_match(row: ExperimentRow, if_match: str | None) -> None:
    """Refuse an action that was meant for an older version.

    Raises:
        Outdated: `If-Match` names another version.
    """
    if if_match is None:
        return
    named = {part.strip().strip('"').partition("-")[0] for part in if_match.split(",")}
    if "*" not in named and str(row.event_seq) not in named:
        raise Outdated
