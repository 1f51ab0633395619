"""How is an alert posted? Once; no redirect is followed, and only the status is read.

A receiver that moved must be subscribed anew. What this loads is a twelfth of the service's memory,
so it is imported by who has something to post.
"""

import logging

import httpx

from gonogo.contract.api import AlertBody
from gonogo.contract.errors import Rejected
from service.alerts.message import Answer, Target, encode_body, sign
from service.alerts.reach import check_reach

_GONE = 410
logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log addresses, which may be secrets


def open_client(timeout_s: float) -> httpx.Client:
    """Return a client that waits so long for each part of an answer; no proxy is asked."""
    return httpx.Client(timeout=timeout_s, trust_env=False)


def post_alert(
    client: httpx.Client, target: Target, alert: str, body: AlertBody, now: float
) -> Answer:
    """Try once to deliver an alert; whatever goes wrong is the answer."""
    text = encode_body(body)
    try:
        check_reach(target.url)
        headers = sign(text, alert, target.secret, now)
        with client.stream(
            "POST", target.url, content=text.encode(), headers=headers, follow_redirects=False
        ) as answer:
            if answer.is_success:
                return Answer(error=None)
            return Answer(error=f"HTTP {answer.status_code}", gone=answer.status_code == _GONE)
    except (httpx.HTTPError, httpx.InvalidURL, Rejected, ValueError) as error:
        return Answer(error=f"{type(error).__name__}: {error}"[:300])
