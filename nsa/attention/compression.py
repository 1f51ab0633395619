"""φ: make one compressed key and value of l tokens, one block every d tokens.

- `MeanCompression`: the mean of the block.
- `MlpCompression`: the paper's: a learned embedding of the place, then a two-layer perceptron.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

# Inner width of the perceptron, in head dimensions.
_WIDTH = 2


class Compression(Protocol):
    """φ of keys and of values. A module with weights of its own is one, and so is a function."""

    def __call__(self, k_BSGD: Tensor, v_BSGD: Tensor) -> tuple[Tensor, Tensor]:
        """Compress un-rotated keys, and values."""
        ...


def compressed_length(S: int, l: int, d: int) -> int:  # noqa: E741  (the paper's letter)
    """How many whole blocks of `l` tokens, one every `d` tokens, fit into `S` tokens."""
    return max(0, (S - l) // d + 1)


def compress_tokens(x_BSGD: Tensor, l: int, d: int) -> Tensor:  # noqa: E741
    """Means of overlapping blocks [B, C, G, D] of l tokens, one every d tokens, in fp32 (or fp64).

    Every chunk of d tokens is summed once, then reused.
    """
    B, S, G, D = x_BSGD.shape
    exact = exact_dtype(x_BSGD.dtype)
    blocks = compressed_length(S, l, d)
    if blocks == 0:
        return x_BSGD[:, :0].to(exact)
    chunks = blocks + l // d - 1
    whole = x_BSGD[:, : chunks * d].reshape(B, chunks, d, G, D)
    chunk_sums = whole.sum(2, dtype=exact)
    total = chunk_sums[:, :blocks]
    for shift in range(1, l // d):
        total = total + chunk_sums[:, shift : shift + blocks]
    return total / l


class MeanCompression(nn.Module):
    """The mean of every block, in fp32 (fp64 for fp64 input)."""

    def __init__(self, l: int, d: int) -> None:  # noqa: E741
        super().__init__()
        self.l, self.d = l, d

    def forward(self, k_BSGD: Tensor, v_BSGD: Tensor) -> tuple[Tensor, Tensor]:
        """Compress; see `Compression`."""
        return compress_tokens(k_BSGD, self.l, self.d), compress_tokens(v_BSGD, self.l, self.d)


class BlockMlp(nn.Module):
    """One vector of each block of l vectors: w_out silu(w_in flatten(x + position))."""

    def __init__(self, head_dim: int, l: int, d: int) -> None:  # noqa: E741
        super().__init__()
        self.l, self.d = l, d
        self.position = nn.Parameter(torch.empty(l, head_dim))
        self.w_in = nn.Linear(l * head_dim, _WIDTH * head_dim)
        self.w_out = nn.Linear(_WIDTH * head_dim, head_dim)
        self.draw_weights()

    def draw_weights(self) -> None:
        """Draw the weights again."""
        nn.init.normal_(self.position, std=0.02)
        for layer in (self.w_in, self.w_out):  # keys keep the scale of what they are made of
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
            nn.init.zeros_(layer.bias)

    def forward(self, x_BSGD: Tensor) -> Tensor:
        """Blocks [B, C, G, D], in fp32 (fp64 where input and weights are)."""
        exact = torch.promote_types(exact_dtype(x_BSGD.dtype), exact_dtype(self.position.dtype))
        B, S, G, D = x_BSGD.shape
        blocks = compressed_length(S, self.l, self.d)
        if blocks:
            covered = x_BSGD[:, : (blocks - 1) * self.d + self.l].to(exact)
            blocks_BCGlD = covered.unfold(1, self.l, self.d).transpose(-1, -2)
        else:  # the weights still get a gradient, of zeros: averaging ranks wait for one
            blocks_BCGlD = x_BSGD.new_empty(B, 0, G, self.l, D, dtype=exact)
        placed = blocks_BCGlD + self.position.to(exact)
        hidden = _linear(placed.flatten(-2), self.w_in)
        return _linear(nn.functional.silu(hidden), self.w_out)


class MlpCompression(nn.Module):
    """The paper's φ: two perceptrons over whole blocks, one for keys and one for values.

    Computed in fp32 whatever the input, also under autocast: its keys decide what is selected.
    """

    def __init__(self, head_dim: int, l: int, d: int) -> None:  # noqa: E741
        super().__init__()
        self.keys = BlockMlp(head_dim, l, d)
        self.values = BlockMlp(head_dim, l, d)

    def forward(self, k_BSGD: Tensor, v_BSGD: Tensor) -> tuple[Tensor, Tensor]:
        """Compress; see `Compression`."""
        with torch.autocast(k_BSGD.device.type, enabled=False):
            return self.keys(k_BSGD), self.values(v_BSGD)


def build_compression(name: str, head_dim: int, l: int, d: int) -> nn.Module:  # noqa: E741
    """The φ of a name (mean or mlp) with fresh weights; ValueError where there is none."""
    if l % d != 0:
        raise ValueError(f"d must divide l, got {l=} {d=}")
    if name == "mean":
        return MeanCompression(l, d)
    if name == "mlp":
        return MlpCompression(head_dim, l, d)
    raise ValueError(f"compression is mean or mlp, not {name!r}")


def exact_dtype(dtype: torch.dtype) -> torch.dtype:
    """What is summed in: fp32, fp64 for fp64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """The layer in the input's precision, whatever the weights are stored in."""
    bias = None if layer.bias is None else layer.bias.to(x.dtype)
    return nn.functional.linear(x, layer.weight.to(x.dtype), bias)
