"""The one entry point: checks the call, picks the backend, runs it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, overload

import torch
from torch import Tensor

from nsa.attention.backends import choose_for_call
from nsa.attention.counters import count
from nsa.attention.kernels import Kernels, asked_kernels
from nsa.attention.packing import attend_documents, document_lengths
from nsa.attention.reference import nsa_attention_reference
from nsa.attention.torch_backend import nsa_attention_torch


def _check_blocks(l: int, d: int, l_sel: int, n_sel: int, w: int) -> None:  # noqa: E741
    sizes = {"l": l, "d": d, "l_sel": l_sel, "n_sel": n_sel, "w": w}
    if fractions := {name: size for name, size in sizes.items() if not isinstance(size, int)}:
        raise ValueError(f"sizes must be whole numbers, got {fractions}")
    if min(l, d, l_sel, w) < 1:
        raise ValueError(f"l, d, l_sel and w must be at least 1, got {l=} {d=} {l_sel=} {w=}")
    if l % d != 0:
        raise ValueError(f"d must divide l, got {l=} {d=}")
    if l_sel % d != 0:
        raise ValueError(f"d must divide l_sel, got {l_sel=} {d=}")
    if n_sel < 3:
        raise ValueError(f"n_sel must be at least 3 (blocks 0, c-1 and c), got {n_sel=}")


def _check_shapes(
    q: Tensor,
    keys_values: dict[str, Tensor],
    gates: Tensor,
    compressed: tuple[Tensor, Tensor] | None,
    l: int,  # noqa: E741
    d: int,
) -> None:
    if q.dim() != 4 or q.shape[1] < 1:
        raise ValueError(f"q must be [B, S >= 1, H, D], got {tuple(q.shape)}")
    if not q.is_floating_point():
        raise ValueError(f"q must be floating point, got {q.dtype}")
    B, S, H, D = q.shape
    groups = keys_values["k_sel"].shape[2] if keys_values["k_sel"].dim() == 4 else 0
    if groups < 1 or H % groups != 0:
        raise ValueError(f"the groups must divide the heads, got H={H} G={groups}")
    expected = dict.fromkeys(keys_values, (B, S, groups, D))
    tensors = dict(keys_values, gates=gates)
    expected["gates"] = (B, S, H, 3)
    if compressed is not None:
        blocks = max(0, (S - l) // d + 1)
        tensors["compressed[0]"], tensors["compressed[1]"] = compressed
        expected["compressed[0]"] = expected["compressed[1]"] = (B, blocks, groups, D)
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != expected[name]:
            raise ValueError(f"{name} must be {expected[name]}, got {tuple(tensor.shape)}")


def _check_documents(doc_ids: Tensor, q: Tensor, compressed: tuple[Tensor, Tensor] | None) -> None:
    if tuple(doc_ids.shape) != tuple(q.shape[:2]) or doc_ids.is_floating_point():
        raise ValueError(f"doc_ids must be integers {tuple(q.shape[:2])}, got {doc_ids.shape}")
    if compressed is not None:
        raise ValueError("doc_ids and compressed exclude each other: blocks start with documents")


def _reference(*tensors: Tensor, kernels: Kernels, want_ids: bool, **sizes: Any) -> Any:
    return nsa_attention_reference(*tensors, **sizes)


def _torch(*tensors: Tensor, want_ids: bool, **options: Any) -> Any:
    return nsa_attention_torch(*tensors, **options)


def _triton(*tensors: Tensor, kernels: Kernels, **options: Any) -> Any:
    # Imported when first used: Triton is optional, and slow to import.
    from nsa.attention.gpu.function import nsa_attention_triton

    return nsa_attention_triton(*tensors, **options)


_BACKENDS: dict[str, Callable[..., Any]] = {
    "reference": _reference,
    "torch": _torch,
    "triton": _triton,
}


def _never_compiled(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Have a function run as it is also within torch.compile.

    A compiler has nothing to gain here (matrix products whose shapes depend on the selected ids)
    and has been seen to get tiny shapes wrong. Outside of it nothing is imported.
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
    backend: str = ...,
    doc_ids: Tensor | None = ...,
    kernels: Kernels | None = ...,
    return_selection: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@_never_compiled
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
        backend: auto, reference, torch or triton.
        doc_ids: Integers [B, S] whose runs of equal numbers are documents: each is attended as if
            it were alone, its blocks counted from its first token. Not together with `compressed`.
        kernels: Foreign kernels that the torch backend may call; default what
            `nsa.attention.use_kernels` was given.
        return_selection: Also return the selected block ids.

    Returns:
        out [B, S, H, D] in the dtype of q; with return_selection also the block ids
        [B, S, G, n_sel], int64, ascending, -1 padded at the end. The selection has no gradient.

    Raises:
        ValueError: Shapes or sizes that do not fit together.
        BackendUnavailableError: The backend cannot serve the call (a ValueError).
    """
    _check_blocks(l, d, l_sel, n_sel, w)
    keys_values = {
        "k_cmp": k_cmp,
        "v_cmp": v_cmp,
        "k_sel": k_sel,
        "v_sel": v_sel,
        "k_win": k_win,
        "v_win": v_win,
    }
    _check_shapes(q, keys_values, gates, compressed, l, d)
    if compressed is not None:  # as what the backends compress themselves is rounded
        compressed = (compressed[0].to(q.dtype), compressed[1].to(q.dtype))
    kernels = asked_kernels() if kernels is None else kernels
    chosen, reason = choose_for_call(backend, q, k_sel.shape[2], l_sel, kernels)
    count("attention", chosen, reason)
    run = functools.partial(
        _BACKENDS[chosen],
        l=l,
        d=d,
        l_sel=l_sel,
        n_sel=n_sel,
        w=w,
        scale=1.0 / math.sqrt(q.shape[-1]) if scale is None else scale,
        kernels=kernels,
        want_ids=return_selection or doc_ids is not None,
    )
    tensors = (q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates)
    # The backends choose their precision themselves: autocast would round the scores.
    with torch.autocast(q.device.type, enabled=False):
        if doc_ids is None:
            out, sel = run(*tensors, compressed=compressed)
        else:
            _check_documents(doc_ids, q, compressed)
            out, sel = attend_documents(run, tensors, document_lengths(doc_ids))
    return (out, sel) if return_selection else out
