"""The public operations: check a call, choose the backend, run it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nsa.attention.backends import choose_backend
from nsa.attention.compression import Compression
from nsa.attention.counters import count
from nsa.attention.kernels import Kernels, asked_kernels
from nsa.attention.packing import attend_sequences, document_lengths, sequence_lengths
from nsa.attention.reference import nsa_attention_reference
from nsa.attention.tensors import (
    Call,
    Tensors,
    check_compressed,
    check_documents,
    check_shapes,
    check_sizes,
)
from nsa.attention.torch_backend import nsa_attention_torch


def never_compiled(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Break the graph of torch.compile at a function that chooses and counts at each call."""

    @functools.wraps(operation)
    def run(*arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(operation)(*arguments, **options)
        return operation(*arguments, **options)

    return run


@never_compiled
def nsa_attention(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    gates: Tensor,
    *,
    l: int = 32,  # noqa: E741
    d: int = 16,
    l_sel: int = 64,
    n_sel: int = 16,
    w: int = 512,
    scale: float | None = None,
    compressed: tuple[Tensor, Tensor] | None = None,
    compression: Compression | None = None,
    backend: str = "auto",
    doc_ids: Tensor | None = None,
    kernels: Kernels | None = None,
    return_selection: bool = False,
) -> Any:
    """Native Sparse Attention: compressed, selected and window attention, gated and summed.

    Args:
        q: Queries [B, S, H, D]; head h reads group h // (H / G).
        k_cmp: Keys of the compressed branch [B, S, G, D].
        v_cmp: Values of the compressed branch [B, S, G, D].
        k_sel: Keys of the selected branch [B, S, G, D].
        v_sel: Values of the selected branch [B, S, G, D].
        k_win: Keys of the window branch [B, S, G, D].
        v_win: Values of the window branch [B, S, G, D].
        gates: Weights of the branches [B, S, H, 3] after the sigmoid: compressed, selected, window.
        l: Tokens in a compression block.
        d: Tokens between the starts of two compression blocks; divides l and l_sel.
        l_sel: Tokens in a selection block.
        n_sel: Blocks that each query selects, at least 3 (the first, its own, the one before).
        w: Tokens that a query sees in the window branch, itself included.
        scale: Factor on every query-key product; default 1 / sqrt(D).
        compressed: Compressed keys and values [B, C, G, D], C = max(0, (S - l) // d + 1); default
            what `compression` gives.
        compression: Makes blocks of k_cmp and v_cmp (compression.py); default the mean.
        backend: auto, reference, torch or triton.
        doc_ids: Integers [B, S]; a run of equal numbers is a document, attended as if it were
            alone. Not together with `compressed`.
        kernels: Foreign kernels that the torch backend may call; default those of `use_kernels`.
        return_selection: Also return the selected block ids.

    Returns:
        out [B, S, H, D] in the dtype of q. With return_selection the pair of out and the block
        ids [B, S, G, n_sel], int64, ascending, -1 padded at the end. Ids have no gradient.

    Raises:
        ValueError: Shapes, sizes or arguments that do not fit together.
        BackendUnavailableError: The backend cannot serve the call (a ValueError).
    """
    tensors = Tensors(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates)
    check_sizes(l, d, l_sel, n_sel, w)
    check_shapes(tensors)
    if compressed is not None:
        check_compressed(q, compressed, tensors.groups, l, d)
        if compression is not None or doc_ids is not None:
            raise ValueError("compressed excludes compression and doc_ids: give compression alone")
    if doc_ids is not None:
        check_documents(doc_ids, q)
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    call = Call(l=l, d=d, l_sel=l_sel, n_sel=n_sel, w=w, scale=scale, want_ids=return_selection)
    # The backends choose their precision themselves: autocast would round the scores.
    with torch.autocast(q.device.type, enabled=False):
        lengths = None
        if doc_ids is not None and len(doc_ids):
            lengths = [length for item in document_lengths(doc_ids) for length in item]
            tensors = Tensors(*(x.flatten(0, 1) for x in tensors))
        results = _attend(tensors, lengths, compressed, compression, backend, kernels, call)
        if lengths is not None:
            results = tuple(x.unflatten(0, q.shape[:2]) for x in results)
    return (results[0], results[1]) if return_selection else results[0]


@never_compiled
def nsa_attention_varlen(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    gates: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    l: int = 32,  # noqa: E741
    d: int = 16,
    l_sel: int = 64,
    n_sel: int = 16,
    w: int = 512,
    scale: float | None = None,
    compression: Compression | None = None,
    backend: str = "auto",
    kernels: Kernels | None = None,
    return_selection: bool = False,
) -> Any:
    """Native Sparse Attention over sequences laid end to end, each as if it were alone.

    Sequences of about one length share one call of the backend (packing.py). Arguments that are not
    listed are those of `nsa_attention`, with tensors [T, ...] instead of [B, S, ...].

    Args:
        cu_seqlens: Where each sequence begins, and the end of the last: int32 [B + 1], 0 to T. A
            sequence may be empty.
        max_seqlen: At least the length of the longest sequence.

    Returns:
        out [T, H, D]; with return_selection also the block ids [T, G, n_sel], counted from the
        first token of each sequence.

    Raises:
        ValueError: Shapes, sizes or `cu_seqlens` that do not fit together.
        BackendUnavailableError: The backend cannot serve the call (a ValueError).
    """
    check_sizes(l, d, l_sel, n_sel, w)
    if q.dim() != 3:
        raise ValueError(f"q must be [T, H, D], got {tuple(q.shape)}")
    tensors = Tensors(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates)
    lengths = [length for length in sequence_lengths(cu_seqlens, len(q), max_seqlen) if length]
    # Without any token: a batch of no sequences of one token.
    check_shapes(Tensors(*(x[None] if lengths else x[:, None] for x in tensors)))
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    call = Call(l=l, d=d, l_sel=l_sel, n_sel=n_sel, w=w, scale=scale, want_ids=return_selection)
    with torch.autocast(q.device.type, enabled=False):
        tensors = tensors if lengths else Tensors(*(x[:, None] for x in tensors))
        results = _attend(tensors, lengths or None, None, compression, backend, kernels, call)
    if not lengths:
        results = tuple(x[:, 0] for x in results)
    return (results[0], results[1]) if return_selection else results[0]


def _attend(
    tensors: Tensors,
    lengths: Sequence[int] | None,
    compressed: tuple[Tensor, Tensor] | None,
    compression: Compression | None,
    backend: str,
    kernels: Kernels | None,
    call: Call,
) -> tuple[Tensor, ...]:
    """Output, and the block ids if wanted; of sequences [T, ...] where `lengths` are given."""
    q = tensors.q if lengths is None else tensors.q[None]
    kernels = asked_kernels() if kernels is None else kernels
    chosen, reason = choose_backend(backend, q, tensors.groups, call.l_sel, kernels)
    count("attention", chosen, reason)

    def attend_batch(*each: Tensor) -> tuple[Tensor, ...]:
        part, blocks = Tensors(*each), compressed
        if compression is not None:
            blocks = compression(part.k_cmp, part.v_cmp)
            check_compressed(part.q, blocks, part.groups, call.l, call.d)
        if blocks is not None:
            blocks = (blocks[0].to(q.dtype), blocks[1].to(q.dtype))
        if chosen == "triton":
            from nsa.attention.gpu.function import nsa_attention_triton  # slow to import

            out, ids = nsa_attention_triton(part, call, blocks)
        elif chosen == "torch":
            out, ids = nsa_attention_torch(part, call, blocks, kernels)
        else:
            out, ids = nsa_attention_reference(part, call, blocks)
        return (out, ids) if call.want_ids and ids is not None else (out,)

    if lengths is None:
        return attend_batch(*tensors)
    return attend_sequences(attend_batch, tensors, lengths)
