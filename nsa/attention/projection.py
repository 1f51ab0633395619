"""Several linear layers of one input as one product; the layers stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

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
