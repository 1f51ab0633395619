"""How are instants shown to people? By their age, or in local time; `--json` keeps RFC 3339."""

from datetime import UTC, datetime

from gonogo.cli.output import duration

_RECENT_S = 2 * 86_400


def ago(instant: str | None, now: datetime | None = None) -> str:
    """Return an RFC 3339 instant as its age, or from two days on as a local date and time.

    Args:
        instant: RFC 3339, or None for never.
        now: default: the wall clock's.
    """
    if instant is None:
        return "–"
    moment = datetime.fromisoformat(instant)
    age_s = ((now or datetime.now(UTC)) - moment).total_seconds()
    if age_s >= _RECENT_S:
        return local(instant)
    return "now" if age_s < 1 else f"{_coarse(age_s)} ago"


def _coarse(seconds: float) -> str:
    """Return an age without seconds from a minute on, and without minutes from half a day on."""
    if 60 <= seconds < 3600:
        return f"{int(seconds // 60)} min"
    if seconds >= 43_200:
        return f"{int(seconds // 3600)} h"
    return duration(seconds)


def local(instant: str | None) -> str:
    """Return an RFC 3339 instant in this machine's time zone: `2026-03-01 14:05`."""
    if instant is None:
        return "–"
    return f"{datetime.fromisoformat(instant).astimezone():%Y-%m-%d %H:%M}"


def lasted(began: str | None, ended: str | None, now: datetime | None = None) -> str:
    """Return how long something took, or has taken until now."""
    if began is None:
        return "–"
    end = datetime.fromisoformat(ended) if ended else now or datetime.now(UTC)
    return duration(max(0.0, (end - datetime.fromisoformat(began)).total_seconds()))
