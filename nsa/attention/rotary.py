"""Where is a token? Rotary position embedding, applied to every head by itself.

Shapes: B batch, S positions, N heads or groups, D head dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotation_table(
    positions: int,
    head_dim: int,
    theta: float,
    *,
    first: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Cosines and sines of the positions from `first` on, `[2, positions, head_dim / 2]`.

    Pair m of a head turns by position / theta^(2m / head_dim) radians, computed in fp64.
    """
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device)
    steps = torch.arange(first, first + positions, dtype=torch.float64, device=device)
    angles = steps[:, None] * theta ** (-pairs / head_dim)[None, :]
    return torch.stack((angles.cos(), angles.sin())).to(dtype)


def rotate(x_BSND: Tensor, table: Tensor) -> Tensor:
    """Turn every head by its position, in the table's precision or the heads', the finer of them.

    Args:
        x_BSND: heads, `[B, S, N, D]`; dimension m is paired with m + D/2.
        table: `[2, S, D / 2]`, the rows of `rotation_table` for the S positions.

    Returns:
        The same shape and dtype; a dot product of two results depends on the difference of their
        positions only.
    """
    cos, sin = table[0][:, None, :], table[1][:, None, :]
    first, second = x_BSND.to(torch.promote_types(x_BSND.dtype, table.dtype)).chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x_BSND.dtype)
