"""How does a layer look back? The NSA module: three branches, three K/V pairs, gates.

It maps `[B, S, dim]` to `[B, S, dim]`. Rotary embedding is per head, on q, k_sel and k_win; the
compressed branch compresses un-rotated keys and rotates each block at its first position.
Shapes: B batch, S positions, H heads, G groups, D head dimension, C compressed blocks.
"""

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nsa.attention import NsaCache, Sizes, decode, nsa_attention, prefill
from nsa.attention.compression import compress_tokens
from nsa.attention.packing import attend_documents
from nsa.config import AttentionConfig, ModelConfig
from nsa.model.rotary import rotate

BRANCHES = ("compressed", "selected", "window")
# Tokens of each packed document, per batch item.
Documents = Sequence[Sequence[int]]


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

    def forward(self, x_BSE: Tensor, table: Tensor, documents: Documents | None = None) -> Tensor:
        """Attend.

        Args:
            x_BSE: the tokens.
            table: the rotation table of positions 0..S-1.
            documents: tokens of each packed document, per batch item; each is attended as if it
                were alone. None: they are one text.
        """
        B, S, _ = x_BSE.shape
        read = self._project(x_BSE)
        if self.keep_gate_stats:
            self.gate_stats = _gate_stats(read[-1].detach())
        attend = functools.partial(self._attend, table=table)
        out, *ids = (
            attend(*read) if documents is None else attend_documents(attend, read, documents)
        )
        if ids:
            (self.selection,) = ids
        return self.w_o(out.reshape(B, S, -1))

    def _attend(
        self,
        q: Tensor,
        k_cmp: Tensor,
        v_cmp: Tensor,
        k_sel: Tensor,
        v_sel: Tensor,
        k_win: Tensor,
        v_win: Tensor,
        gates: Tensor,
        *,
        table: Tensor,
    ) -> tuple[Tensor, ...]:
        """Output `[B, S, H, D]` of un-rotated heads, and block ids with `keep_selection`."""
        B, S, _, _ = q.shape
        here = table[:, :S]
        q, k_sel, k_win = (rotate(x, here) for x in (q, k_sel, k_win))
        tensors = (q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates)
        if self.sequential and not self.training:
            return (self._prefill(tensors, self.start_cache(B, here, q), batched=False),)
        shape = self.shape
        k_blocks, v_blocks = (compress_tokens(x, shape.l, shape.d) for x in (k_cmp, v_cmp))
        starts = here[:, : k_blocks.shape[1] * shape.d : shape.d]
        # The operation keeps its own precision: autocast would reach into its fp32 statistics.
        with torch.autocast(q.device.type, enabled=False):
            attend = functools.partial(
                nsa_attention,
                *tensors,
                l=shape.l,
                d=shape.d,
                l_sel=shape.l_sel,
                n_sel=shape.n_sel,
                w=shape.w,
                compressed=(rotate(k_blocks, starts), v_blocks),
                backend=shape.backend,
            )
            if self.keep_selection:
                out, ids = attend(return_selection=True)
                return out, ids
            return (attend(),)

    def start_cache(self, B: int, table: Tensor, like: Tensor) -> NsaCache:
        """Room for as many tokens as the rotation table has positions.

        Args:
            B: sequences.
            table: the rotation table.
            like: a tensor of the dtype and on the device that keys will have.
        """
        shape = self.shape

        def turn(blocks_BCGD: Tensor, first: int) -> Tensor:
            start, end = first * shape.d, (first + blocks_BCGD.shape[1]) * shape.d
            return rotate(blocks_BCGD, table[:, start : end : shape.d])

        return NsaCache(
            B=B,
            G=self.groups,
            D=self.head_dim,
            capacity=table.shape[1],
            sizes=Sizes(l=shape.l, d=shape.d, l_sel=shape.l_sel, n_sel=shape.n_sel, w=shape.w),
            dtype=like.dtype,
            device=like.device,
            turn_blocks=turn,
        )

    def extend(self, x_BSE: Tensor, table: Tensor, cache: NsaCache) -> Tensor:
        """Attend for the tokens after those in the cache: a whole prompt, or one more token.

        Args:
            x_BSE: the tokens; S = 1 unless the cache is empty.
            table: the rotation table the cache was started with.
            cache: takes their keys and values.
        """
        B, S, _ = x_BSE.shape
        here = table[:, cache.length : cache.length + S]
        q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates = self._project(x_BSE)
        q, k_sel, k_win = (rotate(x, here) for x in (q, k_sel, k_win))
        keys_values = (k_cmp, v_cmp, k_sel, v_sel, k_win, v_win)
        if cache.length == 0:
            out = self._prefill((q, *keys_values, gates), cache, batched=not self.sequential)
        else:
            cache.append(*keys_values)
            out, _ = decode(q, gates, cache, ranges_vectorised=self.ranges_vectorised)
        return self.w_o(out.reshape(B, S, -1))

    def _prefill(self, tensors: Sequence[Tensor], cache: NsaCache, *, batched: bool) -> Tensor:
        q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates = tensors
        return prefill(
            q,
            k_cmp,
            v_cmp,
            k_sel,
            v_sel,
            k_win,
            v_win,
            gates,
            cache,
            batched=batched,
            ranges_vectorised=self.ranges_vectorised,
            backend=self.shape.backend,
        )

    def _project(self, x_BSE: Tensor) -> tuple[Tensor, ...]:
        """q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win and gates, none of them rotated."""
        q = self._heads(self.w_q(x_BSE))
        pairs = ((self.w_k[name], self.w_v[name]) for name in BRANCHES)
        keys_values = [self._heads(project(x_BSE)) for pair in pairs for project in pair]
        gates = torch.sigmoid(self.gate(x_BSE)).view(*x_BSE.shape[:2], -1, len(BRANCHES))
        return q, *keys_values, gates.to(q.dtype)

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


def _gate_stats(gates_BSH3: Tensor) -> Tensor:
    shares = gates_BSH3.float()
    shares = shares / shares.sum(dim=-1, keepdim=True)
    entropy = -(shares * shares.clamp_min(1e-12).log()).sum(dim=-1) / math.log(len(BRANCHES))
    return torch.stack((entropy.mean(), shares.amax(dim=-1).mean()))
