"""Refuse second derivatives of the fast backends, which would be silently zero.

PyTorch's `once_differentiable` does not refuse where the incoming gradient requires none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Gradients = tuple[Tensor | None, ...]


class _Refusal(torch.autograd.Function):
    """The identity of its first `count` tensors, with no gradient to give."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple(tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_grads: Tensor) -> Gradients:
        raise NotImplementedError(
            "nsa_attention has first derivatives only; for second ones use backend='reference'"
        )


def first_derivatives_only(
    backward: Callable[..., Gradients],
) -> Callable[..., Gradients]:
    """Have the gradients of an autograd function raise when they are differentiated themselves.

    Args:
        backward: The function's `backward`; it may return None for what needs no gradient.

    Raises:
        NotImplementedError: From the second derivative, at the time it is asked for.
    """

    @functools.wraps(backward)
    def refusing(ctx: Any, *grad_outputs: Tensor) -> Gradients:
        with torch.no_grad():
            grads = backward(ctx, *grad_outputs)
        if not torch.is_grad_enabled():  # nobody keeps a graph of this pass
            return grads
        kept = [grad for grad in grads if grad is not None]
        causes = [x for x in (*ctx.saved_tensors, *grad_outputs) if isinstance(x, Tensor)]
        refused = iter(_Refusal.apply(len(kept), *kept, *causes))
        return tuple(None if grad is None else next(refused) for grad in grads)

    return refusing
