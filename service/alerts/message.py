"""What does a receiver get? One signed POST after the Standard Webhooks specification.

`webhook-id` is the alert's id, equal on every redelivery, so a receiver can drop what it has seen.
The body is signed with the subscription's secret together with id and time.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from standardwebhooks import Webhook

from gonogo import __version__
from gonogo.contract.api import AlertBody
from gonogo.contract.canonical import wire_value

TIMEOUT_S = 5.0


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
