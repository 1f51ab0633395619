"""How do l tokens become one compressed key or value? By their mean, one block every d tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def compressed_length(S: int, l: int, d: int) -> int:  # noqa: E741  (the paper's letter)
    """How many whole blocks of `l` tokens, one every `d` tokens, fit into `S` tokens."""
    return max(0, (S - l) // d + 1)


def compress_tokens(x_BSGD: Tensor, l: int, d: int) -> Tensor:  # noqa: E741
    """Mean-pool overlapping blocks: every chunk of `d` tokens is summed once, then reused.

    Args:
        x_BSGD: Keys or values [B, S, G, D].
        l: Tokens in a block; a multiple of d.
        d: Tokens between the starts of two blocks.

    Returns:
        Block means [B, C, G, D], C = max(0, (S - l) // d + 1), in fp32 (fp64 for fp64 input).
    """
    B, S, G, D = x_BSGD.shape
    exact = torch.float64 if x_BSGD.dtype == torch.float64 else torch.float32
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
