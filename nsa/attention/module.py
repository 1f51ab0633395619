"""Native Sparse Attention as a layer: projections, rotary positions, gates and the operation.

    layer = NativeSparseAttention(768, heads=12, groups=2, head_dim=64, compression="mlp")
    y = layer(x)                               # [B, S, 768], causal
    y = layer(x, doc_ids=doc_ids)              # packed documents, each as if it were alone

    cache = layer.start_cache(B, capacity=4096)
    y = layer(prompt, cache)                   # a prompt,
    y = layer(token, cache)                    # then token after token

Rotary embedding is per head, on q, k_sel and k_win; the compressed branch compresses un-rotated
keys and rotates each block at its first position.
Shapes: B batch, S positions, H heads, G groups, D head dimension, C compressed blocks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from nsa.attention.cache import NsaCache
from nsa.attention.compression import build_compression
from nsa.attention.decode import Reading, decode, prefill
from nsa.attention.operation import never_compiled, nsa_attention
from nsa.attention.packing import attend_documents, document_lengths
from nsa.attention.projection import project, rotate, rotation_table
from nsa.attention.tensors import Sizes, Tensors, check_sizes

BRANCHES = ("compressed", "selected", "window")
# Integers [B, S], equal within a document; or the tokens of each document, per batch item, which a
# model reads from them once for all its layers.
Documents = Tensor | Sequence[Sequence[int]]


class NativeSparseAttention(nn.Module):
    """arXiv 2502.11089 as a layer, `[B, S, dim]` to `[B, S, dim]`.

    Each branch has its own keys and values; `gate` gives every head and branch a weight in (0, 1).
    With `keep_gate_stats` the forward pass leaves `[mean normalised entropy, mean largest share]`
    of the gates in `gate_stats`, with `keep_selection` the selected block ids `[B, S, G, n_sel]` in
    `selection`. With `sequential` evaluation attends token by token through the cache, as
    generation does: the slow reference of the batched path.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        groups: int,
        head_dim: int,
        *,
        l: int = 32,  # noqa: E741 - the paper's letter
        d: int = 16,
        l_sel: int = 64,
        n_sel: int = 16,
        w: int = 512,
        compression: str = "mean",
        rope_theta: float = 10_000.0,
        backend: str = "auto",
    ) -> None:
        """Draw the weights.

        Args:
            dim: Width of the input and of the output.
            heads: Query heads.
            groups: Key/value heads of each branch; divides the heads.
            head_dim: Width of a head, even.
            l: Tokens in a compression block.
            d: Tokens between the starts of two compression blocks; divides l and l_sel.
            l_sel: Tokens in a selection block.
            n_sel: Blocks each query selects, at least 3.
            w: Tokens a query sees in the window branch.
            compression: φ: "mean", or "mlp" (learned, the paper's).
            rope_theta: Base of the rotary embedding.
            backend: auto, reference, torch or triton.

        Raises:
            ValueError: Sizes that do not fit together.
        """
        super().__init__()
        check_sizes(l, d, l_sel, n_sel, w)
        if min(dim, heads, groups, head_dim) < 1 or heads % groups != 0 or head_dim % 2 != 0:
            raise ValueError(
                "all must be at least 1, groups divide heads and head_dim be even, got"
                f" {dim=} {heads=} {groups=} {head_dim=}"
            )
        if not rope_theta > 0:
            raise ValueError(f"rope_theta must be more than 0, got {rope_theta}")
        kv_width = groups * head_dim
        self.sizes = Sizes(l=l, d=d, l_sel=l_sel, n_sel=n_sel, w=w)
        self.head_dim, self.rope_theta, self.backend = head_dim, rope_theta, backend
        self.w_q = nn.Linear(dim, heads * head_dim, bias=False)
        self.w_k = nn.ModuleDict({name: nn.Linear(dim, kv_width, bias=False) for name in BRANCHES})
        self.w_v = nn.ModuleDict({name: nn.Linear(dim, kv_width, bias=False) for name in BRANCHES})
        self.gate = nn.Linear(dim, heads * len(BRANCHES))
        self.w_o = nn.Linear(heads * head_dim, dim, bias=False)
        self.compression = build_compression(compression, head_dim, l, d)
        self.keep_gate_stats = False
        self.gate_stats: Tensor | None = None
        self.keep_selection = False
        self.selection: Tensor | None = None
        self.sequential = False
        self.reading: Reading = "blocks"

    def forward(
        self,
        x: Tensor,
        cache: NsaCache | None = None,
        doc_ids: Documents | None = None,
        *,
        table: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            x: Tokens [B, S, dim].
            cache: Of `start_cache`, or any of the same sizes: these tokens follow those in it, and
                are added to it. No gradients.
            doc_ids: Integers [B, S] whose runs of equal numbers are documents: each is attended,
                and its positions are counted, as if it were alone. Not with a cache.
            table: Rotations of the positions from 0 on (`rotation_table`), for layers that share
                one; made here by default.

        Returns:
            [B, S, dim].

        Raises:
            ValueError: Tokens of another shape, both cache and doc_ids, a cache of other sizes, or
                more tokens than it has room for.
        """
        if x.dim() != 3:
            raise ValueError(f"x must be [B, S, dim], got {tuple(x.shape)}")
        B, S, _ = x.shape
        if cache is not None:
            if doc_ids is not None:
                raise ValueError("a cache holds one document a sequence: no doc_ids with it")
            return self._extend(x, cache, table)
        read = self._project(x)
        if self.keep_gate_stats:
            self.gate_stats = _gate_stats(read.gates.detach())
        table = self._rotations(0, S, x) if table is None else table
        attend = functools.partial(self._attend, table=table)
        if doc_ids is None or not B:
            out, *ids = attend(*read)
        else:
            documents = document_lengths(doc_ids) if isinstance(doc_ids, Tensor) else doc_ids
            out, *ids = attend_documents(attend, read, documents)
        if ids:
            (self.selection,) = ids
        return self.w_o(out.flatten(2))

    def start_cache(
        self, B: int, capacity: int, *, like: Tensor | None = None, table: Tensor | None = None
    ) -> NsaCache:
        """An empty cache with room for `capacity` tokens of each of B sequences.

        `like` has the dtype and device that keys will have; default those of the weights, which
        quantised ones or those kept elsewhere do not have.
        """
        like = self.w_q.weight if like is None else like
        cache = NsaCache(
            B=B,
            G=self.groups,
            D=self.head_dim,
            capacity=capacity,
            sizes=self.sizes,
            dtype=like.dtype,
            device=like.device,
        )
        self._begin(cache, table)
        return cache

    def _begin(self, cache: NsaCache, table: Tensor | None) -> None:
        """Have an empty cache compress as this layer does."""
        if cache.sizes != self.sizes:
            raise ValueError(f"the cache is for {cache.sizes}, the layer has {self.sizes}")
        if table is None:
            table = self._rotations(0, cache.capacity, cache.k_sel)
        cache.compression, cache.turn_blocks = self.compression, self._turn(table)

    def _attend(
        self,
        *each: Tensor,
        table: Tensor,
    ) -> tuple[Tensor, ...]:
        """Output `[B, S, H, D]` of un-rotated heads, and block ids with `keep_selection`."""
        here = table[:, : each[0].shape[1]]
        tensors = _rotated(Tensors(*each), here)
        if self.sequential and not self.training:
            return (self._attend_sequentially(tensors, here),)
        k_blocks, v_blocks = self.compression(tensors.k_cmp, tensors.v_cmp)
        sizes = self.sizes
        attend = functools.partial(
            nsa_attention,
            *tensors,
            l=sizes.l,
            d=sizes.d,
            l_sel=sizes.l_sel,
            n_sel=sizes.n_sel,
            w=sizes.w,
            compressed=(self._turn(here)(k_blocks, 0), v_blocks),
            backend=self.backend,
        )
        if self.keep_selection:
            out, ids = attend(return_selection=True)
            return out, ids
        return (attend(),)

    @never_compiled
    def _attend_sequentially(self, tensors: Tensors, table: Tensor) -> Tensor:
        B, S, _, _ = tensors.q.shape
        cache = self.start_cache(B, S, like=tensors.q, table=table)
        return self._prefill(tensors, cache, batched=False)

    @never_compiled
    def _extend(self, x: Tensor, cache: NsaCache, table: Tensor | None) -> Tensor:
        """Attend for the tokens after those in the cache."""
        S = x.shape[1]
        cache.check_room(S)  # before any of them is kept
        first = cache.length
        here = self._rotations(first, S, x) if table is None else table[:, first : first + S]
        tensors = _rotated(self._project(x), here)
        if first == 0:
            self._begin(cache, table)
            out = self._prefill(tensors, cache, batched=not self.sequential)
            return self.w_o(out.flatten(2))
        outs = []
        for t in range(S):
            q, *keys_values, gates = (part[:, t : t + 1] for part in tensors)
            cache.append(*keys_values)
            outs.append(decode(q, gates, cache, reading=self.reading)[0])
        return self.w_o(torch.cat(outs, dim=1).flatten(2))

    def _prefill(self, tensors: Tensors, cache: NsaCache, *, batched: bool) -> Tensor:
        return prefill(*tensors, cache, batched=batched, reading=self.reading, backend=self.backend)

    def _project(self, x: Tensor) -> Tensors:
        """What is attended, none of it rotated."""
        pairs = (layer for name in BRANCHES for layer in (self.w_k[name], self.w_v[name]))
        *heads, gates = project(x, [self.w_q, *pairs, self.gate])
        gates = torch.sigmoid(gates).view(*x.shape[:2], self.heads, len(BRANCHES))
        return Tensors._make((*(self._heads(part) for part in heads), gates.to(heads[0].dtype)))

    def _rotations(self, first: int, positions: int, like: Tensor) -> Tensor:
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        return rotation_table(
            positions, self.head_dim, self.rope_theta, first=first, dtype=dtype, device=like.device
        )

    def _turn(self, table: Tensor) -> Callable[[Tensor, int], Tensor]:
        """What turns compressed keys, from a number of a block on, to their first positions."""
        starts = table[:, :: self.sizes.d]

        def turn(blocks_BCGD: Tensor, first: int) -> Tensor:
            return rotate(blocks_BCGD, starts[:, first : first + blocks_BCGD.shape[1]])

        return turn

    @property
    def heads(self) -> int:
        """Query heads, as the projections have them."""
        return self.w_q.out_features // self.head_dim

    @property
    def groups(self) -> int:
        """K/V heads of each branch, as the projections have them."""
        width = self.w_k["selected"].out_features  # a packed weight has another shape
        assert isinstance(width, int)
        return width // self.head_dim

    def _heads(self, x: Tensor) -> Tensor:
        B, S, width = x.shape
        return x.view(B, S, width // self.head_dim, self.head_dim)


def _rotated(tensors: Tensors, table: Tensor) -> Tensors:
    """Queries and the keys of single tokens turned by their positions."""
    q, k_sel, k_win = (rotate(x, table) for x in (tensors.q, tensors.k_sel, tensors.k_win))
    return tensors._replace(q=q, k_sel=k_sel, k_win=k_win)


def _gate_stats(gates_BSH3: Tensor) -> Tensor:
    shares = gates_BSH3.float()
    shares = shares / shares.sum(dim=-1, keepdim=True)
    entropy = -(shares * shares.clamp_min(1e-12).log()).sum(dim=-1) / math.log(len(BRANCHES))
    return torch.stack((entropy.mean(), shares.amax(dim=-1).mean()))
