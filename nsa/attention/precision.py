"""What the fast backends guarantee of numbers: exact products, and no silent second derivatives.

PyTorch may round the inputs of fp32 products (TF32 on GPUs, bf16 on CPUs). Trainers turn that on
for linear layers; scores, and above all the selection, must not depend on it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Gradients = tuple[Tensor | None, ...]


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Do not round the inputs of fp32 matrix products on a device, meanwhile."""
    owner: Any = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    switch = getattr(owner, "matmul", None)
    before = getattr(switch, "fp32_precision", "none")  # since torch 2.9
    if before in ("none", "ieee"):
        yield
        return
    assert switch is not None
    switch.fp32_precision = "ieee"
    try:
        yield
    finally:
        switch.fp32_precision = before


def first_derivatives_only(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Have an autograd function's `backward` refuse `create_graph`.

    PyTorch's `once_differentiable` gives zeros where the incoming gradient requires none.

    Raises:
        NotImplementedError: When second derivatives are prepared.
    """

    @functools.wraps(backward)
    def refusing(ctx: Any, *grad_outputs: Tensor) -> Gradients:
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "nsa_attention has first derivatives only; for second ones use backend='reference'"
            )
        return backward(ctx, *grad_outputs)

    return refusing
