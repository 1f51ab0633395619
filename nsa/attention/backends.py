"""Choose the implementation that serves a call, and say why not another.

`auto` is `torch`. On a GPU it is `triton` where a proof (proof.py) says that Triton is right and
faster there. On a CPU neither Triton nor the proof is imported.
"""

from __future__ import annotations

import functools
import importlib.util
import logging

import torch
from torch import Tensor

from nsa.attention.counters import Choice
from nsa.attention.kernels import Kernels, asked_kernels
from nsa.attention.settings import c_compiler

logger = logging.getLogger(__name__)

# Half precision on tensor cores, and the first generation with a bf16 unit.
_OLDEST_CAPABILITY = (8, 0)
_WIDEST_HEAD, _WIDEST_BLOCK, _MOST_HEADS = 256, 128, 64
# One block of keys and one of values must fit into shared memory beside the queries: 163 KB on
# data-centre GPUs since capability 8.0, 99 KB on others.
_LARGEST_BLOCK_BYTES, _WIDE_SHARED_BYTES = 32 * 1024, 163 * 1024
_NARROW_HEAD, _LARGEST_NARROW_BLOCK_BYTES = 64, 16 * 1024


class BackendUnavailableError(ValueError):
    """The requested attention backend cannot serve the call; the message says why."""


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
    if c_compiler() is None:
        return "Triton needs a C compiler (gcc, clang, or one that CC names), and there is none"
    return None


def available_backends(device: torch.device | str = "cpu") -> dict[str, str | None]:
    """Return each backend with None if it can serve tensors on a device, else with the reason."""
    device = torch.device(device)
    tested = device.type in ("cpu", "cuda")
    return {
        "reference": None,
        "torch": None if tested else f"tested on cpu and cuda, not {device.type}",
        "triton": _triton_reason(device),
    }


@functools.cache
def _shared_bytes(device: torch.device) -> int:
    """Shared memory that one program may use."""
    if device.type != "cuda":
        return _WIDE_SHARED_BYTES
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", _WIDE_SHARED_BYTES)


def triton_call_reason(q: Tensor, groups: int, l_sel: int) -> str | None:
    """Why the Triton kernels cannot serve queries [B, S, H, D] on a device that they serve."""
    H, D = q.shape[2:]
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"its kernels compute in fp32, fp16 and bf16, not {q.dtype}"
    if D > _WIDEST_HEAD:
        return f"its tiles end at D = {_WIDEST_HEAD}, not {D}"
    if l_sel > _WIDEST_BLOCK:
        return f"its tiles end at l_sel = {_WIDEST_BLOCK}, not {l_sel}"
    block_bytes = l_sel * D * q.element_size()
    narrow = _shared_bytes(q.device) < _WIDE_SHARED_BYTES
    if narrow and (D > _NARROW_HEAD or block_bytes > _LARGEST_NARROW_BLOCK_BYTES):
        return f"its tiles for D = {D} and l_sel = {l_sel} need 163 KB of shared memory"
    if block_bytes > _LARGEST_BLOCK_BYTES:
        return f"a block of {l_sel} keys of D = {D} in {q.dtype} exceeds its tiles"
    if H // groups > _MOST_HEADS:
        return f"its tiles end at {_MOST_HEADS} heads in a group, not {H // groups}"
    return None


@functools.cache
def _announce(device: str, choice: Choice) -> None:
    slow = device == "cuda" and choice.path != "triton"
    why = f" ({choice.reason})" if choice.reason else ""
    level = logging.WARNING if slow else logging.INFO
    logger.log(level, "attention backend for %s: %s%s", device, choice.path, why)


@functools.cache
def _unproven(device: torch.device, head_dim: int, heads: int, dtype: torch.dtype) -> str:
    """Why this machine has not shown that Triton serves such heads of a group."""
    from nsa.attention.proof import Subject, reason_against  # nothing for a CPU

    index = torch.cuda.current_device() if device.index is None else device.index
    name = str(dtype).removeprefix("torch.")
    return reason_against(
        Subject(device=f"cuda:{index}", head_dim=head_dim, heads=heads, dtype=name)
    )


def _auto(q: Tensor, groups: int, by: str, call_reason: str | None) -> Choice:
    device, (H, D) = q.device, q.shape[2:]
    if device.type not in ("cpu", "cuda"):
        return Choice("reference", f"torch is tested on cpu and cuda, not {device.type}")
    if by or device.type == "cpu":
        return Choice("torch", by)
    reason = call_reason or _triton_reason(device) or _unproven(device, D, H // groups, q.dtype)
    return Choice("torch", reason) if reason else Choice("triton")


def choose_backend(
    requested: str, q: Tensor, groups: int, l_sel: int, kernels: Kernels | None = None
) -> Choice:
    """Resolve `auto`, or check that the requested backend can serve.

    On a GPU the first `auto` of a machine for such heads makes its proof, which takes a minute.

    Args:
        requested: auto, reference, torch or triton.
        q: Queries [B, S, H, D]; their content is not looked at.
        groups: Key/value heads.
        l_sel: Tokens in a selection block.
        kernels: Foreign kernels that are asked for; default those of `use_kernels`.

    Raises:
        BackendUnavailableError: Unknown name, a backend that cannot serve, or one that calls no
            foreign kernels where some are asked for.
    """
    kernels = asked_kernels() if kernels is None else kernels
    by = f"{kernels.asked_by or 'the caller'} chooses its kernels" if kernels.chosen else ""
    call_reason = triton_call_reason(q, groups, l_sel)
    if requested == "auto":
        choice = _auto(q, groups, by, call_reason)
        _announce(q.device.type, choice)
        return choice
    known = available_backends(q.device)
    reason = known.get(requested) or (call_reason if requested == "triton" else None)
    if requested not in known:
        why = f"unknown attention backend {requested!r}"
    elif reason is not None:
        why = f"attention backend {requested!r} cannot serve this call: {reason}"
    elif by and requested != "torch":
        why = f"attention backend {requested!r} calls no foreign kernels, but {by}: take auto or"
        why += " torch"
    else:
        return Choice(requested, f"asked for; {by}" if by else "asked for")
    serving = ", ".join(name for name, reason in known.items() if reason is None)
    raise BackendUnavailableError(f"{why}; available here: auto, {serving}")
