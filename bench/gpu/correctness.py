"""Is Triton right at the model's own shapes, and at 8k, 32k and 64k beside PyTorch?

On a CPU the same comparisons run for the torch backend, on tiny shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from bench.gpu.cases import ON_GPU, Case, compare, forward_backward
from bench.gpu.compilation import compile_each, rehearse
from bench.gpu.rows import Context

LENGTHS = (8192, 32768, 65536)
DTYPE = torch.bfloat16
_TINY = tuple(Case(S=S, B=2, H=6, G=2, D=8, l=8, d=4, l_sel=16, n_sel=4, w=20) for S in (7, 150))

Comparison = Callable[[], dict[str, Any]]


def _name(case: Case, against: str) -> str:
    return f"{against} B={case.B} S={case.S} H={case.H} G={case.G}"


def _repeats(case: Case, backend: str, device: torch.device) -> dict[str, Any]:
    """Whether output and gradients are the same to the last bit when they are computed again."""
    step: Callable[[], Any] = forward_backward(case, backend, DTYPE, device)
    alike = [torch.equal(x, y) for x, y in zip(step(), step(), strict=True)]
    return {"right": all(alike), "gradients_alike": sum(alike)}


def comparisons(device: torch.device) -> dict[str, Comparison]:
    """Return what must hold, by name, the shapes of the model first."""
    tiny = device.type != "cuda"
    ours = "torch" if tiny else "triton"
    cases = _TINY if tiny else ON_GPU[DTYPE]
    planned: dict[str, Comparison] = {
        _name(case, "reference"): partial(compare, case, DTYPE, device, ours=ours)
        for case in sorted(cases, key=lambda case: case.S, reverse=True)
    }
    for case in () if tiny else map(_of_length, LENGTHS):
        planned[_name(case, "torch")] = partial(
            compare, case, DTYPE, device, ours=ours, against="torch"
        )
    for case in _TINY if tiny else (Case(S=2048, B=2), Case(S=2500, B=2)):
        planned[_name(case, "itself")] = partial(_repeats, case, ours, device)
    return planned


def _of_length(S: int) -> Case:
    return Case(S=S)


def run(context: Context) -> None:
    """Write a row `correctness` of each comparison; one that cannot be made is not right."""
    if not context.tiny:  # all kernels at once: one by one they take minutes
        cases = (*ON_GPU[DTYPE], *map(_of_length, LENGTHS))
        steps = [forward_backward(case, "triton", DTYPE, context.device) for case in cases]
        compile_each(rehearse(steps))
    for name, compare_now in comparisons(context.device).items():
        context.measure("correctness", compare_now, name=name, right=False)
