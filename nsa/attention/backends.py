"""Which implementation serves a call, and why not the others?"""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Callable

import torch
from torch import Tensor

logger = logging.getLogger(__name__)


class BackendUnavailableError(ValueError):
    """The requested attention backend cannot serve the call; the message says why."""


# Half precision on tensor cores, and the first with a bf16 unit.
_OLDEST_CAPABILITY = (8, 0)
_WIDEST_HEAD = 256
_WIDEST_BLOCK = 128
# One block of keys and one of values must fit into shared memory beside the queries.
_LARGEST_BLOCK_BYTES = 64 * 1024
_MOST_HEADS = 64


@functools.cache
def _triton_reason(device: torch.device) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    import triton

    if triton.knobs.runtime.interpret:
        return None
    if device.type != "cuda":
        return f"its kernels need CUDA, not {device.type} (or TRITON_INTERPRET=1, for tests)"
    if torch.cuda.get_device_capability(device) < _OLDEST_CAPABILITY:
        return "its kernels need compute capability 8.0"
    return None


def triton_call_reason(q: Tensor, groups: int, l_sel: int) -> str | None:
    """Why the Triton kernels cannot serve this call on a device that they serve, None if they do.

    Args:
        q: Queries [B, S, H, D].
        groups: Key/value heads.
        l_sel: Tokens in a selection block.
    """
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"its kernels compute in fp32, fp16 and bf16, not {q.dtype}"
    if q.shape[-1] > _WIDEST_HEAD:
        return f"its tiles end at D = {_WIDEST_HEAD}, not {q.shape[-1]}"
    if l_sel > _WIDEST_BLOCK:
        return f"its tiles end at l_sel = {_WIDEST_BLOCK}, not {l_sel}"
    if l_sel * q.shape[-1] * q.element_size() > _LARGEST_BLOCK_BYTES:
        return f"a block of {l_sel} keys of D = {q.shape[-1]} in {q.dtype} exceeds its tiles"
    if q.shape[2] // groups > _MOST_HEADS:
        return f"its tiles end at {_MOST_HEADS} heads in a group, not {q.shape[2] // groups}"
    return None


def _torch_reason(device: torch.device) -> str | None:
    return None if device.type in ("cpu", "cuda") else f"tested on cpu and cuda, not {device.type}"


_REASONS: dict[str, Callable[[torch.device], str | None]] = {
    "reference": lambda _device: None,
    "torch": _torch_reason,
    "triton": _triton_reason,
}


def available_backends(device: torch.device | str = "cpu") -> dict[str, str | None]:
    """Say which backends can serve tensors on a device.

    Args:
        device: Where the tensors live.

    Returns:
        Backend name to None when it can serve, else to the reason why it cannot.
    """
    return {name: reason(torch.device(device)) for name, reason in _REASONS.items()}


@functools.cache
def _announce(kind: str, name: str) -> None:
    logger.info("attention backend for %s: %s", kind, name)


def choose_backend(requested: str, device: torch.device) -> str:
    """Resolve `auto`, or check that the requested backend can serve.

    Raises:
        BackendUnavailableError: Unknown name, or a backend that cannot serve this device.
    """
    if requested == "auto":
        # Triton stays opt-in until `bench/gpu.py` has shown it right and faster on a GPU. It is
        # not even asked: importing it takes seconds.
        name = "torch" if _torch_reason(device) is None else "reference"
        _announce(device.type, name)
        return name
    if requested in _REASONS and (reason := _REASONS[requested](device)) is None:
        return requested
    serving = [name for name, reason in available_backends(device).items() if reason is None]
    why = (
        f"attention backend {requested!r} cannot serve this call: {reason}"
        if requested in _REASONS
        else f"unknown attention backend {requested!r}"
    )
    raise BackendUnavailableError(f"{why}; available here: auto, {', '.join(serving)}")
