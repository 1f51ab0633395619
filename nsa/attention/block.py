"""What stands around the attention in a Llama-style layer: RMSNorm, SwiGLU, two residuals."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


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
        # A model that was cast as a whole goes on in its dtype; autocast's weights are fp32.
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
