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


def check_reach(url: str) -> None:
    """Refuse a URL whose host is, or leads to, a link-local, multicast or unspecified address.

    A name that cannot be looked up now is no reason: the try says so.

    Raises:
        Rejected: it is.
    """
    host = urlsplit(url).hostname or ""
    for address in _addresses(host):
        mapped = getattr(address, "ipv4_mapped", None) or address
        if mapped.is_link_local or mapped.is_multicast or mapped.is_unspecified:
            raise Rejected(f"{host} leads to {address}, where no webhook may lead")


def _addresses(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    try:
        return [ipaddress.ip_address(host)]
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [ipaddress.ip_address(str(row[4][0]).partition("%")[0]) for row in found]
