"""Which implementation serves a call, and why not the others?"""

from __future__ import annotations

import functools
import logging

import torch

logger = logging.getLogger(__name__)


class BackendUnavailableError(ValueError):
    """The requested attention backend cannot serve the call; the message says why."""


def available_backends(device: torch.device | str = "cpu") -> dict[str, str | None]:
    """Say which backends can serve tensors on a device.

    Args:
        device: Where the tensors live.

    Returns:
        Backend name to None when it can serve, else to the reason why it cannot.
    """
    kind = torch.device(device).type
    return {
        "reference": None,
        "torch": None if kind in ("cpu", "cuda") else f"tested on cpu and cuda, not on {kind}",
        "triton": "its kernels are not part of this release",
    }


@functools.cache
def _announce(kind: str, name: str) -> None:
    logger.info("attention backend for %s: %s", kind, name)


def choose_backend(requested: str, device: torch.device) -> str:
    """Resolve `auto`, or check that the requested backend can serve.

    Raises:
        BackendUnavailableError: Unknown name, or a backend that cannot serve this device.
    """
    reasons = available_backends(device)
    serving = [name for name, reason in reasons.items() if reason is None]
    if requested == "auto":
        name = "torch" if "torch" in serving else "reference"
        _announce(device.type, name)
        return name
    if requested not in reasons:
        raise BackendUnavailableError(
            f"unknown attention backend {requested!r}; available here: auto, {', '.join(serving)}"
        )
    if (reason := reasons[requested]) is not None:
        raise BackendUnavailableError(
            f"attention backend {requested!r} cannot serve this call: {reason}; "
            f"available here: auto, {', '.join(serving)}"
        )
    return requested
