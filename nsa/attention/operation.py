"""The one entry point: checks the call, picks the backend, runs it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor

from nsa.attention.checks import check_compressed, check_documents, check_shapes, check_sizes
from nsa.attention.compression import Compression, MeanCompression
from nsa.attention.kernels import Kernels
from nsa.attention.operator import attend
from nsa.attention.packing import document_lengths
from nsa.attention.serving import prepare, rounded
from nsa.attention.tensors import Tensors


def never_compiled(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Have a function run as it is also within torch.compile, whose graph it breaks.

    For what depends on data: the lengths of documents. Outside of a compiler nothing is imported.
    """

    @functools.wraps(operation)
    def run(*arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(operation)(*arguments, **options)
        return operation(*arguments, **options)

    return run


@overload
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
    l: int = ...,  # noqa: E741
    d: int = ...,
    l_sel: int = ...,
    n_sel: int = ...,
    w: int = ...,
    scale: float | None = ...,
    compressed: tuple[Tensor, Tensor] | None = ...,
    compression: Compression | None = ...,
    backend: str = ...,
    doc_ids: Tensor | None = ...,
    kernels: Kernels | None = ...,
    return_selection: Literal[False] = ...,
) -> Tensor: ...
@overload
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
    l: int = ...,  # noqa: E741
    d: int = ...,
    l_sel: int = ...,
    n_sel: int = ...,
    w: int = ...,
    scale: float | None = ...,
    compressed: tuple[Tensor, Tensor] | None = ...,
    compression: Compression | None = ...,
    backend: str = ...,
    doc_ids: Tensor | None = ...,
    kernels: Kernels | None = ...,
    return_selection: Literal[True],
) -> tuple[Tensor, Tensor]: ...
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
) -> Tensor | tuple[Tensor, Tensor]:
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
        n_sel: Blocks each query selects, at least 3 (the first, its own and the one before).
        w: Tokens a query sees in the window branch, itself included.
        scale: Factor on every query-key product; default 1 / sqrt(D).
        compressed: Compressed keys and values [B, C, G, D] instead of the means of k_cmp, v_cmp,
            with C = max(0, (S - l) // d + 1).
        compression: What makes them of k_cmp and v_cmp (compression.py); default their means.
        backend: auto, reference, torch or triton.
        doc_ids: Integers [B, S] whose runs of equal numbers are documents: each is attended as if
            it were alone, its blocks counted from its first token. Not together with `compressed`
            (use `compression`).
        kernels: Foreign kernels that the torch backend may call; default what
            `nsa.attention.use_kernels` was given.
        return_selection: Also return the selected block ids.

    Returns:
        out [B, S, H, D] in the dtype of q; with return_selection also the block ids
        [B, S, G, n_sel], int64, ascending, -1 padded at the end. The selection has no gradient.

    Raises:
        ValueError: Shapes or sizes that do not fit together, `compressed` beside `compression` or
            `doc_ids`.
        BackendUnavailableError: The backend cannot serve the call (a ValueError).
    """
    tensors = Tensors(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates)
    check_sizes(l, d, l_sel, n_sel, w)
    check_shapes(tensors)
    if compressed is not None:
        check_compressed(q, compressed, tensors.groups, l, d)
        if compression is not None:
            raise ValueError("compressed and compression exclude each other: give one of them")
    if doc_ids is not None:
        check_documents(doc_ids, q)
        if compressed is not None:
            raise ValueError(
                "doc_ids and compressed exclude each other, since blocks start with documents: "
                "give what compresses them as compression"
            )
    sizes = {"l": l, "d": d, "l_sel": l_sel, "n_sel": n_sel, "w": w}
    # The backends choose their precision themselves: autocast would round the scores.
    with torch.autocast(q.device.type, enabled=False):
        if doc_ids is None and torch.compiler.is_compiling():
            blocks = compressed or (compression or MeanCompression(l, d))(k_cmp, v_cmp)
            check_compressed(q, blocks, tensors.groups, l, d)
            results = attend(
                q, *rounded(blocks, q.dtype), *tensors[3:], **sizes,
                scale=1.0 / math.sqrt(q.shape[-1]) if scale is None else scale,
                want_ids=return_selection, backend=backend,
            )  # fmt: skip
        else:
            results = _outside_of_graphs(
                tensors, compressed, doc_ids, backend=backend, compression=compression,
                kernels=kernels, scale=scale, want_ids=return_selection, **sizes,
            )  # fmt: skip
    return (results[0], results[1]) if return_selection else results[0]


@never_compiled
def _outside_of_graphs(
    tensors: Tensors,
    compressed: tuple[Tensor, Tensor] | None,
    doc_ids: Tensor | None,
    **options: Any,
) -> Sequence[Tensor]:
    prepared = prepare(tensors.q, tensors.groups, **options)
    if doc_ids is None or not len(doc_ids):
        return prepared.attend(*tensors, compressed=compressed)
    lengths = [length for item in document_lengths(doc_ids) for length in item]
    flat = Tensors(*(x.flatten(0, 1) for x in tensors))
    parts = prepared.attend_sequences(flat, lengths)
    return [part.unflatten(0, doc_ids.shape) for part in parts]
