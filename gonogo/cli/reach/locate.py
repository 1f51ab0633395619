"""Where is the service of a home? `GONOGO_URL`, else what the service wrote into `service.json`.

A service writes `{url, pid, host}` into its home when it listens, and leaves the file when it
ends. So the file may be stale: it is believed all the same (the service may be starting again on
the same port), and whoever gets no answer is told that its process is gone. A home that hosts
share has the service on one of them, and whoever is on another is told which. Where a scheduler's
nodes reach it is said, too, and not gone to: nobody here can see whose process listens there by
now, and the key would be sent to it.
"""

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gonogo.settings import REACHED_FILE, SERVICE_FILE

_NAMED = "GONOGO_URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """Where a service should be, and who says so."""

    url: str
    source: str
    """`GONOGO_URL`, the path of the file that names it, or `the default`."""
    stale: str | None = None
    """What is wrong with the file, when something is."""
    elsewhere: str | None = None
    """The host that the service is on, where that is another one than this."""
    far_url: str | None = None
    """Where it is reached from here, as far as that is known."""

    @property
    def is_named(self) -> bool:
        """Whether whoever types it has named this address."""
        return self.source == _NAMED

    def unanswered(self) -> str:
        """Return what to do when nobody answers there."""
        if self.stale is not None:
            return f"{self.stale}; start it with `gonogo up`"
        if self.elsewhere is not None:
            way = "" if self.far_url is None else f", or set GONOGO_URL={self.far_url}"
            where = f"the service of this home is on {self.elsewhere} ({self.source})"
            return f"{where}; type this there{way}"
        return f"{self.source} names this address; is it running? (`gonogo up`)"


def locate_service(named: str | None, home: Path, default: str) -> Located:
    """Return where the service of a home is.

    Args:
        named: GONOGO_URL, when it is set.
        home: GONOGO_HOME.
        default: the address where no file says anything.
    """
    if named:
        return Located(url=named.rstrip("/"), source=_NAMED)
    path = home / SERVICE_FILE
    try:
        found = json.loads(path.read_text())
        url, pid, host = str(found["url"]), int(found["pid"]), found.get("host")
    except FileNotFoundError:
        return Located(url=default.rstrip("/"), source="the default")
    except (OSError, ValueError, KeyError, TypeError):
        stale = f"{path} cannot be read as a service's address"
        return Located(url=default.rstrip("/"), source="the default", stale=stale)
    if isinstance(host, str) and host != socket.gethostname():
        far = _reached_at(home, host)
        return Located(url=url.rstrip("/"), source=str(path), elsewhere=host, far_url=far)
    gone = None if _lives(pid) else f"{path} is stale: its process {pid} is gone"
    return Located(url=url.rstrip("/"), source=str(path), stale=gone)


def _reached_at(home: Path, host: str) -> str | None:
    """Return where other hosts reach the service on `host`; None: it was not written for them."""
    try:
        url = str(json.loads((home / REACHED_FILE).read_text())["url"])
        return url if urlsplit(url).hostname == host.lower() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _lives(pid: int) -> bool:
    """Whether a process of this number exists here, ours or another user's."""
    try:
        os.kill(max(pid, 1), 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def key_refused(given: str | None, home: Path) -> str:
    """Return what the service has against the key, and what to do.

    Args:
        given: GONOGO_API_KEY, when it is set.
        home: GONOGO_HOME, whose `key` is used otherwise.
    """
    file = home / "key"
    if given:
        return f"does not know the key in GONOGO_API_KEY; unset it to use that of {file}"
    if not file.exists():
        return f"wants a key, and {file} is not there; set GONOGO_API_KEY, or GONOGO_HOME"
    return f"does not know the key in {file}; set GONOGO_API_KEY, or GONOGO_HOME to its own home"
