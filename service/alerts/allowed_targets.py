"""Addresses that a webhook may have: not a link-local, multicast or unspecified address.

Link-local addresses hold the metadata services of clouds, with their credentials. A name is looked
up when it is subscribed and before each try. Loopback and private networks are allowed.
"""

import ipaddress
import socket
from urllib.parse import urlsplit

from gonogo.contract.errors import Rejected


def check_reach(url: str) -> None:
    """Refuse a URL whose host is, or leads to, an address where no webhook may lead.

    A name that cannot be looked up now is accepted: the try will fail.

    Raises:
        Rejected: such an address, or an invalid port.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        port = parts.port
    except ValueError as error:
        raise Rejected(f"{host}: {error}") from error
    if port == 0:
        raise Rejected(f"{host}: nobody listens at port 0")
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    for row in found:
        address = ipaddress.ip_address(str(row[4][0]).partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        if address.is_link_local or address.is_multicast or address.is_unspecified:
            raise Rejected(f"{host} leads to {address}, where no webhook may lead")
