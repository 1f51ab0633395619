"""The language model: bytes in, logits over the next byte out."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention

from nsa.attention import dense_attention
from nsa.attention.module import Documents, NativeSparseAttention
from nsa.attention.network import Network
from nsa.attention.operation import never_compiled
from nsa.attention.packing import attend_documents, document_lengths, separated_documents
from nsa.attention.projection import project, rotate, rotation_table
from nsa.attention.tensors import FORCED
from nsa.config import SEPARATOR, ModelConfig, TrainConfig

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


def build_attention(config: TrainConfig) -> NativeSparseAttention | DenseAttention:
    """The attention of one layer."""
    model, attention = config.model, config.attention
    if attention.kind == "dense":
        return DenseAttention(model)
    blocks = -(-model.seq_len // attention.l_sel)
    return NativeSparseAttention(
        model.dim,
        model.heads,
        model.groups,
        model.head_dim,
        l=attention.l,
        d=attention.d,
        l_sel=attention.l_sel,
        n_sel=max(FORCED, min(attention.n_sel, blocks)),  # no text has more
        w=attention.w,
        compression=attention.compression or "mean",
        rope_theta=model.rope_theta,
        backend=attention.backend,
    )


class LanguageModel(Network, nn.Module):
    """Bytes in, logits over the next byte out; `rotation` has as many rows as fit positions."""

    rotation: Tensor

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        model = config.model
        self.add_network(
            partial(build_attention, config),
            layers=model.layers,
            vocab=model.vocab,
            dim=model.dim,
            ffn_width=model.ffn_width,
            norm_eps=model.norm_eps,
        )
        self.gradient_checkpointing = model.gradient_checkpointing is not False
        self.reentrant = model.gradient_checkpointing == "reentrant"
        self.documents_apart = config.packing is not None and config.packing.documents_apart
        table = rotation_table(model.seq_len, model.head_dim, model.rope_theta)
        self.register_buffer("rotation", table, persistent=False)
        self._initialise(model.init_std)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Logits `[B, S, vocab]` for int64 tokens `[B, S]`, S at most the model's seq_len."""
        table = self.rotation[:, : tokens_BS.shape[1]]
        documents = separated_documents(tokens_BS, SEPARATOR[0]) if self.documents_apart else None
        x_BSE = self.run_layers(self.embedding(tokens_BS), None, documents, table)
        return self.head(self.norm(x_BSE))

    @torch.no_grad()
    def start_caches(self, B: int) -> list[Any]:
        """Empty caches of B sequences, one per layer, each with room for `seq_len` tokens."""
        # Keys have the dtype that a projection gives, which autocast may have changed.
        like = self.head(self.norm(self.embedding.weight[:1]))
        table = self.rotation
        return [
            block.attention.start_cache(B, table.shape[1], like=like, table=table)
            for block in self.layers()
        ]

    @torch.no_grad()
    def extend(self, tokens_BS: Tensor, caches: Sequence[Any]) -> Tensor:
        """Logits `[B, vocab]` after the last of some tokens that follow those in the caches."""
        most, after = self.rotation.shape[1], caches[0].length + tokens_BS.shape[1]
        if after > most:
            raise ValueError(f"the model sees {most} tokens at most, not {after}")
        x_BSE = self.run_layers(self.embedding(tokens_BS), caches, table=self.rotation)
        return self.head(self.norm(x_BSE[:, -1]))

    def sparse(self) -> list[NativeSparseAttention]:
        """The attention of each layer; none where it is dense."""
        found = (block.attention for block in self.layers())
        return [attention for attention in found if isinstance(attention, NativeSparseAttention)]

    def keep_gate_stats(self, keep: bool) -> None:
        """Whether forward passes leave gate statistics behind (`nsa.model.statistics`)."""
        for attention in self.sparse():
            attention.keep_gate_stats = keep

    def keep_selection(self, keep: bool) -> None:
        """Whether forward passes leave the selected blocks behind (`nsa.model.statistics`)."""
        for attention in self.sparse():
            attention.keep_selection = keep
            attention.selection = None

    def evaluate_sequentially(self, *, ranges_vectorised: bool) -> None:
        """Attend token by token in evaluation, with selection ranges V2 or V1."""
        for attention in self.sparse():
            attention.sequential = True
            attention.reading = "v2" if ranges_vectorised else "v1"

    @torch.no_grad()
    def poison(self) -> None:
        """Make every further loss NaN: the injected fault `nan`."""
        self.norm.weight.fill_(math.nan)

    def _initialise(self, std: float) -> None:
        residual_std = std / math.sqrt(2 * len(self.blocks))
        for name, parameter in self.named_parameters():
            if name.endswith("gate.bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2 and ".compression." not in name:  # that has scales of its own
                into_residual = name.endswith(("w_o.weight", "w_down.weight"))
                nn.init.normal_(parameter, std=residual_std if into_residual else std)


def build_model(config: TrainConfig) -> LanguageModel:
    """The model of a configuration on the default device, drawn from torch's current seed."""
    return LanguageModel(config)


def next_byte_loss(logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
    """Mean cross-entropy in nats per byte, in fp32."""
    return F.cross_entropy(logits_BSV.float().flatten(0, 1), targets_BS.flatten())
