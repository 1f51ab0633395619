"""The language model: bytes in, logits over the next byte out."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsa.attention.module import NativeSparseAttention
from nsa.attention.network import Network
from nsa.attention.packing import separated_documents
from nsa.attention.rotary import rotation_table
from nsa.attention.tensors import FORCED
from nsa.config import SEPARATOR, TrainConfig
from nsa.model.dense import DenseAttention


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
    """Bytes in, logits over the next byte out.

    `rotation` holds one row per position, so its length is the longest sequence that fits.
    """

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
        """Logits `[B, vocab]` after the last of some tokens that follow those in the caches.

        A whole prompt goes into empty caches, then one token at a time.

        Raises:
            ValueError: more tokens in all than `seq_len`.
        """
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
