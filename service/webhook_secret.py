"""Secrets that sign alerts, after the Standard Webhooks specification."""

import base64
import binascii
import secrets

from gonogo.contract.errors import Rejected


def new_secret() -> str:
    """Return a fresh secret of 32 random bytes."""
    return f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"


def check_secret(secret: str) -> str:
    """Return a secret that can sign.

    Raises:
        Rejected: it is not `whsec_` and base64 of at least 24 bytes.
    """
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error as error:
        raise Rejected("webhook secret: expected whsec_ and base64") from error
    if len(key) < 24:
        raise Rejected(f"webhook secret: {len(key)} bytes; expected at least 24")
    return secret
