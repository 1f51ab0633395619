"""How exact are fp32 matrix products here? Said for each part, whatever the process has set.

PyTorch may round the inputs of fp32 products (TF32 on GPUs, bf16 on CPUs), depending on switches
that hold for the whole process and that a trainer turns on for its linear layers. Scores, and above
all the selection, must not depend on them. On the other hand bf16 inputs on a CPU lose nothing when
products round to bf16 and sum in fp32, and take a third less time: queries, keys, values and
gradients are not changed by that rounding, and probabilities are rounded as in every flash kernel.
That holds as long as keys are not scaled before the product.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

Rounding = Literal["ieee", "bf16"]


@functools.cache
def _cpu_has_bf16() -> bool:
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    probes = [getattr(torch.cpu, name, None) for name in names]
    settable = hasattr(torch.backends.mkldnn, "matmul")  # torch 2.9
    return settable and any(probe is not None and probe() for probe in probes)


def native_bf16(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether products of such inputs run as bf16 products with fp32 sums on this machine."""
    return dtype == torch.bfloat16 and device.type == "cpu" and _cpu_has_bf16()


def _switch(device: torch.device) -> Any:
    """What holds PyTorch's switch for a device; None before torch 2.9, where no other one is."""
    owner: Any = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    matmul = getattr(owner, "matmul", None)
    return matmul if hasattr(matmul, "fp32_precision") else None


@contextmanager
def products(device: torch.device, rounding: Rounding) -> Iterator[None]:
    """Have fp32 matrix products on a device round their inputs so, meanwhile.

    Args:
        device: Where the products are computed.
        rounding: "ieee" not at all, "bf16" to bf16 (ask `native_bf16` first).
    """
    switch = _switch(device)
    before = None if switch is None else switch.fp32_precision
    if before is None or before == rounding or (before == "none" and rounding == "ieee"):
        yield
        return
    switch.fp32_precision = rounding
    try:
        yield
    finally:
        switch.fp32_precision = before
