"""On which host is a run? Of one that a scheduler has, it is not that of who claimed it."""

from service.db.schema import RunRow


def ran_on(run: RunRow) -> str | None:
    """Return the host of a run, its first node's."""
    return (run.preflight or {}).get("host") or run.host


def hosts_of(run: RunRow) -> str:
    """Return where a run is, in words: its first host, and how many more there are."""
    more = int((run.order or {}).get("nodes", 1)) - 1
    first = f"host {ran_on(run)}"
    return first if more < 1 else f"{first} (and {more} more)"
