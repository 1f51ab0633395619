"""The Llama-style network around the attention: pre-norm layers, embeddings untied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class RMSNorm(nn.Module):
    """x / rms(x) · weight, computed in fp32 (fp64 for fp64) whatever the input."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension; rounded where input and weight are of one dtype."""
        exact = x if x.dtype == torch.float64 else x.float()
        weight = self.weight.to(exact.dtype)  # on a GPU the rest is one kernel
        normed = nn.functional.rms_norm(exact, weight.shape, weight, self.eps)
        # A model that was cast as a whole stays in its dtype; autocast's weights are fp32.
        return normed.to(x.dtype) if x.dtype == self.weight.dtype else normed


class SwiGLU(nn.Module):
    """w_down(silu(w_gate x) · w_up x)."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.w_gate = nn.Linear(dim, width, bias=False)
        self.w_up = nn.Linear(dim, width, bias=False)
        self.w_down = nn.Linear(width, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the last dimension."""
        return self.w_down(nn.functional.silu(self.w_gate(x)) * self.w_up(x))


class Block(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x))."""

    attention: Any
    """`NativeSparseAttention`, or what is called as it is."""

    def __init__(self, attention: nn.Module, dim: int, ffn_width: int, norm_eps: float) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(dim, norm_eps)
        self.attention = attention
        self.ffn_norm = RMSNorm(dim, norm_eps)
        self.ffn = SwiGLU(dim, ffn_width)

    def forward(
        self,
        x_BSE: Tensor,
        cache: Any = None,
        documents: Any = None,
        table: Tensor | None = None,
    ) -> Tensor:
        """One layer; all but the tokens as `NativeSparseAttention.forward` takes it."""
        read = self.attention_norm(x_BSE)
        x_BSE = x_BSE + self.attention(read, cache, documents, table=table)
        return x_BSE + self.ffn(self.ffn_norm(x_BSE))


class Network:
    """Embedding, layers, norm and head; for an `nn.Module` to inherit beside its own class.

    Attributes:
        gradient_checkpointing: Whether training computes a layer's inside again in the backward
            pass; `reentrant` by PyTorch's older way.
    """

    embedding: nn.Embedding
    blocks: nn.ModuleList
    norm: RMSNorm
    head: nn.Linear
    training: bool
    gradient_checkpointing = False
    reentrant = False

    def add_network(
        self,
        attention: Callable[[], nn.Module],
        *,
        layers: int,
        vocab: int,
        dim: int,
        ffn_width: int,
        norm_eps: float,
    ) -> None:
        """Make the modules; `attention` makes the attention of one layer."""
        self.embedding = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(
            Block(attention(), dim, ffn_width, norm_eps) for _ in range(layers)
        )
        self.norm = RMSNorm(dim, norm_eps)
        self.head = nn.Linear(dim, vocab, bias=False)

    def layers(self) -> list[Block]:
        """The layers, first to last."""
        return [block for block in self.blocks if isinstance(block, Block)]

    def run_layers(
        self,
        x_BSE: Tensor,
        caches: Sequence[Any] | None = None,
        documents: Any = None,
        table: Tensor | None = None,
    ) -> Tensor:
        """Embedded tokens through all layers; arguments as `NativeSparseAttention.forward`."""
        for number, block in enumerate(self.blocks):
            if caches is not None:
                x_BSE = block(x_BSE, caches[number], documents, table)
            elif self.gradient_checkpointing and self.training:
                x_BSE = checkpoint(
                    block, x_BSE, None, documents, table, use_reentrant=self.reentrant
                )
            else:
                x_BSE = block(x_BSE, None, documents, table)
        return x_BSE
