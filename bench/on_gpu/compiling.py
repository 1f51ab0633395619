"""Do all bf16 kernels compile here, at once, and into what?"""

from __future__ import annotations

import time

import torch

from bench.on_gpu.correctness import LENGTHS
from bench.on_gpu.rows import Context
from nsa.attention.gpu.compilation import compile_together, rehearse
from nsa.attention.gpu.trial import ON_GPU, Case, forward_backward


def run(context: Context) -> None:
    """Row `compiled`: how many kernels in how many seconds, and what each needs."""
    dtype = torch.bfloat16
    cases = (*ON_GPU[dtype], *(Case(S=S) for S in LENGTHS))
    began = time.monotonic()
    launches = rehearse([forward_backward(case, "triton", dtype, context.device) for case in cases])
    rehearsed_s = time.monotonic() - began
    kernels = compile_together(launches)
    context.tell(
        "compiled",
        kernels=len(launches),
        rehearsed_s=round(rehearsed_s, 2),
        seconds=round(time.monotonic() - began, 2),
        largest_shared_bytes=max(kernel.metadata.shared for kernel in kernels),
    )
