"""How is it said that something of the API will go? `Deprecation`, `Sunset`, and its successor.

RFC 9745 and RFC 8594; what may be expected of them stands in docs/reference/rest.md.
"""

from datetime import UTC, date, datetime, time
from email.utils import format_datetime


def deprecation_headers(
    since: date, *, successor: str, until: date | None = None
) -> dict[str, str]:
    """Return the headers of an answer to what is deprecated.

    Args:
        since: from which day on.
        successor: path of what to use instead.
        until: the day after which it may be gone; None: not while this version is served.
    """
    headers = {
        "Deprecation": f"@{int(_midnight(since).timestamp())}",
        "Link": f'<{successor}>; rel="successor-version"',
    }
    if until is not None:
        headers["Sunset"] = format_datetime(_midnight(until), usegmt=True)
    return headers


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
