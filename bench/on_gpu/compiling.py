"""Do all bf16 kernels compile here, at once, and into what?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from bench.on_gpu.correctness import LENGTHS
from bench.on_gpu.rows import Context, first_line
from nsa.attention.gpu.compilation import Launch, compile_each, rehearse
from nsa.attention.gpu.trial import ON_GPU, Case, forward_backward


def run(context: Context) -> None:
    """Row `compiled`: how many kernels in how many seconds, what they need, and which fail."""
    context.measure(
        "compiled", "compiling", lambda: _compile_all(context.device), limit_s=context.left_s()
    )


def _compile_all(device: torch.device) -> dict[str, object]:
    dtype = torch.bfloat16
    cases = (*ON_GPU[dtype], *(Case(S=S) for S in LENGTHS))
    began = time.monotonic()
    launches = rehearse([forward_backward(case, "triton", dtype, device) for case in cases])
    rehearsed_s = time.monotonic() - began
    return {
        **tell_compiled(launches, compile_each(launches)),
        "rehearsed_s": round(rehearsed_s, 2),
        "seconds": round(time.monotonic() - began, 2),
    }


def tell_compiled(launches: Sequence[Launch], compiled: Sequence[Any]) -> dict[str, object]:
    """What compiling launches one by one has come to."""
    both = list(zip(launches, compiled, strict=True))
    failed = [(launch, x) for launch, x in both if isinstance(x, BaseException)]
    kernels = [x for _, x in both if not isinstance(x, BaseException)]
    return {
        "kernels": len(kernels),
        "failed": [
            {"kernel": launch.kernel.__name__, "error": first_line(error)}
            for launch, error in failed
        ],
        "largest_shared_bytes": max((x.metadata.shared for x in kernels), default=None),
    }
