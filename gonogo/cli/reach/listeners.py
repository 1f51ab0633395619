"""Whose process listens at a port of this host? Before the home's key is sent to it.

A service leaves its address in its home when it ends, and nobody guards a port: until it is started
again, any other user of the host may listen there, and would be sent the key. Where the kernel does
not say who listens (another system, another network namespace), nobody is refused.
"""

import os
import pwd
import socket
import sys
from collections.abc import Collection, Iterator
from contextlib import closing
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from urllib.parse import urlsplit

from gonogo.contract.errors import Unavailable

_Address = IPv4Address | IPv6Address
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"
_ANY = (ip_address("0.0.0.0"), ip_address("::"))
_NEAR = {_ANY[0]: ip_address("127.0.0.1"), _ANY[1]: ip_address("::1")}
"""Where the kernel takes whoever asks for no address."""


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
        addresses = _addresses(host, port)
    except (OSError, ValueError):  # no address: nobody will be asked there
        return
    strangers: set[int] = set()
    for address in filter(_is_own, addresses):
        strangers |= listeners_at(address, port) - {0, *trusted}
    if strangers:
        name = _name_of(min(strangers))
        raise Unavailable(
            f"at {url} listens a process of {name}, and no service of yours: it is not sent your"
            " key; start yours with `gonogo up --port 0`, or name that one by GONOGO_URL"
        )


def listeners_at(address: _Address, port: int) -> set[int]:
    """Return the user numbers of the processes that listen at an address, as far as is told.

    Whoever listens at that very address is reached, and nobody who listens at all of them.
    """
    found: dict[_Address, set[int]] = {}
    for place, user in _listeners(port):
        found.setdefault(place, set()).add(user)
    all_of_them = _ANY if address.version == 4 else _ANY[1:]
    return next((found[place] for place in (address, *all_of_them) if place in found), set())


def _listeners(port: int) -> Iterator[tuple[_Address, int]]:
    """Yield the address and the user number of each listener at a port."""
    for table in _TABLES:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except (OSError, ValueError):
            continue
        for fields in map(str.split, lines):
            host, _, number = fields[1].rpartition(":")
            if fields[3] == _LISTENS and int(number, 16) == port:
                yield _parsed(host), int(fields[7])


def _parsed(text: str) -> _Address:
    """Return an address as the kernel's tables have it: words of four bytes, in its own order."""
    raw = bytes.fromhex(text)
    words = (raw[at : at + 4] for at in range(0, len(raw), 4))
    return _plain(ip_address(b"".join(w[::-1] if sys.byteorder == "little" else w for w in words)))


def _plain(address: _Address) -> _Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _addresses(host: str, port: int) -> set[_Address]:
    """Return where a host leads to.

    Raises:
        OSError, ValueError: nowhere.
    """
    rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    found = {_plain(ip_address(str(row[4][0]).partition("%")[0])) for row in rows}
    return {_NEAR.get(address, address) for address in found}


def _is_own(address: _Address) -> bool:
    """Say whether an address is one of this host's."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


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
