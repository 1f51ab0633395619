"""The one entry point: checks the call, picks the backend, runs it."""

from __future__ import annotations

import math
from typing import Literal, overload

import torch
from torch import Tensor

from nsa.attention.backends import choose_backend
from nsa.attention.reference import nsa_attention_reference
from nsa.attention.torch_backend import nsa_attention_torch


def _check_blocks(l: int, d: int, l_sel: int, n_sel: int, w: int) -> None:  # noqa: E741
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
    backend: str = "auto",
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
    chosen = choose_backend(backend, q.device)
    run = nsa_attention_reference if chosen == "reference" else nsa_attention_torch
    # The backends choose their precision themselves: autocast would round the scores.
    with torch.autocast(q.device.type, enabled=False):
        out, sel = run(
            q,
            k_cmp,
            v_cmp,
            k_sel,
            v_sel,
            k_win,
            v_win,
            gates,
            l=l,
            d=d,
            l_sel=l_sel,
            n_sel=n_sel,
            w=w,
            scale=1.0 / math.sqrt(q.shape[-1]) if scale is None else scale,
            compressed=compressed,
        )
    return (out, sel) if return_selection else out
