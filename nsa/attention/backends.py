"""Which implementation serves a call, and why not the others?

`auto` is `torch`, and on a GPU `triton` where a proof (proof.py) says that it is right and faster
there. On a CPU no proof is asked for, and neither Triton nor the proof is imported.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Callable

import torch
from torch import Tensor

from nsa.attention.choice import Choice, Proof, choose_by_proof
from nsa.attention.kernels import Kernels, asked_kernels
from nsa.attention.settings import c_compiler

logger = logging.getLogger(__name__)


class BackendUnavailableError(ValueError):
    """The requested attention backend cannot serve the call; the message says why."""


# Half precision on tensor cores, and the first with a bf16 unit.
_OLDEST_CAPABILITY = (8, 0)
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
        return "its kernels need compute capability 8.0"
    if c_compiler() is None:
        return "Triton needs a C compiler (gcc, clang, or one that CC names), and there is none"
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


@functools.cache
def _announce(kind: str, choice: Choice) -> None:
    why = f" ({choice.reason})" if choice.reason else ""
    logger.info("attention backend for %s: %s%s", kind, choice.path, why)


@functools.cache
def _proof(device: torch.device, dtype: torch.dtype) -> Proof | str:
    """The proof of a GPU, or why none is asked for."""
    if (reason := _triton_reason(device)) is not None:
        return reason
    from nsa.attention.proof import device_proof  # starts a process: nothing for a CPU

    return device_proof(device, dtype)


def judge_device(device: torch.device, proof: Proof | str | None) -> Choice:
    """What `auto` is.

    Args:
        device: Where the tensors live.
        proof: That of a GPU in the dtype of the call, or why there is none.
    """
    if (reason := _torch_reason(device)) is not None:
        return Choice("reference", f"torch is {reason}")
    if proof is None:
        return Choice("torch")
    return Choice("torch", proof) if isinstance(proof, str) else choose_by_proof(proof)


def _auto(
    device: torch.device, dtype: torch.dtype, kernels: Kernels, call_reason: str | None = None
) -> Choice:
    proof: Proof | str | None = None
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        proof = _asked_by(kernels) or call_reason or _proof(torch.device("cuda", index), dtype)
    choice = judge_device(device, proof)
    if choice == ("torch", "") and kernels.chosen:
        choice = Choice("torch", _asked_by(kernels))
    _announce(device.type, choice)
    return choice


def _asked_by(kernels: Kernels) -> str:
    """Why the backend that calls foreign kernels serves, empty where nobody has asked for them."""
    return f"{kernels.asked_by or 'the caller'} chooses its kernels" if kernels.chosen else ""


def choose_backend(
    requested: str, device: torch.device, dtype: torch.dtype, kernels: Kernels | None = None
) -> str:
    """Resolve `auto`, or check that the requested backend can serve.

    On a GPU the first `auto` of a machine makes its proof, which takes a minute.

    Args:
        requested: auto, reference, torch or triton.
        device: Where the tensors will live.
        dtype: That the queries will have.
        kernels: Foreign kernels that are asked for; default what `use_kernels` was given.

    Raises:
        BackendUnavailableError: Unknown name, a backend that cannot serve this device, or one that
            calls no foreign kernels where some are asked for.
    """
    kernels = asked_kernels() if kernels is None else kernels
    if requested == "auto":
        return _auto(device, dtype, kernels).path
    if requested in _REASONS and (reason := _REASONS[requested](device)) is None:
        if kernels.chosen and requested != "torch":
            raise BackendUnavailableError(
                f"attention backend {requested!r} calls no foreign kernels, "
                f"but {_asked_by(kernels)}: take auto or torch"
            )
        return requested
    serving = [name for name, reason in available_backends(device).items() if reason is None]
    why = (
        f"attention backend {requested!r} cannot serve this call: {reason}"
        if requested in _REASONS
        else f"unknown attention backend {requested!r}"
    )
    raise BackendUnavailableError(f"{why}; available here: auto, {', '.join(serving)}")


def choose_for_call(requested: str, q: Tensor, groups: int, l_sel: int, kernels: Kernels) -> Choice:
    """Who serves one call; arguments as `triton_call_reason` and `choose_backend`.

    Raises:
        BackendUnavailableError: The requested backend cannot.
    """
    call_reason = triton_call_reason(q, groups, l_sel)
    if requested == "auto":
        return _auto(q.device, q.dtype, kernels, call_reason)
    backend = choose_backend(requested, q.device, q.dtype, kernels)
    if backend == "triton" and call_reason:
        raise BackendUnavailableError(
            f"attention backend 'triton' cannot serve this call: {call_reason}"
        )
    return Choice(backend, f"asked for; {_asked_by(kernels)}" if kernels.chosen else "asked for")
