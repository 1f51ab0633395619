"""Keep fp32 matrix products exact, whatever the process has set.

PyTorch may round the inputs of fp32 products (TF32 on GPUs, bf16 on CPUs). Trainers turn that on
for linear layers; scores, and above all the selection, must not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


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
