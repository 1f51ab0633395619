"""How is an alert posted? Once; no redirect is followed, and only the status is read.

A try ends in time, however slowly its answer comes: a thread that waits for a receiver which sends
a byte now and then would wait for ever, and the service's own end for that. A receiver that moved
must be subscribed anew. What this loads is a twelfth of the service's memory, so it is imported by
who has something to post.
"""

import asyncio
import logging
import ssl
from functools import lru_cache

import httpx

from gonogo.contract.api import AlertBody
from gonogo.contract.errors import Rejected
from service.alerts.message import Answer, Target, encode_body, sign
from service.alerts.reach import check_reach

_GONE = 410
_PARTS = 3
"""Connecting, sending, the answer."""
logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log addresses, which may be secrets


def post_alert(
    target: Target, alert: str, body: AlertBody, now: float, *, timeout_s: float
) -> Answer:
    """Try once to deliver an alert; whatever goes wrong is the answer.

    Args:
        target: where it goes.
        alert: its id.
        body: what it says.
        now: Unix seconds.
        timeout_s: for each part of the try, and three times that for the whole.
    """
    text = encode_body(body)
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
    """Return whom receivers are trusted by; reading them takes longer than a try."""
    return httpx.create_ssl_context(trust_env=False)
