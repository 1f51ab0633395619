"""Kernels from elsewhere for the dense prefix and the window, which are ordinary attention.

PyTorch's flash kernel and the package flash-attn, for fp16 and bf16 on CUDA. PyTorch's own switches
(NSA_SDPA_NO_FLASH, NSA_SDPA_FLASH_ONLY) are obeyed. Counters say what served, and why not flash.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention

from nsa.attention.counters import Choice, Served, count

PIECES, SDPA, FLASH_ATTN = "pieces", "sdpa", "flash_attn"
SDPA_FLASH = f"{SDPA}:flash"
# Operations that are ordinary attention: a flash kernel could serve them.
_DENSE = frozenset(("dense", "prefix", "window"))

_HALF = (torch.float16, torch.bfloat16)
_WIDEST_HEAD = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What is asked for.

    Attributes:
        flash_attn: The package flash-attn where it is installed and serves (NSA_USE_FA2).
        asked_by: The toggle that has chosen, for the counters.
    """

    flash_attn: bool = False
    asked_by: str = ""

    @property
    def chosen(self) -> bool:
        """Whether anything is asked for: `auto` is torch then, since no other backend obeys."""
        return self != Kernels()


_asked = Kernels()


def use_kernels(kernels: Kernels) -> None:
    """What calls without a `kernels` argument of their own use from now on, in this process."""
    global _asked
    _asked = kernels


def asked_kernels() -> Kernels:
    """What `use_kernels` was last given."""
    return _asked


@functools.cache
def _flash_attn_missing() -> str:
    return "" if importlib.util.find_spec("flash_attn") else "flash-attn is not installed"


@functools.cache
def _windows_missing() -> str:
    """Why PyTorch's flash kernel cannot be given a window, empty when it can."""
    if importlib.util.find_spec("torch.nn.attention.varlen") is not None:
        from torch.nn.attention.varlen import varlen_attn

        if {"window_size", "enable_gqa"} <= set(inspect.signature(varlen_attn).parameters):
            return ""
    return f"torch {torch.__version__} has no flash attention with windows"


def _flash_reason(q: Tensor) -> str:
    """Why flash kernels cannot serve, empty when they can."""
    if q.device.type != "cuda":
        return f"flash kernels need CUDA, not {q.device.type}"
    if q.dtype not in _HALF:
        return f"flash kernels need fp16 or bf16, not {q.dtype}"
    return "" if q.shape[-1] <= _WIDEST_HEAD else f"flash kernels end at D = {_WIDEST_HEAD}"


def choose_kernel(kernels: Kernels, q: Tensor, *, window: bool) -> Choice:
    """Choose the kernel for the dense prefix, or for the window, of queries [B, S, H, D]."""
    flash, reason = _flash_reason(q), ""
    if kernels.flash_attn:
        reason = flash or _flash_attn_missing()
        if not reason:
            return Choice(path=FLASH_ATTN)
    switched_off = "" if torch.backends.cuda.flash_sdp_enabled() else "flash SDPA is switched off"
    # Only PyTorch's flash kernel knows windows, and only it beats the pieces.
    blocked = flash or switched_off or (_windows_missing() if window else "")
    return Choice(path=PIECES, reason=reason or blocked) if blocked else Choice(SDPA, reason)


def flash_share(rows: Iterable[Served]) -> float | None:
    """Share of the dense calls that a flash kernel served, 0 to 1; None where there were none."""
    dense = [row for row in rows if row.operation in _DENSE]
    calls = sum(row.calls for row in dense)
    by_flash = sum(row.calls for row in dense if row.path in (FLASH_ATTN, SDPA_FLASH))
    return round(by_flash / calls, 6) if calls else None


def attend_causally(
    operation: str,
    choice: Choice,
    q_BSHD: Tensor,
    k_BSGD: Tensor,
    v_BSGD: Tensor,
    scale: float,
    w: int | None,
) -> Tensor:
    """Causal attention, of a window of `w` tokens unless None, by a foreign kernel.

    Differentiable by autograd; counted as `operation`. Returns [B, S, H, D].
    """
    left = -1 if w is None else w - 1
    if choice.path == FLASH_ATTN:
        import flash_attn

        count(operation, FLASH_ATTN, choice.reason)
        return flash_attn.flash_attn_func(
            q_BSHD, k_BSGD, v_BSGD, softmax_scale=scale, causal=True, window_size=(left, 0)
        )
    if w is None:
        q, k, v = (x.transpose(1, 2) for x in (q_BSHD, k_BSGD, v_BSGD))
        # The question that SDPA asks itself next: microseconds, and it knows PyTorch's switches.
        kernel = torch._fused_sdp_choice(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        count(operation, _sdpa_path(kernel), choice.reason)
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        return out.transpose(1, 2)
    from torch.nn.attention.varlen import varlen_attn

    count(operation, SDPA_FLASH, choice.reason)
    B, S = q_BSHD.shape[:2]
    edges = torch.arange(0, (B + 1) * S, S, dtype=torch.int32, device=q_BSHD.device)
    q, k, v = (x.flatten(0, 1) for x in (q_BSHD, k_BSGD, v_BSGD))
    windowed = varlen_attn(
        q, k, v, edges, edges, S, S, scale=scale, window_size=(w - 1, 0), enable_gqa=True
    )
    assert isinstance(windowed, Tensor)
    return windowed.unflatten(0, (B, S))


@functools.cache
def _sdpa_path(kernel: int) -> str:
    """`sdpa:flash` and the like, of the number of a kernel."""
    return f"{SDPA}:{SDPBackend(kernel).name.lower().removesuffix('_attention')}"


def dense_attention(
    q_BSHD: Tensor, k_BSGD: Tensor, v_BSGD: Tensor, *, kernels: Kernels | None = None
) -> Tensor:
    """Full causal attention for models without NSA: flash-attn if asked for, else SDPA."""
    kernels = asked_kernels() if kernels is None else kernels
    reason = (_flash_reason(q_BSHD) or _flash_attn_missing()) if kernels.flash_attn else ""
    use_flash_attn = kernels.flash_attn and not reason
    choice = Choice(path=FLASH_ATTN if use_flash_attn else SDPA, reason=reason)
    return attend_causally("dense", choice, q_BSHD, k_BSGD, v_BSGD, q_BSHD.shape[-1] ** -0.5, None)
