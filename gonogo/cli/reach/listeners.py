"""Whose process listens at a port of this host? Before the home's key is sent to it.

A service leaves its address in its home when it ends, and nobody guards a port: until it is started
again, any other user of the host may listen there, and would be sent the key. Where the kernel does
not say who listens (another system, another network namespace), nobody is refused.
"""

import os
import pwd
from collections.abc import Collection
from pathlib import Path
from urllib.parse import urlsplit

from gonogo.contract.errors import Unavailable

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"
_NEAR = ("localhost", "::1")


def check_listener(url: str, trusted: Collection[int]) -> None:
    """Refuse an address of this host where somebody else's process listens.

    Args:
        url: where the key would be sent; an address of another host is not looked at.
        trusted: user numbers that may have the key; root's processes may read it anyway.

    Raises:
        Unavailable: another user's process listens there.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
    except ValueError:  # no address: nobody will be asked there
        return
    if host not in _NEAR and not host.startswith("127."):
        return
    strangers = listeners_at(port) - {0, *trusted}
    if strangers:
        name = _name_of(min(strangers))
        raise Unavailable(
            f"at {url} listens a process of {name}, and no service of yours: it is not sent your"
            " key; start yours with `gonogo up --port 0`, or name that one by GONOGO_URL"
        )


def listeners_at(port: int) -> set[int]:
    """Return the user numbers of the processes that listen at a port, as far as is told."""
    found = set()
    for table in _TABLES:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except (OSError, ValueError):
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(int(fields[7]))
    return found


def trusted_of(key: Path) -> set[int]:
    """Return who may be sent the key in a file: whoever owns that, and we."""
    try:
        return {os.geteuid(), key.stat().st_uid}
    except OSError:
        return {os.geteuid()}


def _name_of(user: int) -> str:
    try:
        return f"user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"user {user}"
