"""Is Triton right at the model's own shapes, and at 8k, 32k and 64k beside PyTorch?

On a CPU the same comparisons run for the torch backend, on tiny shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.on_gpu.rows import Context
from nsa.attention.gpu.trial import ON_GPU, Case, compare, forward_backward

LENGTHS = (8192, 32768, 65536)
_TINY = {"H": 6, "G": 2, "D": 8, "l": 8, "d": 4, "l_sel": 16, "n_sel": 4, "w": 20}
_TINY_CASES = tuple(Case(S=S, B=2, **_TINY) for S in (7, 150))
DTYPE = torch.bfloat16

Comparison = Callable[[], dict[str, Any]]


def _name(case: Case, against: str) -> str:
    return f"{against} B={case.B} S={case.S} H={case.H} G={case.G}"


def _repeats(case: Case, backend: str, device: torch.device) -> dict[str, Any]:
    """Whether output and gradients are the same to the last bit when they are computed again."""
    step = forward_backward(case, backend, DTYPE, device)
    first, second = step(), step()
    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    alike = [torch.equal(x, y) for x, y in zip(first, second, strict=True)]
    return {"right": all(alike), "gradients_alike": sum(alike), "gradients": len(alike)}


def comparisons(device: torch.device) -> dict[str, Comparison]:
    """What must hold, by name, the shapes of the model first."""
    tiny = device.type != "cuda"
    ours = "torch" if tiny else "triton"
    cases = _TINY_CASES if tiny else ON_GPU[DTYPE]
    long = () if tiny else tuple(Case(S=S) for S in LENGTHS)
    planned: dict[str, Comparison] = {
        _name(case, "reference"): lambda case=case: compare(case, DTYPE, device, ours=ours)
        for case in sorted(cases, key=lambda case: case.S, reverse=True)
    }
    for case in long:
        planned[_name(case, "torch")] = lambda case=case: compare(
            case, DTYPE, device, ours=ours, against="torch"
        )
    again = (Case(S=2048, B=2), Case(S=2500, B=2))
    for case in cases[-2:] if tiny else again:
        planned[_name(case, "itself")] = lambda case=case: _repeats(case, ours, device)
    return planned


def run(context: Context) -> None:
    """A row `correctness` of each comparison; one that cannot be made is not right."""
    for name, compare_now in comparisons(context.device).items():
        context.measure(
            "correctness",
            f"correctness {name}",
            lambda name=name, compare_now=compare_now: {**compare_now(), "name": name},  # type: ignore[misc]
            name=name,
            right=False,
        )
