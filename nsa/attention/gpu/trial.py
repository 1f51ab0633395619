"""Are the Triton kernels right and faster here? The trial behind a proof (nsa/attention/proof.py).

*Right*: outputs and all gradients against the fp32 `reference`, from equally rounded inputs, over a
table of odd shapes that reaches every kernel in both forms of the selected branch. A query that
stands between two blocks of nearly equal score may choose either; its row is left out on both
sides, and such rows must be few. Memory is handed out full of NaN and of huge integers, so a kernel
that reads what nobody wrote is found out. *Faster*: forward + backward at the shapes of the 125M
model against the torch backend, medians of CUDA-event timings.

Under TRITON_INTERPRET=1 on a CPU the first part runs on tiny shapes; nothing is timed there.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from nsa.attention.compression import compress_tokens
from nsa.attention.operation import nsa_attention

# Largest relative error of the output and of gradients.
TOLERANCES = {
    torch.float32: (1e-5, 1e-4),
    torch.float16: (3e-3, 5e-3),
    torch.bfloat16: (1.5e-2, 2e-2),
}
FEWEST_SAME = 0.98
HEADS, GROUPS, HEAD_DIM = 12, 2, 64
_TIMED = ((torch.bfloat16, 2, 2048), (torch.bfloat16, 1, 8192), (torch.float16, 2, 2048),
          (torch.float32, 2, 2048))  # fmt: skip
_WARM_UP, _REPEATS = 5, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Shapes and sizes of one comparison; the paper's sizes and the trainer's heads by default."""

    S: int
    B: int = 1
    H: int = HEADS
    G: int = GROUPS
    D: int = HEAD_DIM
    l: int = 32  # noqa: E741
    d: int = 16
    l_sel: int = 64
    n_sel: int = 16
    w: int = 512


_SMALL = {"l": 8, "d": 4, "l_sel": 16, "n_sel": 4, "w": 20}
_ODD = {"H": 3, "G": 1, "D": 40, "l": 8, "d": 4, "l_sel": 12, "n_sel": 4, "w": 7}
# Beyond 32 blocks the selected branch takes its other form.
ON_GPU: dict[torch.dtype, tuple[Case, ...]] = {
    torch.bfloat16: (
        *(Case(S=S, B=2) for S in (1, 33, 1025, 1500, 2048)),
        Case(S=2500, H=6, G=1),
        Case(S=1500, H=4, G=4),
        Case(S=1500, H=16, G=1),
    ),
    torch.float32: (*(Case(S=S) for S in (31, 1500, 2048)), Case(S=2500, H=6, G=1),
                    Case(S=300, **_ODD), Case(S=900, **_ODD)),
    torch.float16: (Case(S=1500), Case(S=2500, H=6, G=1)),
}  # fmt: skip
INTERPRETED: dict[torch.dtype, tuple[Case, ...]] = {
    torch.float32: (Case(S=100, H=6, G=1, D=8, **_SMALL), Case(S=7, H=2, G=1, D=8, **_SMALL)),
    torch.float16: (Case(S=70, H=2, G=1, D=8, **_SMALL),),
}


def _inputs(case: Case, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """q, six keys and values, gates, compressed keys and values: leaves of the given dtype."""
    generator = torch.Generator(device=device).manual_seed(case.S)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, generator=generator).to(dtype)

    q = draw(case.B, case.S, case.H, case.D)
    keys_values = [draw(case.B, case.S, case.G, case.D) for _ in range(6)]
    gates = draw(case.B, case.S, case.H, 3).sigmoid()
    # Rounded before either starts: else the rounding would decide near ties.
    blocks = [compress_tokens(x, case.l, case.d).to(dtype) for x in keys_values[:2]]
    return [q, *keys_values, gates, *blocks]


def _attend(case: Case, leaves: list[Tensor], backend: str) -> tuple[Tensor, Tensor]:
    q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates, *blocks = leaves
    return nsa_attention(
        q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates,
        l=case.l, d=case.d, l_sel=case.l_sel, n_sel=case.n_sel, w=case.w,
        compressed=(blocks[0], blocks[1]), backend=backend, return_selection=True,
    )  # fmt: skip


def _error(got: Tensor, wanted: Tensor) -> float:
    least = 1e-3 * wanted.numel() ** 0.5
    return float((got.float() - wanted).norm() / wanted.norm().clamp_min(least))


def compare(case: Case, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Errors of one case: its row of the proof."""
    inputs = _inputs(case, dtype, device)
    got = [x.clone().requires_grad_() for x in inputs]
    wanted = [x.float().requires_grad_() for x in inputs]
    with _spoilt_memory():
        out, ids = _attend(case, got, "triton")
    expected, expected_ids = _attend(case, wanted, "reference")
    same_BSG = (ids == expected_ids).all(-1)
    rows = same_BSG.repeat_interleave(case.H // case.G, dim=2)[..., None]
    generator = torch.Generator(device=device).manual_seed(1)
    grad = torch.randn(out.shape, device=device, generator=generator).to(dtype) * rows
    with _spoilt_memory():
        out.backward(grad)
    expected.backward(grad.float())
    gradients = [
        _error(x.grad, y.grad)
        for x, y in zip(got, wanted, strict=True)
        if x.grad is not None and y.grad is not None and x.numel()
    ]
    out_error = _error(out.detach() * rows, expected.detach() * rows)
    same = float(same_BSG.float().mean())
    out_limit, limit = TOLERANCES[dtype]
    complete = len(gradients) == sum(x.numel() > 0 for x in inputs) - 2  # k_cmp, v_cmp: not read
    right = complete and out_error < out_limit and all(error < limit for error in gradients)
    return {
        **asdict(case), "dtype": str(dtype).removeprefix("torch."), "same_selection": same,
        "out": out_error, "gradients": max(gradients, key=lambda error: (error != error, error)),
        "right": right and same >= FEWEST_SAME,
    }  # fmt: skip


@contextmanager
def _spoilt_memory() -> Iterator[None]:
    """What `empty` returns is full of NaN or of the largest integer, meanwhile."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def median_ms(step: Callable[[], None], repeats: int = _REPEATS) -> float:
    """Median of CUDA-event timings after warm-up, in milliseconds."""
    for _ in range(_WARM_UP):
        step()
    marks = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(repeats)
    ]
    for begin, end in marks:
        begin.record()
        step()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in marks)


def nsa_step(
    B: int, S: int, backend: str, dtype: torch.dtype, device: torch.device
) -> Callable[[], None]:
    """Forward and backward of one layer of the 125M model."""
    case = Case(B=B, S=S)
    leaves = [x.requires_grad_() for x in _inputs(case, dtype, device)[:-2]]
    grad = torch.randn(B, S, HEADS, HEAD_DIM, device=device).to(dtype)

    def step() -> None:
        torch.autograd.grad(nsa_attention(*leaves, backend=backend), leaves, grad)

    return step


def time_both(device: torch.device) -> dict[str, dict[str, float]]:
    """Milliseconds of Triton and torch by "dtype BxS"."""
    return {
        f"{str(dtype).removeprefix('torch.')} {B}x{S}": {
            backend: median_ms(nsa_step(B, S, backend, dtype, device))
            for backend in ("triton", "torch")
        }
        for dtype, B, S in _TIMED
    }


def run_trial(device: torch.device) -> dict[str, Any]:
    """`errors` and `times_ms` of a proof; the times only of kernels that were right."""
    cases = ON_GPU if device.type == "cuda" else INTERPRETED
    errors = [compare(case, dtype, device) for dtype, some in cases.items() for case in some]
    right = all(row["right"] for row in errors)
    times = time_both(device) if right and device.type == "cuda" else {}
    return {"errors": errors, "times_ms": times}
