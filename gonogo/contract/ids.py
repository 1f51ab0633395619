"""Identifiers: a prefix for the kind, and a ULID that sorts by time."""

import re
from enum import StrEnum

from ulid import ULID

_ID = re.compile(r"(exp|run|dec|evt|alt|cmp|key|whk)_[0-9A-HJKMNP-TV-Z]{26}")


class Kind(StrEnum):
    """Prefixes of identifiers."""

    EXPERIMENT = "exp"
    RUN = "run"
    DECISION = "dec"
    EVENT = "evt"
    ALERT = "alt"
    CAMPAIGN = "cmp"
    KEY = "key"
    WEBHOOK = "whk"


def new_id(kind: Kind) -> str:
    """Return a fresh identifier, such as `run_01K…`."""
    return f"{kind.value}_{ULID()}"


def is_id(text: str, kind: Kind | None = None) -> bool:
    """Say whether `text` is an identifier (of `kind`)."""
    match = _ID.fullmatch(text)
    return match is not None and (kind is None or match.group(1) == kind.value)


SHORT_LENGTH = 8
_IN_TEXT = re.compile(rf"(?<![\w/]){_ID.pattern}(?![\w/])")


def short_id(text: str) -> str:
    """Return the short form of an identifier: `run_7Q2M9XKD`."""
    return f"{text[:4]}{text[-SHORT_LENGTH:]}" if is_id(text) else text


def shorten_ids(text: str) -> str:
    """Return a text with short identifiers; those in paths and addresses stay whole."""
    return _IN_TEXT.sub(lambda found: short_id(found[0]), text)
