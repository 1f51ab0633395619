"""How are bf16 inputs multiplied on a CPU? By bf16 products summed in fp32, where the CPU has them.

oneDNN can take fp32 matrices, round them to bf16 and accumulate in fp32. Queries, keys, values and
gradients that came as bf16 are not changed by that rounding; probabilities are rounded, as in every
flash kernel. So scores keep fp32 precision as long as keys are not scaled before the product.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@functools.cache
def _cpu_has_bf16() -> bool:
    probes = (getattr(torch.cpu, name, None) for name in (
        "_is_avx512_bf16_supported", "_is_amx_tile_supported"
    ))  # fmt: skip
    settable = hasattr(torch.backends.mkldnn, "matmul")  # torch 2.9
    return settable and any(probe is not None and probe() for probe in probes)


def native_bf16(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether products of such inputs run as bf16 products with fp32 sums on this machine."""
    return dtype == torch.bfloat16 and device.type == "cpu" and _cpu_has_bf16()


@contextmanager
def bf16_products(wanted: bool) -> Iterator[None]:
    """Let fp32 matrix products on the CPU round their inputs to bf16 meanwhile, if wanted."""
    if not wanted:
        yield
        return
    matmul = torch.backends.mkldnn.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before
