"""The equations of arXiv 2502.11089, written out: the truth of the tests.

Shares no code with the fast backends. Builds S x S scores of every
head, so use short sequences. Any floating dtype and device, derivatives of any order.

Shapes: B batch, S tokens, H heads, G groups, D head width, C compressed and J selection blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from nsa.attention.precision import exact_products
from nsa.attention.tensors import Call, Tensors


def compress(x_BSGD: Tensor, l: int, d: int) -> Tensor:  # noqa: E741  (the paper's letter)
    """Mean of every whole block of `l` tokens, one block every `d` tokens: [B, C, G, D]."""
    if x_BSGD.shape[1] < l:
        return x_BSGD[:, :0]
    return x_BSGD.unfold(1, l, d).mean(-1)


def _logits(q_BSHD: Tensor, k_BCHD: Tensor) -> Tensor:
    """q . k, summed over D in the same order for every key: ties between equal keys stay ties."""
    B, S, H, D = q_BSHD.shape
    total = q_BSHD.new_zeros(B, S, H, k_BCHD.shape[1])
    for x in range(D):
        total = total + q_BSHD[..., x, None] * k_BCHD[..., x].transpose(1, 2)[:, None]
    return total


def _softmax_where(logits: Tensor, visible: Tensor) -> Tensor:
    """Softmax over the visible entries of the last dimension; a row without any is all zero."""
    masked = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)
    return masked.softmax(-1) * visible


def block_scores(p_BSHC: Tensor, groups: int, blocks: int, l: int, d: int, l_sel: int) -> Tensor:  # noqa: E741
    """Eq. 9 and 10: the score of each selection block, summed over the heads of a group.

    Returns:
        P_{t,g,j} = sum_h sum_m sum_n p_{t,h,(l_sel/d) j + m - n}, shape [B, S, G, J].
    """
    B, S, H, C = p_BSHC.shape
    per_group = p_BSHC.reshape(B, S, groups, H // groups, C)
    p_BSGC = p_BSHC.new_zeros(B, S, groups, C)
    for head in range(H // groups):
        p_BSGC += per_group[:, :, :, head]
    a, r = l_sel // d, l // d
    first = a * torch.arange(blocks, device=p_BSHC.device)
    scores = p_BSHC.new_zeros(B, S, groups, blocks)
    for m in range(a):
        for n in range(r):
            index = first + m - n
            exists = (index >= 0) & (index < C)
            scores[..., exists] += p_BSGC[..., index[exists]]
    return scores


def select(scores_BSGJ: Tensor, l_sel: int, n_sel: int) -> Tensor:
    """The blocks each query attends to: the forced ones, then the best, ties to the lower id.

    Returns:
        Block ids [B, S, G, n_sel], int64, ascending, -1 padded at the end.
    """
    S, J = scores_BSGJ.shape[1], scores_BSGJ.shape[-1]
    t = torch.arange(S, device=scores_BSGJ.device)[:, None]
    j = torch.arange(J, device=scores_BSGJ.device)[None, :]
    c = t // l_sel
    forced = (j == 0) | (j == c - 1) | (j == c)
    # Scores are sums of probabilities, so 1 + H is above all of them and -1 below.
    rank = scores_BSGJ.masked_fill(forced[:, None], torch.inf)
    rank = rank.masked_fill((j > c)[:, None], -torch.inf)
    order = rank.sort(dim=-1, descending=True, stable=True).indices[..., :n_sel]
    order = order.masked_fill(order > c[:, None], J)
    chosen = pad(order, (0, n_sel - order.shape[-1]), value=J).sort(dim=-1).values
    return chosen.masked_fill(chosen == J, -1)


def nsa_attention_reference(
    tensors: Tensors, call: Call, compressed: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """NSA by its equations; shapes as `nsa.attention.nsa_attention`.

    Returns:
        `out` [B, S, H, D] in the dtype of q, and the selected block ids [B, S, G, n_sel].
    """
    q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates = tensors
    B, S, H, _ = q.shape
    G, l, d, l_sel = tensors.groups, call.l, call.d, call.l_sel  # noqa: E741
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    queries = q.to(exact)

    def per_head(x_BSGD: Tensor) -> Tensor:
        return x_BSGD.to(exact).repeat_interleave(H // G, dim=2)

    def logits(keys_BKHD: Tensor) -> Tensor:
        with exact_products(q.device):  # whatever the process has set
            return call.scale * torch.einsum("bshd,bkhd->bshk", queries, keys_BKHD)

    def mix(p_BSHK: Tensor, values_BKHD: Tensor) -> Tensor:
        with exact_products(q.device):
            return torch.einsum("bshk,bkhd->bshd", p_BSHK, values_BKHD)

    s = torch.arange(S, device=q.device)[None, :]
    t = s.T

    if compressed is None:
        # Rounded once, to the dtype of q: what is scored is what is attended and what is cached.
        k_means, v_means = (compress(x.to(exact), l, d).to(q.dtype) for x in (k_cmp, v_cmp))
        compressed = (k_means, v_means)
    k_blocks, v_blocks = per_head(compressed[0]), per_head(compressed[1])
    ends = torch.arange(k_blocks.shape[1], device=q.device) * d + l - 1
    seen = (ends[None, :] <= t)[:, None]
    out_cmp = mix(_softmax_where(logits(k_blocks), seen), v_blocks)

    blocks = (S + l_sel - 1) // l_sel
    with torch.no_grad():
        p_cmp = _softmax_where(call.scale * _logits(queries, k_blocks), seen)
        sel = select(block_scores(p_cmp, G, blocks, l, d, l_sel), l_sel, call.n_sel)

    # A padding id -1 marks the extra column J, which no token belongs to.
    none = torch.zeros(B, S, G, blocks + 1, dtype=torch.bool, device=q.device)
    marked = none.scatter(-1, sel.where(sel >= 0, blocks), True)
    in_selection = marked[..., s[0] // l_sel] & (s <= t)[:, None]
    in_selection = in_selection.repeat_interleave(H // G, dim=2)
    out_sel = mix(_softmax_where(logits(per_head(k_sel)), in_selection), per_head(v_sel))

    in_window = ((s <= t) & (s > t - call.w))[:, None]
    out_win = mix(_softmax_where(logits(per_head(k_win)), in_window), per_head(v_win))

    g = gates.to(exact)[..., None]
    out = g[..., 0, :] * out_cmp + g[..., 1, :] * out_sel + g[..., 2, :] * out_win
    return out.to(q.dtype), sel
