"""Projections of one input as one product, and rotary positions of every head by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def project(x: Tensor, layers: Sequence[nn.Module]) -> tuple[Tensor, ...]:
    """What each layer gives for the input: views of one tensor where one product served.

    Layers that are more than an `nn.Linear` (an adapter, a quantised one, one with hooks or with
    another `forward`) are called one by one.
    """
    plain = [layer for layer in layers if isinstance(layer, nn.Linear) and _is_plain(layer)]
    if len(plain) < len(layers):
        return tuple(layer(x) for layer in layers)
    weights = [layer.weight for layer in plain]
    together = nn.functional.linear(x, torch.cat(weights))
    parts = together.split([len(weight) for weight in weights], dim=-1)
    return tuple(
        part if layer.bias is None else part + layer.bias
        for part, layer in zip(parts, plain, strict=True)
    )


def _is_plain(layer: nn.Linear) -> bool:
    hooks = (
        layer._forward_hooks,
        layer._forward_pre_hooks,
        layer._backward_hooks,
        layer._backward_pre_hooks,
    )
    # Offloading and adapters replace a layer's `forward`; quantising replaces its weight by one
    # that can only be multiplied.
    as_it_was = type(layer) is nn.Linear and "forward" not in vars(layer)
    return as_it_was and type(layer.weight) in (Tensor, nn.Parameter) and not any(hooks)


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
    """Turn every head `[B, S, N, D]` by its position; dimension m is paired with m + D/2.

    `table` has the rows of `rotation_table` for the S positions. A dot product of two results
    depends on the difference of their positions only.
    """
    if torch.compiler.is_compiling():
        return _formula(x_BSND, table)
    turned: Tensor = _Rotation.apply(x_BSND, table, 1)
    return turned


def _formula(x_BSND: Tensor, table: Tensor, sign: int = 1) -> Tensor:
    """As a compiler fuses it; step by step it would take twice the operations."""
    cos, sin = table[:, :, None]
    first, second = x_BSND.to(torch.promote_types(x_BSND.dtype, table.dtype)).chunk(2, dim=-1)
    turned = (
        torch.addcmul(first * cos, second, sin, value=-sign),
        torch.addcmul(second * cos, first, sin, value=sign),
    )
    return torch.cat(turned, dim=-1).to(x_BSND.dtype)


class _Rotation(torch.autograd.Function):
    """`_formula` in four operations; backward turns the other way."""

    @staticmethod
    def forward(ctx: Any, x_BSND: Tensor, table: Tensor, sign: int) -> Tensor:  # type: ignore[override]
        ctx.sign = sign
        ctx.save_for_backward(table)
        cos, sin = table[:, :, None]
        exact = torch.promote_types(x_BSND.dtype, table.dtype)
        turned = torch.empty(x_BSND.shape, dtype=exact, device=x_BSND.device)
        here, there = x_BSND.chunk(2, dim=-1), turned.chunk(2, dim=-1)
        torch.mul(here[0], cos, out=there[0]).addcmul_(here[1], sin, value=-sign)
        torch.mul(here[1], cos, out=there[1]).addcmul_(here[0], sin, value=sign)
        return turned.to(x_BSND.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (table,) = ctx.saved_tensors
        return _Rotation.apply(grad, table, -ctx.sign), None, None
