"""What does a receiver get? One signed POST after the Standard Webhooks specification.

`webhook-id` is the alert's id, equal on every redelivery, so a receiver can drop what it has seen.
The body is signed with the subscription's secret together with id and time. Redirects are not
followed (a receiver that moved must be subscribed anew), and nothing of the answer but its status
is read.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime

import httpx
from standardwebhooks import Webhook

from gonogo import __version__
from gonogo.contract.api import AlertBody
from gonogo.contract.canonical import wire_value
from gonogo.contract.errors import Rejected
from service.alerts.reach import check_reach

TIMEOUT_S = 5.0
_GONE = 410


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
    """The receiver says that it wants no more (410)."""


def encode_body(body: AlertBody) -> str:
    """Return the exact text that is signed and sent; equal for equal alerts."""
    return json.dumps(wire_value(body.model_dump(mode="json")), separators=(",", ":"))


def sign(body: str, alert: str, secret: str, now: float) -> dict[str, str]:
    """Return the headers of one try.

    Args:
        body: the text that is sent.
        alert: id of the alert.
        secret: the subscription's, `whsec_…`.
        now: Unix seconds; receivers refuse what is minutes old.
    """
    at = datetime.fromtimestamp(int(now), UTC)
    return {
        "webhook-id": alert,
        "webhook-timestamp": str(int(now)),
        "webhook-signature": Webhook(secret).sign(alert, at, body),
        "content-type": "application/json",
        "user-agent": f"gonogo/{__version__}",
    }


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
