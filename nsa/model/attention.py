"""How does a layer look back? The NSA module (three branches, three K/V pairs, gates) and dense.

Both map `[B, S, dim]` to `[B, S, dim]`. Rotary embedding is per head, on q, k_sel and k_win; the
compressed branch compresses un-rotated keys and rotates each block at its first position.
Shapes: B batch, S positions, H heads, G groups, D head dimension, C compressed blocks.
"""

import math

import torch
from torch import Tensor, nn

from nsa.attention import NsaCache, Sizes, decode, dense_attention, nsa_attention
from nsa.config import AttentionConfig, ModelConfig
from nsa.model.rotary import rotate

BRANCHES = ("compressed", "selected", "window")


class NativeSparseAttention(nn.Module):
    """arXiv 2502.11089 as a layer.

    Each branch has its own keys and values; `gate` gives every head and branch a weight in (0, 1).
    With `keep_gate_stats` the forward pass leaves `[mean normalised entropy, mean largest share]`
    of the gates in `gate_stats`, with `keep_selection` the selected block ids `[B, S, G, n_sel]` in
    `selection`. With `sequential` evaluation attends token by token through the cache, as
    generation does: the slow reference of the batched path.
    """

    def __init__(self, model: ModelConfig, attention: AttentionConfig) -> None:
        super().__init__()
        kv_width = model.groups * model.head_dim
        self.shape = attention
        self.head_dim = model.head_dim
        self.w_q = nn.Linear(model.dim, model.heads * model.head_dim, bias=False)
        self.w_k = nn.ModuleDict(
            {name: nn.Linear(model.dim, kv_width, bias=False) for name in BRANCHES}
        )
        self.w_v = nn.ModuleDict(
            {name: nn.Linear(model.dim, kv_width, bias=False) for name in BRANCHES}
        )
        self.gate = nn.Linear(model.dim, model.heads * len(BRANCHES))
        self.w_o = nn.Linear(model.heads * model.head_dim, model.dim, bias=False)
        self.keep_gate_stats = False
        self.gate_stats: Tensor | None = None
        self.keep_selection = False
        self.selection: Tensor | None = None
        self.sequential = False
        self.ranges_vectorised = True

    def forward(self, x_BSE: Tensor, table: Tensor) -> Tensor:
        """Attend; `table` is the rotation table of positions 0..S-1."""
        B, S, _ = x_BSE.shape
        q = rotate(self._heads(self.w_q(x_BSE)), table)
        k = {name: self._heads(self.w_k[name](x_BSE)) for name in BRANCHES}
        v = {name: self._heads(self.w_v[name](x_BSE)) for name in BRANCHES}
        gates_BSH3 = torch.sigmoid(self.gate(x_BSE)).view(B, S, -1, len(BRANCHES))
        if self.keep_gate_stats:
            self.gate_stats = _gate_stats(gates_BSH3.detach())
        if self.sequential and not self.training:
            k_rotated = {**k, **{name: rotate(k[name], table) for name in ("selected", "window")}}
            return self.w_o(self._token_by_token(q, k_rotated, v, gates_BSH3, table))
        l, d = self.shape.l, self.shape.d  # noqa: E741 - the paper's letter
        compressed_k = block_means(k["compressed"], l, d)
        starts = table[:, : compressed_k.shape[1] * d : d]
        # The operation keeps its own precision: autocast would reach into its fp32 statistics.
        with torch.autocast(x_BSE.device.type, enabled=False):
            out_BSHD, selection = nsa_attention(
                q,
                k["compressed"],
                v["compressed"],
                rotate(k["selected"], table),
                v["selected"],
                rotate(k["window"], table),
                v["window"],
                gates_BSH3.to(q.dtype),
                l=l,
                d=d,
                l_sel=self.shape.l_sel,
                n_sel=self.shape.n_sel,
                w=self.shape.w,
                compressed=(rotate(compressed_k, starts), block_means(v["compressed"], l, d)),
                backend=self.shape.backend,
                return_selection=True,
            )
        if self.keep_selection:
            self.selection = selection
        return self.w_o(out_BSHD.reshape(B, S, -1))

    def _token_by_token(
        self,
        q_BSHD: Tensor,
        k: dict[str, Tensor],
        v: dict[str, Tensor],
        gates_BSH3: Tensor,
        table: Tensor,
    ) -> Tensor:
        """What the batched path gives, `[B, S, H * D]`, by decoding one token after another."""
        B, S, _, D = q_BSHD.shape
        shape = self.shape
        sizes = Sizes(l=shape.l, d=shape.d, l_sel=shape.l_sel, n_sel=shape.n_sel, w=shape.w)

        def turn(blocks_BCGD: Tensor, first: int) -> Tensor:
            start, end = first * shape.d, (first + blocks_BCGD.shape[1]) * shape.d
            return rotate(blocks_BCGD, table[:, start : end : shape.d])

        cache = NsaCache(
            B=B,
            G=k["selected"].shape[2],
            D=D,
            capacity=S,
            sizes=sizes,
            dtype=q_BSHD.dtype,
            device=q_BSHD.device,
            turn_blocks=turn,
        )
        outs = []
        for t in range(S):
            now = slice(t, t + 1)
            cache.append(*(x[name][:, now] for name in BRANCHES for x in (k, v)))
            out, _ = decode(
                q_BSHD[:, now],
                gates_BSH3[:, now],
                cache,
                ranges_vectorised=self.ranges_vectorised,
            )
            outs.append(out)
        return torch.cat(outs, dim=1).reshape(B, S, -1)

    @property
    def heads(self) -> int:
        """Query heads, as the weights have them."""
        return self.w_q.out_features // self.head_dim

    @property
    def groups(self) -> int:
        """K/V heads of each branch, as the weights have them."""
        weight = self.w_k["selected"].weight
        assert isinstance(weight, Tensor)
        return weight.shape[0] // self.head_dim

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], -1, self.head_dim)


class DenseAttention(nn.Module):
    """Causal attention over everything, with the same heads and groups."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        kv_width = model.groups * model.head_dim
        self.head_dim = model.head_dim
        self.w_q = nn.Linear(model.dim, model.heads * model.head_dim, bias=False)
        self.w_k = nn.Linear(model.dim, kv_width, bias=False)
        self.w_v = nn.Linear(model.dim, kv_width, bias=False)
        self.w_o = nn.Linear(model.heads * model.head_dim, model.dim, bias=False)

    @property
    def heads(self) -> int:
        """Query heads, as the weights have them."""
        return self.w_q.out_features // self.head_dim

    @property
    def groups(self) -> int:
        """K/V heads, as the weights have them."""
        return self.w_k.out_features // self.head_dim

    def forward(self, x_BSE: Tensor, table: Tensor) -> Tensor:
        """Attend; `table` is the rotation table of positions 0..S-1."""
        B, S, _ = x_BSE.shape
        q = rotate(self.w_q(x_BSE).view(B, S, -1, self.head_dim), table)
        k = rotate(self.w_k(x_BSE).view(B, S, -1, self.head_dim), table)
        v = self.w_v(x_BSE).view(B, S, -1, self.head_dim)
        return self.w_o(dense_attention(q, k, v).reshape(B, S, -1))


def block_means(x_BSGD: Tensor, l: int, d: int) -> Tensor:  # noqa: E741
    """The mean of every whole block of l tokens, one each d tokens: `[B, C, G, D]`.

    d divides l, so a block is l/d chunks of d tokens; C = max(0, (S - l) // d + 1).
    """
    B, S, G, D = x_BSGD.shape
    blocks = max(0, (S - l) // d + 1)
    chunks = x_BSGD[:, : S // d * d].view(B, S // d, d, G, D).mean(dim=2)
    total = chunks[:, :blocks]
    for offset in range(1, l // d):
        total = total + chunks[:, offset : offset + blocks]
    return total / (l // d)


def _gate_stats(gates_BSH3: Tensor) -> Tensor:
    shares = gates_BSH3.float()
    shares = shares / shares.sum(dim=-1, keepdim=True)
    entropy = -(shares * shares.clamp_min(1e-12).log()).sum(dim=-1) / math.log(len(BRANCHES))
    return torch.stack((entropy.mean(), shares.amax(dim=-1).mean()))
