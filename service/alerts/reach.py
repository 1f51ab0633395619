"""Where may a webhook lead? To no address that only the host itself, or its cloud, answers at.

Link-local addresses hold the metadata services of clouds, with their credentials. A name is looked
up when it is subscribed and again before each try, since it may lead elsewhere by then; one that
changes in the instant between that look and the connection is not caught. Loopback and private
networks are where many receivers are, so they are allowed.
"""

import ipaddress
import socket
from urllib.parse import urlsplit

from gonogo.contract.errors import Rejected

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "fd00:ec2::254",  # AWS
        "fd20:ce::254",  # Google
        "168.63.129.16",  # Azure
        "100.100.100.200",  # Alibaba
        "192.0.0.192",  # Oracle
    )
)
"""Where clouds answer their hosts beside link-local addresses."""
_HOLD_IPV4 = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "64:ff9b::/96",  # RFC 6052
            "64:ff9b:1::/48",  # RFC 8215
            "::ffff:0:0:0/96",  # RFC 7915
            "::/96",  # RFC 4291 2.5.5.1
        ),
    )
)
"""Of translators and tunnels; the IPv4 address is taken from the last four bytes."""


def check_reach(url: str) -> None:
    """Refuse a URL whose host is, or leads to, a link-local, multicast or unspecified address, or
    to one at which a cloud answers its hosts.

    A name that cannot be looked up now is no reason: the try says so.

    Raises:
        Rejected: it is, or its port is none.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        port = parts.port
    except ValueError as error:
        raise Rejected(f"{host}: {error}") from error
    if port == 0:
        raise Rejected(f"{host}: nobody listens at port 0")
    for address in _addresses(host):
        if any(map(_is_closed, (address, *_inside(address)))):
            raise Rejected(f"{host} leads to {address}, where no webhook may lead")


def _is_closed(address: _Address) -> bool:
    special = address.is_link_local or address.is_multicast or address.is_unspecified
    return special or address in _METADATA


def _inside(address: _Address) -> list[_Address]:
    """Return the IPv4 addresses to which a translator or a tunnel would take an IPv6 one."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(address in network for network in _HOLD_IPV4):
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    return [row for row in found if row is not None]


def _addresses(host: str) -> list[_Address]:
    try:
        return [ipaddress.ip_address(host)]
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [ipaddress.ip_address(str(row[4][0]).partition("%")[0]) for row in found]
