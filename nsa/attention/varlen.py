"""Many sequences of different lengths in one call, laid end to end, as flash-attn takes them."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from nsa.attention.checks import check_shapes, check_sizes
from nsa.attention.compression import Compression
from nsa.attention.kernels import Kernels
from nsa.attention.operation import never_compiled
from nsa.attention.packing import sequence_lengths
from nsa.attention.serving import prepare
from nsa.attention.tensors import Tensors


@overload
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
    l: int = ...,  # noqa: E741
    d: int = ...,
    l_sel: int = ...,
    n_sel: int = ...,
    w: int = ...,
    scale: float | None = ...,
    compression: Compression | None = ...,
    backend: str = ...,
    kernels: Kernels | None = ...,
    return_selection: Literal[False] = ...,
) -> Tensor: ...
@overload
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
    l: int = ...,  # noqa: E741
    d: int = ...,
    l_sel: int = ...,
    n_sel: int = ...,
    w: int = ...,
    scale: float | None = ...,
    compression: Compression | None = ...,
    backend: str = ...,
    kernels: Kernels | None = ...,
    return_selection: Literal[True],
) -> tuple[Tensor, Tensor]: ...
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
) -> Tensor | tuple[Tensor, Tensor]:
    """Native Sparse Attention over sequences laid end to end, each as if it were alone.

    The Triton kernels take all sequences in one pass, in as many launches as one sequence costs.
    The other backends attend sequences of about one length by one call (packing.py), so the number
    of calls does not grow with the number of sequences. torch.compile leaves it out of its graph:
    the lengths are data.

    Args:
        q: Queries [T, H, D] of all sequences.
        k_cmp: Keys and values [T, G, D], here and below, as `nsa_attention`.
        v_cmp: See k_cmp.
        k_sel: See k_cmp.
        v_sel: See k_cmp.
        k_win: See k_cmp.
        v_win: See k_cmp.
        gates: Weights of the branches [T, H, 3].
        cu_seqlens: Where each sequence begins, and the end of the last: int32 [B + 1] from 0 to T.
            A sequence may be empty. On a GPU it is read with one wait; on the CPU without.
        max_seqlen: At least the length of the longest sequence.
        l: Here and below as `nsa_attention`.
        d: See l.
        l_sel: See l.
        n_sel: See l.
        w: See l.
        scale: See l.
        compression: See l.
        backend: See l.
        kernels: See l.
        return_selection: Also return the selected block ids.

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
    # No tokens at all are no sequences of one token.
    as_one = Tensors(*(x[None] if lengths else x[:, None] for x in tensors))
    check_shapes(as_one)
    prepared = prepare(
        as_one.q, as_one.groups, backend=backend, compression=compression, kernels=kernels,
        scale=scale, l=l, d=d, l_sel=l_sel, n_sel=n_sel, w=w, want_ids=return_selection,
    )  # fmt: skip
    with torch.autocast(q.device.type, enabled=False):
        if lengths:
            results = prepared.attend_sequences(tensors, lengths)
        else:
            results = tuple(x[:, 0] for x in prepared.attend(*as_one))
    return (results[0], results[1]) if return_selection else results[0]
