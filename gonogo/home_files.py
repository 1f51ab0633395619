"""By which files does a home say where its service is? Their writers and readers are apart."""

from pathlib import Path
from urllib.parse import quote

SERVICE_FILE = "service.json"
"""`{url, pid, host}`: of the service that began to listen last."""
REACHED_FILE = "reached.json"
"""`{v, url}`: where the nodes of a scheduler's runs reach it, as the home's worker does."""


def socket_url(file: Path) -> str:
    """Return the address of a Redis server on a socket, whatever stands in its path."""
    return f"unix://{quote(str(file))}"
