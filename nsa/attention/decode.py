"""How is the next token attended, and how does a prompt fill the cache?

One token reads at most floor((S - l) / d) + 1 compressed pairs, n_sel * l_sel selected tokens and w
window tokens, and gives what the batched operation gives at its position. A prompt goes through
the batched operation at once (the default), or token by token: slower, the tested reference
(NSA_PREFILL_BATCHED=0). No gradients.

Shape legend: B batch, H heads, G groups, R = H / G, D head width, C compressed and J selection
blocks, X tokens read.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from nsa.attention.cache import NsaCache
from nsa.attention.compressed import block_scores, compressed_logits, exp2_alike_
from nsa.attention.operation import nsa_attention
from nsa.attention.ranges import positions_in, ranges_v1, ranges_v2


def _weights(q_BGRD: Tensor, k_BGXD: Tensor, hidden: Tensor | None = None) -> Tensor:
    logits = torch.einsum("bgrd,bgxd->bgrx", q_BGRD, k_BGXD)
    if hidden is not None:
        logits = logits.masked_fill(hidden[:, :, None], -torch.inf)
    return logits.softmax(-1)


def _mix(p_BGRX: Tensor, v_BGXD: Tensor) -> Tensor:
    return torch.einsum("bgrx,bgxd->bgrd", p_BGRX, v_BGXD)


def _shares_of_blocks(q_BGRD: Tensor, k_BGCD: Tensor, factor: float) -> Tensor:
    """Softmax over the compressed blocks [B, G, R, C], ties kept as in the batched operation."""
    logits = compressed_logits(
        q_BGRD.flatten(0, 1), k_BGCD.flatten(0, 1), factor * math.log2(math.e)
    )
    if logits.shape[-1]:
        p = exp2_alike_(logits.sub_(logits.amax(-1, keepdim=True)))
        logits = p.div_(p.sum(-1, keepdim=True))
    return logits.unflatten(0, q_BGRD.shape[:2])


def _select(scores_BGJ: Tensor, c: int, n_sel: int) -> Tensor:
    """Ids [B, G, n_sel] of one query in block c, ascending, -1 padded at the end."""
    rank = scores_BGJ.clone()
    rank[..., [j for j in (0, c - 1, c) if j >= 0]] = torch.inf
    order = rank.sort(dim=-1, descending=True, stable=True).indices[..., :n_sel]
    missing = n_sel - order.shape[-1]
    return torch.nn.functional.pad(order.sort(dim=-1).values, (0, missing), value=-1)


def _ranges(ids_BGN: Tensor, t: int, l_sel: int, *, vectorised: bool) -> Tensor:
    """[B, G, N, 2] by V2, or by V1 and padded."""
    if vectorised:
        return ranges_v2(ids_BGN, torch.tensor(t, device=ids_BGN.device), l_sel)
    B, G, N = ids_BGN.shape
    rows = [ranges_v1(ids, t, l_sel) for ids in ids_BGN.flatten(0, 1).tolist()]
    padded = [row + [(0, 0)] * (N - len(row)) for row in rows]
    return torch.tensor(padded, device=ids_BGN.device).view(B, G, N, 2)


def _read(x_BSGD: Tensor, place_BGX: Tensor, dtype: torch.dtype) -> Tensor:
    """The tokens at `place`, [B, G, X, D]."""
    B, _, G, _ = x_BSGD.shape
    b = torch.arange(B, device=x_BSGD.device)[:, None, None]
    g = torch.arange(G, device=x_BSGD.device)[None, :, None]
    return x_BSGD[b, place_BGX, g].to(dtype)


@torch.no_grad()
def decode(
    q: Tensor,
    gates: Tensor,
    cache: NsaCache,
    *,
    scale: float | None = None,
    ranges_vectorised: bool = True,
) -> tuple[Tensor, Tensor]:
    """Attend for the last token in the cache.

    Args:
        q: Its query [B, 1, H, D].
        gates: Its gates [B, 1, H, 3].
        cache: Holds the keys and values of this token and all before it.
        scale: Factor on every product; default 1 / sqrt(D).
        ranges_vectorised: Selection ranges V2 (NSA_SEL_RANGES_V2), else V1: the same result.

    Returns:
        out [B, 1, H, D] in the dtype of q and the block ids [B, 1, G, n_sel], as `nsa_attention`.

    Raises:
        ValueError: The cache is empty.
    """
    if cache.length == 0:
        raise ValueError("decode needs the token's keys and values in the cache: append them first")
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    # Scores and statistics keep their precision: autocast would round them.
    with torch.autocast(q.device.type, enabled=False):
        return _decode(q, gates, cache, factor, ranges_vectorised=ranges_vectorised)


def _decode(
    q: Tensor, gates: Tensor, cache: NsaCache, factor: float, *, ranges_vectorised: bool
) -> tuple[Tensor, Tensor]:
    sizes, t = cache.sizes, cache.length - 1
    B, _, H, D = q.shape
    G = cache.k_sel.shape[2]
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    q_BGRD = q.view(B, G, H // G, D).to(exact)

    c = t // sizes.l_sel
    k_BGCD, v_BGCD = (
        x[:, : cache.blocks].transpose(1, 2).to(exact) for x in (cache.k_blocks, cache.v_blocks)
    )
    p_BGRC = _shares_of_blocks(q_BGRD, k_BGCD, factor)
    scores_BGJ = block_scores(
        p_BGRC.flatten(0, 1)[:, None], c + 1, sizes.l, sizes.d, sizes.l_sel
    ).view(B, G, c + 1)
    ids_BGN = _select(scores_BGJ, c, sizes.n_sel)

    ranges = _ranges(ids_BGN, t, sizes.l_sel, vectorised=ranges_vectorised)
    most = min(t + 1, sizes.n_sel * sizes.l_sel)
    place, real = positions_in(ranges, most)
    q_BGRD = q_BGRD * factor
    p_sel = _weights(q_BGRD, _read(cache.k_sel, place, exact), ~real)

    near = min(t + 1, sizes.w)
    k_win, v_win = (x[:, :near].transpose(1, 2).to(exact) for x in (cache.k_ring, cache.v_ring))
    p_win = _weights(q_BGRD, k_win)

    gate = gates.view(B, G, H // G, 3).to(exact)
    out = gate[..., 0:1] * _mix(p_BGRC, v_BGCD)
    out = out + gate[..., 1:2] * _mix(p_sel, _read(cache.v_sel, place, exact))
    out = out + gate[..., 2:3] * _mix(p_win, v_win)
    return out.view(B, 1, H, D).to(q.dtype), ids_BGN[:, None]


@torch.no_grad()
def prefill(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    gates: Tensor,
    cache: NsaCache,
    *,
    scale: float | None = None,
    batched: bool = True,
    ranges_vectorised: bool = True,
    **options: Any,
) -> Tensor:
    """Attend for a whole prompt and leave its keys and values in the cache.

    Args:
        q: Queries [B, S, H, D].
        k_cmp: Keys and values [B, S, G, D], here and below, as `nsa_attention`.
        v_cmp: See k_cmp.
        k_sel: See k_cmp.
        v_sel: See k_cmp.
        k_win: See k_cmp.
        v_win: See k_cmp.
        gates: Gates [B, S, H, 3].
        cache: Empty; its sizes are used.
        scale: Factor on every product; default 1 / sqrt(D).
        batched: All queries at once; False decodes token by token.
        ranges_vectorised: For `decode`, when not batched.
        options: More arguments of `nsa_attention` when batched (`backend`, `kernels`).

    Returns:
        out [B, S, H, D].

    Raises:
        ValueError: The cache is not empty, or too small.
    """
    if cache.length:
        raise ValueError(f"prefill needs an empty cache, this one holds {cache.length} tokens")
    tensors = (k_cmp, v_cmp, k_sel, v_sel, k_win, v_win)
    if not batched:
        outs = []
        for t in range(q.shape[1]):
            cache.append(*(x[:, t : t + 1] for x in tensors))
            step = slice(t, t + 1)
            out, _ = decode(
                q[:, step], gates[:, step], cache, scale=scale, ranges_vectorised=ranges_vectorised
            )
            outs.append(out)
        return torch.cat(outs, dim=1)
    cache.append(*tensors)
    sizes = cache.sizes
    blocks = (cache.k_blocks[:, : cache.blocks], cache.v_blocks[:, : cache.blocks])
    return nsa_attention(
        q, *tensors, gates, l=sizes.l, d=sizes.d, l_sel=sizes.l_sel, n_sel=sizes.n_sel, w=sizes.w,
        scale=scale, compressed=blocks, **options,
    )  # fmt: skip
