"""Attend for one token from a cache, and fill the cache from a prompt.

A token reads at most floor((S - l) / d) + 1 compressed pairs, n_sel * l_sel selected and w window
tokens. On a CPU a kernel in C serves where it can (cpu/decode.py). A prompt is attended at once, or
token by token as the tested reference (NSA_PREFILL_BATCHED=0). No gradients.

Shapes: B batch, H heads, G groups, N = B * G, R = H / G, D head width, C compressed and J selection
blocks, X tokens read.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad, scaled_dot_product_attention

from nsa.attention.cache import NsaCache
from nsa.attention.compressed import compressed_logits
from nsa.attention.counters import count
from nsa.attention.cpu import decode as on_cpu
from nsa.attention.operation import nsa_attention
from nsa.attention.precision import exact_products
from nsa.attention.tensors import FIRST, FORCED, RECENT, Sizes, Tensors


def ranges_v1(ids: list[int], t: int, l_sel: int) -> list[tuple[int, int]]:
    """The ranges of one query at t, ascending, disjoint and not touching, within [0, t + 1).

    Block ids may be in any order; doubles and ids that do not exist are dropped.
    """
    merged: list[tuple[int, int]] = []
    for block in sorted({block for block in ids if block >= 0 and block * l_sel <= t}):
        start, end = block * l_sel, min((block + 1) * l_sel, t + 1)
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def ranges_v2(ids_XN: Tensor, t_X: Tensor, l_sel: int) -> Tensor:
    """The ranges of many queries as by `ranges_v1`, padded at the end with (0, 0): [..., N, 2]
    int64.
    """
    t_X1 = t_X.to(torch.int64).expand(ids_XN.shape[:-1])[..., None]
    exists = (ids_XN >= 0) & (ids_XN * l_sel <= t_X1)
    # Behind every real id, so that those which do not exist sort to the end.
    nowhere = t_X1 // l_sel + 2
    blocks = ids_XN.to(torch.int64).where(exists, nowhere).sort(dim=-1).values
    real = blocks < nowhere
    before = torch.cat((torch.full_like(blocks[..., :1], -2), blocks[..., :-1]), dim=-1)
    opens = real & (blocks - before > 1)
    slot = (opens.cumsum(-1) - 1).clamp_min(0)
    starts = torch.zeros_like(blocks).scatter_add(-1, slot, (blocks * l_sel).where(opens, 0))
    ends = torch.minimum((blocks + 1) * l_sel, t_X1 + 1).where(real, 0)
    ends = torch.zeros_like(blocks).scatter_reduce(-1, slot, ends, "amax")
    return torch.stack((starts, ends), dim=-1)


def positions_in(ranges_XN2: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The tokens of the padded ranges of `ranges_v2`, ascending; at most `most` of a query.

    Returns:
        Positions [..., most] int64 (0 where there is none) and which of them are real.
    """
    starts, ends = ranges_XN2.unbind(-1)
    filled = (ends - starts).cumsum(-1)
    number = torch.arange(most, device=starts.device).expand(*starts.shape[:-1], most)
    inside = torch.searchsorted(filled, number.contiguous(), right=True)
    real = inside < starts.shape[-1]
    inside = inside.clamp_max(starts.shape[-1] - 1)
    skipped = (filled - (ends - starts)).gather(-1, inside)
    return (starts.gather(-1, inside) + number - skipped).where(real, 0), real


logger = logging.getLogger(__name__)

# How the selected tokens are read: whole blocks, which is fastest, or as ranges of tokens that are
# merged by V1 or V2. All three give the same.
Reading = Literal["blocks", "v1", "v2"]


def _last_scores(p_NRC: Tensor, sizes: Sizes) -> Tensor:
    """Block scores [N, J'] of one query in few operations, of the blocks that it has seen whole.

    Eq. 9 and 10 are two sums. The first is over the heads and the l / d compressed blocks that hold
    a stride of d tokens, the second over the strides of a selection block. Every sum has the same
    order, so equal probabilities give exactly equal scores.
    """
    a, r = sizes.l_sel // sizes.d, sizes.l // sizes.d
    beside = min(r - 1, r // 2)  # as many zeros on either side as pooling adds by itself
    if beside < r - 1:
        p_NRC = pad(p_NRC, (r - 1 - beside, r - 1 - beside))
    of_strides = avg_pool2d(
        p_NRC, (p_NRC.shape[1], r), stride=1, padding=(0, beside), divisor_override=1
    )
    return avg_pool2d(of_strides, (1, a), stride=(1, a), divisor_override=1).squeeze(1)


def _select(p_NRC: Tensor, blocks: int, sizes: Sizes) -> Tensor:
    """Ids [N, n_sel] of queries in the last of so many blocks, ascending, -1 padded at the end."""
    if sizes.n_sel >= blocks:
        every = torch.arange(blocks, device=p_NRC.device).expand(len(p_NRC), blocks)
        return pad(every, (0, sizes.n_sel - blocks), value=-1)
    # What is forced stands above every score.
    rank = pad(
        _last_scores(p_NRC, sizes).narrow(1, FIRST, blocks - FORCED),
        (FIRST, RECENT),
        value=torch.inf,
    )
    order = rank.sort(dim=-1, descending=True, stable=True).indices
    return order.narrow(1, 0, sizes.n_sel).sort(dim=-1).values


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else x.to(dtype)  # `to` that changes nothing costs microseconds


def _whole_blocks(ids_NX: Tensor, cache: NsaCache, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values [B, G, X, D] of the selected tokens, block by block."""
    l_sel, t = cache.sizes.l_sel, cache.length - 1
    if ids_NX.shape[-1] > t // l_sel:  # every block there is
        k, v = (x.narrow(2, 0, t + 1) for x in (cache.k_sel, cache.v_sel))
        return _as(k, dtype), _as(v, dtype)
    # The query's own block stands last, and ends with the query.
    real = (ids_NX.shape[-1] - 1) * l_sel + t % l_sel + 1
    rows = (ids_NX + cache.first_blocks).view(-1)
    B, G, _, D = cache.k_sel.shape
    both = cache.selectable.index_select(0, rows).view(2, B, G, -1, D).narrow(3, 0, real)
    k, v = _as(both, dtype).unbind()
    return k, v


def _ranges(ids_BGX: Tensor, t: int, l_sel: int, version: Reading) -> Tensor:
    """[B, G, X, 2] by V2, or by V1 and padded."""
    if version == "v2":
        return ranges_v2(ids_BGX, torch.tensor(t, device=ids_BGX.device), l_sel)
    B, G, X = ids_BGX.shape
    rows = [ranges_v1(ids, t, l_sel) for ids in ids_BGX.flatten(0, 1).tolist()]
    padded = [row + [(0, 0)] * (X - len(row)) for row in rows]
    return torch.tensor(padded, device=ids_BGX.device).view(B, G, X, 2)


def _token_by_token(
    ids_NX: Tensor, cache: NsaCache, dtype: torch.dtype, version: Reading
) -> tuple[Tensor, Tensor]:
    """As `_whole_blocks`, by merged ranges."""
    (B, G, _, D), sizes, t = cache.k_sel.shape, cache.sizes, cache.length - 1
    ranges = _ranges(ids_NX.view(B, G, -1), t, sizes.l_sel, version)
    place, real = positions_in(ranges, min(t + 1, sizes.n_sel * sizes.l_sel))
    # Every query selects as many tokens: its own block, cut, and others whole.
    place = place[..., : int(real[0, 0].sum()), None].expand(-1, -1, -1, D)
    k, v = (x.gather(2, place).to(dtype) for x in (cache.k_sel, cache.v_sel))
    return k, v


@torch.no_grad()
def decode(
    q: Tensor,
    gates: Tensor,
    cache: NsaCache,
    *,
    scale: float | None = None,
    reading: Reading = "blocks",
) -> tuple[Tensor, Tensor]:
    """Attend for the last token in the cache, whose query is [B, 1, H, D].

    Args:
        cache: Holds the keys and values of this token and all before it.
        reading: How the selected tokens are read: whole blocks, or by merged ranges, V1 or V2
            (NSA_SEL_RANGES_V2): the same result.

    Returns:
        out [B, 1, H, D] in the dtype of q and the block ids [B, 1, G, n_sel], as `nsa_attention`.

    Raises:
        ValueError: The cache is empty, or the token is none of its.
    """
    if cache.length == 0:
        raise ValueError("decode needs the token's keys and values in the cache: append them first")
    _check_of(cache, q, gates)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    reason = f"blocks are read as ranges, {reading}" if reading != "blocks" else ""
    reason = reason or on_cpu.call_reason(q, gates, cache)
    kernel = reason or _kernel()
    if isinstance(kernel, str):
        count("decode", "torch", kernel)
        return _by_operations(q, gates, cache, factor, reading)
    count("decode", "c")
    return on_cpu.attend(kernel, q, gates, cache, factor)


def _check_of(cache: NsaCache, q: Tensor, gates: Tensor) -> None:
    """Refuse a token that is none of the cache's: in C nobody looks where memory ends."""
    B, G, _, D = cache.k_sel.shape
    whole = q.ndim == 4 and q.shape[2] > 0 and q.shape[2] % G == 0
    if not whole or q.shape != (B, 1, q.shape[2], D):
        raise ValueError(
            f"q is {tuple(q.shape)}, and the cache's tokens are ({B}, 1, heads, {D}), heads a"
            f" multiple of {G}"
        )
    if gates.shape != (*q.shape[:3], 3):
        raise ValueError(f"gates are {tuple(gates.shape)}, and q asks for {(*q.shape[:3], 3)}")
    if not q.device == gates.device == cache.k_sel.device:
        raise ValueError(
            f"q is on {q.device}, gates on {gates.device}, the cache on {cache.k_sel.device}"
        )


@functools.cache
def _kernel() -> on_cpu.Functions | str:
    """The kernel in C where it gives what PyTorch's operations give, or why it does not serve."""
    functions = on_cpu.load_functions()
    if isinstance(functions, str):
        return functions
    for dtype, close in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        for length in (1, 17, 150):
            if not _agree(functions, dtype, length, close):
                reason = f"its {dtype} is not PyTorch's here, after {length} tokens"
                logger.warning("the attention's CPU kernel does not serve: %s", reason)
                return reason
    return functions


def _agree(functions: on_cpu.Functions, dtype: torch.dtype, length: int, close: float) -> bool:
    made = torch.Generator("cpu").manual_seed(length)
    exact: dict[str, Any] = {"generator": made, "dtype": torch.float32, "device": "cpu"}
    sizes = Sizes(l=8, d=4, l_sel=8, n_sel=FORCED + 2, w=16)
    cache = NsaCache(B=1, G=2, D=32, capacity=length, sizes=sizes, dtype=dtype)
    cache.append(*torch.randn(6, 1, length, 2, 32, **exact).to(dtype))
    q = torch.randn(1, 1, 6, 32, **exact).to(dtype)
    gates = torch.rand(1, 1, 6, 3, **exact).to(dtype)
    out, ids = on_cpu.attend(functions, q, gates, cache, 0.2)
    expected, chosen = _by_operations(q, gates, cache, 0.2, "blocks")
    return torch.equal(ids, chosen) and torch.allclose(out, expected, rtol=close, atol=close)


def _by_operations(
    q: Tensor, gates: Tensor, cache: NsaCache, factor: float, reading: Reading
) -> tuple[Tensor, Tensor]:
    # Scores and statistics keep their precision: TF32 and autocast would round them.
    with exact_products(q.device):
        if not torch.is_autocast_enabled(q.device.type):
            return _decode(q, gates, cache, factor, reading)
        with torch.autocast(q.device.type, enabled=False):
            return _decode(q, gates, cache, factor, reading)


def _decode(
    q: Tensor, gates: Tensor, cache: NsaCache, factor: float, reading: Reading
) -> tuple[Tensor, Tensor]:
    sizes, t = cache.sizes, cache.length - 1
    B, _, H, D = q.shape
    G = cache.k_sel.shape[1]
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    q_BGRD = _as(q.reshape(B, G, H // G, D), exact)

    k_NCD, v_NCD = (
        _as(x.narrow(1, 0, cache.blocks), exact) for x in (cache.k_blocks, cache.v_blocks)
    )
    # Equal products get equal shares, to the last bit: ties stay ties, as in the batched operation.
    p_NRC = compressed_logits(q_BGRD.flatten(0, 1), k_NCD, factor).softmax(-1)
    compressed = torch.bmm(p_NRC, v_NCD).view(q_BGRD.shape)
    ids_NX = _select(p_NRC, t // sizes.l_sel + 1, sizes)

    if reading == "blocks":
        k_sel, v_sel = _whole_blocks(ids_NX, cache, exact)
    else:
        k_sel, v_sel = _token_by_token(ids_NX, cache, exact, reading)
    selected = scaled_dot_product_attention(q_BGRD, k_sel, v_sel, scale=factor)
    k_win, v_win = cache.k_ring, cache.v_ring
    if t + 1 < k_win.shape[2]:
        k_win, v_win = k_win.narrow(2, 0, t + 1), v_win.narrow(2, 0, t + 1)
    k_win, v_win = _as(k_win, exact), _as(v_win, exact)
    window = scaled_dot_product_attention(q_BGRD, k_win, v_win, scale=factor)

    gate = _as(gates.reshape(B, G, H // G, 3, 1), exact).unbind(3)
    out = (compressed * gate[0]).addcmul_(selected, gate[1])
    out = out.addcmul_(window, gate[2])
    return _as(out.view(B, 1, H, D), q.dtype), ids_NX.view(B, 1, G, -1)


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
    reading: Reading = "blocks",
    **options: Any,
) -> Tensor:
    """Attend for a whole prompt and leave its keys and values in the cache.

    Args:
        cache: Empty; its sizes are used.
        batched: All queries at once; False decodes token by token.
        reading: For `decode`, when not batched.
        options: More arguments of `nsa_attention` when batched (`backend`, `kernels`).

    Raises:
        ValueError: The cache is not empty, or too small.
    """
    if cache.length:
        raise ValueError(f"prefill needs an empty cache, this one holds {cache.length} tokens")
    tensors = Tensors(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates)
    if not batched:
        factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        outs = []
        for t in range(q.shape[1]):
            token = Tensors(*(x[:, t : t + 1] for x in tensors))
            cache.append(*token[1:-1])
            out, _ = _by_operations(token.q, token.gates, cache, factor, reading)
            outs.append(out)
        return torch.cat(outs, dim=1)
    cache.append(*tensors[1:-1])
    sizes = cache.sizes
    k_blocks, v_blocks = (
        x[:, : cache.blocks].unflatten(0, (len(q), tensors.groups)).transpose(1, 2)
        for x in (cache.k_blocks, cache.v_blocks)
    )
    return nsa_attention(
        *tensors, l=sizes.l, d=sizes.d, l_sel=sizes.l_sel, n_sel=sizes.n_sel, w=sizes.w,
        scale=scale, compressed=(k_blocks, v_blocks), **options,
    )  # fmt: skip
