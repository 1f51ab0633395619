"""Call the kernel in C for one token.

It serves fp32 and bf16, heads of a multiple of 16 numbers, and few sequences: it uses one thread.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nsa.attention.cache import NsaCache
from nsa.attention.cpu.library import Kernel, load_library
from nsa.attention.tensors import FIRST, RECENT

KERNEL = Kernel.of("decode.c", "nsa_decode_fp32", "nsa_decode_bf16")
_NAMES = dict(zip((torch.float32, torch.bfloat16), KERNEL.functions, strict=True))
VECTOR = 16
"""Numbers in one of its vectors."""
MOST_AT_ONCE = 8
"""Sequences times groups that one thread serves sooner than PyTorch with all of its threads."""


class _Sizes(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("N", "R", "D", "t", "C", "blocks_apart", "tokens_apart", "ring_apart"),
            *("l", "d", "l_sel", "n_sel", "ring", "first", "recent", "width"),
        )
    ]


def call_reason(q: Tensor, gates: Tensor, cache: NsaCache) -> str:
    """Why the kernel does not serve this call, empty where it does; arguments as `decode`."""
    if q.device.type != "cpu":
        return f"it needs a CPU, not {q.device.type}"
    if type(q) is not Tensor or type(gates) is not Tensor or torch.compiler.is_compiling():
        return "these are no plain tensors"
    if q.dtype not in _NAMES or not q.dtype == gates.dtype == cache.k_sel.dtype:
        return f"it computes in fp32 and bf16, of one dtype, not {q.dtype} and {cache.k_sel.dtype}"
    if q.shape[-1] % VECTOR:
        return f"its vectors hold {VECTOR} numbers, and a head has {q.shape[-1]}"
    if len(cache.k_blocks) > MOST_AT_ONCE and torch.get_num_threads() > 1:
        return f"PyTorch has {torch.get_num_threads()} threads for {len(cache.k_blocks)} groups"
    return ""


Functions = dict[torch.dtype, Callable[..., Any]]


@functools.cache
def load_functions() -> Functions | str:
    """Return the kernel's function for each dtype, or why there is none."""
    library = load_library(KERNEL)
    if isinstance(library, str):
        return library
    found: Functions = {}
    for dtype, name in _NAMES.items():
        function = getattr(library, name)
        pointers = [ctypes.c_void_p] * 8
        function.argtypes = [ctypes.POINTER(_Sizes), *pointers, ctypes.c_float, *pointers[:3]]
        function.restype = None
        found[dtype] = function
    return found


def attend(
    functions: Functions, q: Tensor, gates: Tensor, cache: NsaCache, factor: float
) -> tuple[Tensor, Tensor]:
    """Attend for the last token in the cache; as `decode`, of a call that the kernel serves."""
    (B, _, H, D), G, sizes = q.shape, cache.k_sel.shape[1], cache.sizes
    ring, R = cache.k_ring.shape[2], H // G
    at, selectable = cache.length - 1, (cache.length - 1) // sizes.l_sel + 1
    selected = min(sizes.n_sel * sizes.l_sel, cache.length)
    longest = max(cache.blocks, selected, ring, selectable)
    width = -(-longest // VECTOR) * VECTOR
    said = _Sizes(
        B * G, R, D, at, cache.blocks,
        cache.k_blocks.stride(0), cache.k_sel.stride(1), cache.k_ring.stride(1),
        sizes.l, sizes.d, sizes.l_sel, sizes.n_sel, ring, FIRST, RECENT, width,
    )  # fmt: skip
    q, gates = q.contiguous(), gates.contiguous()
    # Queries, a branch and their sum; a row of shares a head; block sums and scores. What a process
    # makes tensors of by default is a caller's, and says nothing of these.
    room = torch.empty(3 * R * D + (R + 2) * width, dtype=torch.float32, device=q.device)
    out = torch.empty_like(q)
    ids = torch.empty(B, 1, G, sizes.n_sel, dtype=torch.int64, device=q.device)
    read = (
        q, gates, cache.k_blocks, cache.v_blocks, cache.k_sel, cache.v_sel, cache.k_ring,
        cache.v_ring,
    )  # fmt: skip
    functions[q.dtype](
        ctypes.byref(said), *(x.data_ptr() for x in read), factor,
        room.data_ptr(), out.data_ptr(), ids.data_ptr(),
    )  # fmt: skip
    return out, ids
