"""How fast is one layer's attention beside PyTorch's dense kernels, from 2k to 64k?

Rows `attention`: one kernel at one length, batch and direction, eager and as a CUDA graph. Dense
gets its keys repeated to all heads outside the clock; NSA compresses its keys inside it. In order
of value: forward + backward of one sequence, forward, then as many sequences as make 64k tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from bench.on_gpu.figures import break_even_rows, pairs
from bench.on_gpu.rows import Context, read_rows
from bench.on_gpu.stopwatch import REPEATS, Step, time_both_ways
from nsa.attention.gpu.trial import Case, forward_backward

DTYPE = torch.bfloat16
_LENGTHS = (2048, 4096, 8192, 16384, 32768, 65536)
_TOKENS = 65536
_LONGEST_OF_TORCH = 8192
_TINY = {"H": 6, "G": 2, "D": 16, "l": 8, "d": 4, "l_sel": 16, "n_sel": 4, "w": 20}
_DENSE = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def dense_step(case: Case, kernel: str, device: torch.device, *, backward: bool) -> Step:
    """Dense causal attention by one of PyTorch's kernels."""
    shape = (case.B, case.H, case.S, case.D)
    leaves = [
        torch.randn(shape, device=device, dtype=DTYPE).requires_grad_(backward) for _ in range(3)
    ]
    grad = torch.randn(shape, device=device, dtype=DTYPE)

    def step() -> object:
        with sdpa_kernel(_DENSE[kernel]), torch.set_grad_enabled(backward):
            out = scaled_dot_product_attention(*leaves, is_causal=True)
            return torch.autograd.grad(out, leaves, grad) if backward else out

    return step


def shapes(*, tiny: bool) -> Iterator[tuple[Case, bool]]:
    """Cases and whether backward is measured with them, the most valuable first."""
    if tiny:
        for S in (64, 128):
            yield Case(S=S, **_TINY), True
        yield Case(S=64, **_TINY), False
        return
    for batch in ("one", "many"):
        for backward in (True, False):
            for S in _LENGTHS:
                B = 1 if batch == "one" else _TOKENS // S
                if batch == "one" or B > 1:
                    yield Case(S=S, B=B), backward


def _builders(
    case: Case, device: torch.device, *, backward: bool
) -> Mapping[str, Callable[[], Step]]:
    dense = ("math",) if device.type != "cuda" else ("flash", "cudnn")
    ours = ["torch"] if case.S <= _LONGEST_OF_TORCH and (case.B == 1 or not backward) else []
    ours = ours if device.type != "cuda" else ["triton", *ours]
    return {
        **{b: lambda b=b: forward_backward(case, b, DTYPE, device, backward=backward)
           for b in ours},
        **{k: lambda k=k: dense_step(case, k, device, backward=backward) for k in dense},
    }  # fmt: skip


def run(context: Context) -> None:
    """Rows `attention`, then `break_even` of what was measured."""
    repeats = 3 if context.tiny else REPEATS
    for case, backward in shapes(tiny=context.tiny):
        direction = "forward + backward" if backward else "forward"
        gflop = round(_dense_gflop(case, backward=backward), 1)
        for name, build in _builders(case, context.device, backward=backward).items():
            # A kernel that this GPU or build does not have, or no memory, is an error of its row.
            context.measure(
                "attention", f"attention {direction} {name} {case.B}x{case.S}",
                functools.partial(
                    time_both_ways, build, context.device, repeats, waits=name == "torch"
                ),
                needed_s=2.0, kernel=name, direction=direction, B=case.B, S=case.S,
                gflop_dense=gflop,
            )  # fmt: skip
    for row in break_even_rows(read_rows(context.file, context.run)):
        context.tell("break_even", **row)


def _dense_gflop(case: Case, *, backward: bool) -> float:
    """GFLOP of dense attention's two products forward and five backward, causal pairs only."""
    sizes = {name: getattr(case, name) for name in ("l", "d", "l_sel", "n_sel", "w")}
    products = 7 if backward else 2
    return 2 * products * case.D * case.H * case.B * pairs(case.S, **sizes)["dense"] / 1e9
