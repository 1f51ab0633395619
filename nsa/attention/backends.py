"""Which implementation serves a call, and why not the others?

`auto` is `torch`, and on a GPU `triton` where a proof (proof.py) says that it is right and faster
there. On a CPU no proof is asked for, and neither Triton nor the proof is imported.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from nsa.attention.gpu.verdict import Proof, judge_proof

logger = logging.getLogger(__name__)


class BackendUnavailableError(ValueError):
    """The requested attention backend cannot serve the call; the message says why."""


# Half precision on tensor cores, and the first with a bf16 unit.
_OLDEST_CAPABILITY = (8, 0)
_TOO_OLD = "its kernels need compute capability 8.0"
_WIDEST_HEAD = 256
_WIDEST_BLOCK = 128
# One block of keys and one of values must fit into shared memory beside the queries: in 163 KB, as
# data-centre GPUs have it since capability 8.0. Others of that generation have 99 KB.
_LARGEST_BLOCK_BYTES = 32 * 1024
_WIDE_SHARED_BYTES = 163 * 1024
_NARROW_HEAD, _LARGEST_NARROW_BLOCK_BYTES = 64, 16 * 1024
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
        return _TOO_OLD
    return None


@functools.cache
def _shared_bytes(device: torch.device) -> int:
    """What a program may use of a multiprocessor's shared memory."""
    if device.type != "cuda":
        return _WIDE_SHARED_BYTES
    properties = torch.cuda.get_device_properties(device)
    # PyTorch tells since 2.4.
    return getattr(properties, "shared_memory_per_block_optin", _WIDE_SHARED_BYTES)


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
    block_bytes = l_sel * q.shape[-1] * q.element_size()
    if _shared_bytes(q.device) < _WIDE_SHARED_BYTES and (
        q.shape[-1] > _NARROW_HEAD or block_bytes > _LARGEST_NARROW_BLOCK_BYTES
    ):
        return f"its tiles for D = {q.shape[-1]} and l_sel = {l_sel} need 163 KB of shared memory"
    if block_bytes > _LARGEST_BLOCK_BYTES:
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


class Chosen(NamedTuple):
    """Who serves, and why: empty where it is the preferred backend of `auto`."""

    backend: str
    reason: str = ""


@functools.cache
def _announce(kind: str, chosen: Chosen) -> None:
    why = f" ({chosen.reason})" if chosen.reason else ""
    logger.info("attention backend for %s: %s%s", kind, chosen.backend, why)


@functools.cache
def _proof(device: torch.device) -> Proof | str:
    """The proof of a GPU, or why none is asked for."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if torch.cuda.get_device_capability(device) < _OLDEST_CAPABILITY:
        return _TOO_OLD
    from nsa.attention.proof import device_proof  # starts a process: nothing for a CPU

    return device_proof(device)


def judge_device(
    device: torch.device,
    proof: Proof | str | None,
    dtype: str | None = None,
    call_reason: str | None = None,
) -> Chosen:
    """What `auto` is.

    Args:
        device: Where the tensors live.
        proof: That of a GPU, or why there is none.
        dtype: Of the call, None to ask for the device.
        call_reason: Why Triton cannot serve the call, None if it can.
    """
    if _torch_reason(device) is not None:
        return Chosen("reference", f"torch is {_torch_reason(device)}")
    if proof is None:
        return Chosen("torch")
    if isinstance(proof, str):
        return Chosen("torch", proof)
    return Chosen(*judge_proof(proof, dtype, call_reason))


def _auto(device: torch.device, dtype: str | None = None, call_reason: str | None = None) -> Chosen:
    proof = None
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        proof = _proof(torch.device("cuda", index))
    chosen = judge_device(device, proof, dtype, call_reason)
    _announce(device.type, chosen)
    return chosen


def choose_backend(requested: str, device: torch.device) -> str:
    """Resolve `auto`, or check that the requested backend can serve.

    On a GPU the first `auto` of a machine makes its proof, which takes minutes.

    Raises:
        BackendUnavailableError: Unknown name, or a backend that cannot serve this device.
    """
    if requested == "auto":
        return _auto(device).backend
    if requested in _REASONS and (reason := _REASONS[requested](device)) is None:
        return requested
    serving = [name for name, reason in available_backends(device).items() if reason is None]
    why = (
        f"attention backend {requested!r} cannot serve this call: {reason}"
        if requested in _REASONS
        else f"unknown attention backend {requested!r}"
    )
    raise BackendUnavailableError(f"{why}; available here: auto, {', '.join(serving)}")


def choose_for_call(requested: str, q: Tensor, groups: int, l_sel: int) -> Chosen:
    """Who serves one call; arguments as `triton_call_reason`.

    Raises:
        BackendUnavailableError: The requested backend cannot.
    """
    call_reason = triton_call_reason(q, groups, l_sel)
    if requested == "auto":
        return _auto(q.device, str(q.dtype).removeprefix("torch."), call_reason)
    backend = choose_backend(requested, q.device)
    if backend == "triton" and call_reason:
        raise BackendUnavailableError(
            f"attention backend 'triton' cannot serve this call: {call_reason}"
        )
    return Chosen(backend, "asked for")
