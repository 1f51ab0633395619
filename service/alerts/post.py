"""One signed POST of an alert, after the Standard Webhooks specification.

`webhook-id` is the alert's id, equal on every redelivery, so a receiver can drop duplicates. The
body is signed with the subscription's secret together with id and time. No redirect is followed,
and only the status of the answer is read.
"""

import asyncio
import ipaddress
import json
import logging
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import urlsplit

import httpx
from standardwebhooks import Webhook

from gonogo import __version__
from gonogo.contract.api import AlertBody
from gonogo.contract.canonical import wire_value
from gonogo.contract.errors import Rejected

TIMEOUT_S = 5.0
_GONE = 410
_PARTS = 3
"""Connecting, sending, the answer."""
logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log addresses, which may be secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where an alert goes."""

    url: str
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one try."""

    error: str | None
    """None: accepted."""
    gone: bool = False
    """The receiver wants no more (410)."""


def check_reach(url: str) -> None:
    """Refuse a URL that leads to a link-local, multicast or unspecified address.

    Link-local addresses hold the metadata services of clouds, with their credentials. A name that
    cannot be looked up now is accepted: the try will fail.
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


def sign(body: str, alert: str, secret: str, now: float) -> dict[str, str]:
    """Return the headers of one try at `now` (Unix seconds)."""
    at = datetime.fromtimestamp(int(now), UTC)
    return {
        "webhook-id": alert,
        "webhook-timestamp": str(int(now)),
        "webhook-signature": Webhook(secret).sign(alert, at, body),
        "content-type": "application/json",
        "user-agent": f"gonogo/{__version__}",
    }


def post_alert(
    target: Target, alert: str, body: AlertBody, now: float, *, timeout_s: float
) -> Answer:
    """Try once to deliver an alert; every error is the answer. `timeout_s` is for each part."""
    text = json.dumps(wire_value(body.model_dump(mode="json")), separators=(",", ":"))
    try:
        check_reach(target.url)
        headers = sign(text, alert, target.secret, now)
        status = asyncio.run(_post(target.url, text, headers, timeout_s))
    except TimeoutError:
        return Answer(error=f"no whole answer within {_PARTS * timeout_s:g} s")
    except (httpx.HTTPError, httpx.InvalidURL, Rejected, ValueError) as error:
        return Answer(error=f"{type(error).__name__}: {error}"[:300])
    if httpx.codes.is_success(status):
        return Answer(error=None)
    return Answer(error=f"HTTP {status}", gone=status == _GONE)


async def _post(url: str, text: str, headers: dict[str, str], timeout_s: float) -> int:
    """Return the status that a receiver answers; no proxy is asked."""
    async with (
        asyncio.timeout(_PARTS * timeout_s),
        httpx.AsyncClient(timeout=timeout_s, trust_env=False, verify=_certificates()) as client,
        client.stream(
            "POST", url, content=text.encode(), headers=headers, follow_redirects=False
        ) as answer,
    ):
        return answer.status_code


@lru_cache(maxsize=1)
def _certificates() -> ssl.SSLContext:
    """Return the trusted certificates; reading them takes longer than a try."""
    return httpx.create_ssl_context(trust_env=False)
