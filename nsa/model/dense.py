"""Causal attention over everything, for comparison with NSA.

Shapes: B batch, S positions, G groups, D head dimension.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from nsa.attention import dense_attention
from nsa.attention.module import Documents
from nsa.attention.operation import never_compiled
from nsa.attention.packing import attend_documents, document_lengths
from nsa.attention.projection import project
from nsa.attention.rotary import rotate, rotation_table
from nsa.config import ModelConfig

# A compiler's graph ends before this call and begins again behind it, because the kernel is chosen
# and counted at every call.
_attend = never_compiled(dense_attention)


class DenseCache:
    """Keys and values of the tokens so far, `[B, capacity, G, D]`."""

    def __init__(self, B: int, capacity: int, G: int, D: int, like: Tensor) -> None:
        self.length = 0
        self.k, self.v = (
            torch.zeros(B, capacity, G, D, dtype=like.dtype, device=like.device) for _ in range(2)
        )

    def append(self, k_BSGD: Tensor, v_BSGD: Tensor) -> None:
        """Add S tokens."""
        end = self.length + k_BSGD.shape[1]
        self.k[:, self.length : end], self.v[:, self.length : end] = k_BSGD, v_BSGD
        self.length = end


class DenseAttention(nn.Module):
    """Causal attention over everything, with the same heads and groups."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        kv_width = model.groups * model.head_dim
        self.head_dim, self.rope_theta = model.head_dim, model.rope_theta
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

    def forward(
        self,
        x_BSE: Tensor,
        cache: DenseCache | None = None,
        doc_ids: Documents | None = None,
        *,
        table: Tensor | None = None,
    ) -> Tensor:
        """Attend; arguments as those of `NativeSparseAttention`."""
        B, S, _ = x_BSE.shape
        first = 0 if cache is None else cache.length
        if table is None:
            table = rotation_table(first + S, self.head_dim, self.rope_theta, device=x_BSE.device)
        if cache is not None:
            return self._extend(x_BSE, cache, table[:, first : first + S])
        read = self._project(x_BSE)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
            here = table[:, : q.shape[1]]
            return (_attend(rotate(q, here), rotate(k, here), v),)

        if doc_ids is None:
            (out,) = attend(*read)
        else:
            documents = document_lengths(doc_ids) if isinstance(doc_ids, Tensor) else doc_ids
            (out,) = attend_documents(attend, read, documents)
        return self.w_o(out.reshape(B, S, -1))

    def start_cache(self, B: int, capacity: int, *, like: Tensor, table: Tensor) -> DenseCache:
        """An empty cache; arguments as those of `NativeSparseAttention`."""
        return DenseCache(B, capacity, self.groups, self.head_dim, like)

    def _extend(self, x_BSE: Tensor, cache: DenseCache, here: Tensor) -> Tensor:
        """Attend for the tokens after those in the cache: a whole prompt, or one more token."""
        B, S, _ = x_BSE.shape
        first = cache.length
        q, k, v = self._project(x_BSE)
        q, k = rotate(q, here), rotate(k, here)
        cache.append(k, v)
        if first == 0:
            return self.w_o(dense_attention(q, k, v).reshape(B, S, -1))
        k, v = (x[:, : cache.length].transpose(1, 2) for x in (cache.k, cache.v))
        out = scaled_dot_product_attention(q.transpose(1, 2), k, v, enable_gqa=True)
        return self.w_o(out.transpose(1, 2).reshape(B, S, -1))

    def _project(self, x_BSE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (
            x.view(*x_BSE.shape[:2], -1, self.head_dim)
            for x in project(x_BSE, (self.w_q, self.w_k, self.w_v))
        )
        return q, k, v
