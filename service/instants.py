"""Moments as RFC 3339 in UTC, to the millisecond; out of range, the first or last day."""

from datetime import UTC, datetime

_FIRST = datetime(1, 1, 3, tzinfo=UTC).timestamp()
_LAST = datetime(9999, 12, 30, tzinfo=UTC).timestamp()


def instant(seconds: float | None) -> str | None:
    """Return Unix seconds as RFC 3339 in UTC."""
    return None if seconds is None else stamp(seconds)


def stamp(seconds: float) -> str:
    """Return Unix seconds that are there as RFC 3339 in UTC."""
    known = min(_LAST, max(_FIRST, seconds))  # NaN is the first day
    return datetime.fromtimestamp(known, UTC).isoformat(timespec="milliseconds")
