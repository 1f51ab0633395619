"""How is a moment written? RFC 3339 in UTC, to the millisecond."""

from datetime import UTC, datetime


def instant(seconds: float | None) -> str | None:
    """Return Unix seconds as RFC 3339 in UTC."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def stamp(seconds: float) -> str:
    """Return Unix seconds that are there as RFC 3339 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
