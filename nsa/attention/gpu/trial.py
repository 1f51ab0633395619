"""Are the Triton kernels right and faster here? The trial behind a proof (nsa/attention/proof.py).

*Right*: outputs and all gradients, from equally rounded inputs, against the fp32 `reference` over a
table of odd shapes that reaches every kernel in both forms of the selected branch and with several
(batch item, group) pairs; at a long sequence against the torch backend, and against the reference
at sampled queries. A query that stands between two blocks of nearly equal score may choose either;
its row is left out on both sides, and such rows must be few. Memory is handed out full of NaN and
of huge integers, so a kernel that reads what nobody wrote is found out. *Faster*: forward +
backward at the shapes of the 125M model against the torch backend, medians of CUDA-event timings.

The backends are called directly: whoever chooses between them asks for this trial.
Under TRITON_INTERPRET=1 on a CPU the first part runs on tiny shapes; nothing is timed there.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from nsa.attention.compression import compress_tokens
from nsa.attention.gpu.compilation import compile_together, rehearse
from nsa.attention.gpu.function import nsa_attention_triton
from nsa.attention.kernels import Kernels
from nsa.attention.reference import nsa_attention_reference
from nsa.attention.tensors import Tensors
from nsa.attention.torch_backend import nsa_attention_torch

# Largest relative error of the output and of gradients.
TOLERANCES = {
    torch.float32: (1e-5, 1e-4),
    torch.float16: (3e-3, 5e-3),
    torch.bfloat16: (1.5e-2, 2e-2),
}
FEWEST_SAME = 0.98
HEADS, GROUPS, HEAD_DIM = 12, 2, 64
SAMPLED_ROWS = 64
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

    def options(self) -> dict[str, Any]:
        """What every backend is told besides tensors."""
        names = ("l", "d", "l_sel", "n_sel", "w")
        return {name: getattr(self, name) for name in names} | {"scale": self.D**-0.5}


_SMALL = {"l": 8, "d": 4, "l_sel": 16, "n_sel": 4, "w": 20}
_ODD = {"H": 3, "G": 1, "D": 40, "l": 8, "d": 4, "l_sel": 12, "n_sel": 4, "w": 7}
# Beyond 32 blocks the selected branch takes its other form.
ON_GPU: dict[torch.dtype, tuple[Case, ...]] = {
    torch.bfloat16: (
        *(Case(S=S, B=2) for S in (1, 33, 1025, 1500, 2048, 2500)),
        Case(S=2500, H=6, G=1),
        Case(S=1500, H=4, G=4),
        Case(S=1500, H=16, G=1),
    ),
    torch.float32: (*(Case(S=S) for S in (31, 1500, 2048)), Case(S=2500, B=2),
                    Case(S=300, **_ODD), Case(S=900, **_ODD)),
    torch.float16: (Case(S=1500), Case(S=2500, B=2)),
}  # fmt: skip
LONG = Case(S=8192)
INTERPRETED: dict[torch.dtype, tuple[Case, ...]] = {
    torch.float32: (Case(S=100, H=6, G=1, D=8, **_SMALL), Case(S=7, H=2, G=1, D=8, **_SMALL)),
    torch.float16: (Case(S=70, H=2, G=1, D=8, **_SMALL),),
}
_TIMED: dict[torch.dtype, tuple[Case, ...]] = {
    torch.bfloat16: (Case(S=2048, B=2), LONG),
    torch.float16: (Case(S=2048, B=2), LONG),
    torch.float32: (Case(S=2048, B=2),),
}

Backend = Callable[..., tuple[Tensor, Tensor]]


def _torch(tensors: Tensors, **options: Any) -> tuple[Tensor, Tensor]:
    return nsa_attention_torch(tensors, kernels=Kernels(), **options)


BACKENDS: dict[str, Backend] = {
    "triton": nsa_attention_triton,  # type: ignore[dict-item]
    "torch": _torch,
    "reference": nsa_attention_reference,
}


def draw_inputs(case: Case, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
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


def attend(
    case: Case, leaves: Sequence[Tensor], backend: str, **options: Any
) -> tuple[Tensor, Tensor]:
    """Output and block ids of one backend, from what `draw_inputs` gives."""
    *tensors, k_blocks, v_blocks = leaves
    given = {**case.options(), "compressed": (k_blocks, v_blocks), **options}
    return BACKENDS[backend](Tensors(*tensors), **given)


def relative_error(got: Tensor, wanted: Tensor, share: float = 1.0) -> float:
    """Norm of the difference over that of what is wanted; small where both are nearly nothing.

    Args:
        got: What is looked at.
        wanted: What is believed.
        share: Of the queries, those whose gradient is not zero, which nearly nothing goes by.
    """
    least = 1e-3 * (wanted.numel() * share) ** 0.5
    return float((got.float() - wanted.float()).norm() / wanted.float().norm().clamp_min(least))


def compare(
    case: Case,
    dtype: torch.dtype,
    device: torch.device,
    *,
    ours: str = "triton",
    against: str = "reference",
    rows: Tensor | None = None,
) -> dict[str, Any]:
    """Errors of one case: its row of a proof.

    Args:
        case: Shapes and sizes.
        dtype: Of the inputs.
        device: Where both compute.
        ours: The backend that is looked at.
        against: The one that is believed, from the same numbers: `reference` in fp32, or `torch`.
        rows: Positions of the queries that are compared; all unless given. With rows the gradient
            of every other query is zero, so keys and values are compared in full.
    """
    inputs = draw_inputs(case, dtype, device)
    got = [x.clone().requires_grad_() for x in inputs]
    single = against == "reference"
    wanted = [(x.float() if single else x.clone()).requires_grad_() for x in inputs]
    with _spoilt_memory():
        out, ids = attend(case, got, ours)
    sampled = {"rows": rows} if single and rows is not None else {}
    expected, expected_ids = attend(case, wanted, against, **sampled)
    here = slice(None) if rows is None else rows
    there = slice(None) if sampled else here
    same_BSG = (ids[:, here] == expected_ids[:, there]).all(-1)
    kept = same_BSG.repeat_interleave(case.H // case.G, dim=2)[..., None]
    generator = torch.Generator(device=device).manual_seed(1)
    grad = torch.randn(out[:, here].shape, device=device, generator=generator).to(dtype) * kept
    whole = torch.zeros_like(out)
    whole[:, here] = grad
    with _spoilt_memory():
        out.backward(whole)
    expected.backward(grad.to(expected.dtype) if sampled else whole.to(expected.dtype))
    gradients = [
        relative_error(x.grad, y.grad, out[:, here].shape[1] / case.S)
        for x, y in zip(got, wanted, strict=True)
        if x.grad is not None and y.grad is not None and x.numel()
    ]
    out_error = relative_error(out.detach()[:, here] * kept, expected.detach()[:, there] * kept)
    same = float(same_BSG.float().mean())
    out_limit, limit = TOLERANCES[dtype]
    complete = len(gradients) == sum(x.numel() > 0 for x in inputs) - 2  # k_cmp, v_cmp: not read
    right = complete and out_error < out_limit and all(error < limit for error in gradients)
    return {
        **asdict(case), "dtype": str(dtype).removeprefix("torch."), "against": against,
        "rows": None if rows is None else len(rows), "same_selection": same, "out": out_error,
        "gradients": max(gradients, key=lambda error: (error != error, error)),
        "right": right and same >= FEWEST_SAME,
    }  # fmt: skip


def sample_rows(S: int, device: torch.device, count: int = SAMPLED_ROWS) -> Tensor:
    """Positions of queries all over a sequence, its first and its last among them, ascending."""
    return torch.linspace(0, S - 1, min(count, S), device=device).round().long()


def compare_long(case: Case, dtype: torch.dtype, device: torch.device) -> list[dict[str, Any]]:
    """A sequence too long for S x S: against torch whole, and against the reference in samples."""
    rows = sample_rows(case.S, device)
    return [
        compare(case, dtype, device, against="torch"),
        compare(case, dtype, device, rows=rows),
    ]


@contextmanager
def _spoilt_memory() -> Iterator[None]:
    """What `empty` returns is full of NaN or of the largest integer, meanwhile."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def timings_ms(step: Callable[[], object], repeats: int = _REPEATS) -> list[float]:
    """CUDA-event timings after warm-up, in milliseconds."""
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
    return [begin.elapsed_time(end) for begin, end in marks]


def forward_backward(
    case: Case, backend: str, dtype: torch.dtype, device: torch.device, *, backward: bool = True
) -> Callable[[], object]:
    """A whole call of one backend, compression included, with its gradients or without any."""
    leaves = [x.requires_grad_(backward) for x in draw_inputs(case, dtype, device)[:-2]]
    grad = torch.randn(case.B, case.S, case.H, case.D, device=device).to(dtype)
    options = case.options() | ({"want_ids": False} if backend == "triton" else {})

    def step() -> object:
        with torch.set_grad_enabled(backward):
            out, _ = BACKENDS[backend](Tensors(*leaves), **options)
        return torch.autograd.grad(out, leaves, grad) if backward else out

    return step


def time_both(dtype: torch.dtype, device: torch.device) -> dict[str, dict[str, float]]:
    """Milliseconds of Triton and torch by "BxS"."""
    return {
        f"{case.B}x{case.S}": {
            backend: statistics.median(timings_ms(forward_backward(case, backend, dtype, device)))
            for backend in ("triton", "torch")
        }
        for case in _TIMED[dtype]
    }


def run_trial(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """`errors` and `times_ms` of a proof in a dtype; times only of kernels that were right."""
    if device.type != "cuda":
        cases = INTERPRETED.get(dtype, ())
        return {"errors": [compare(case, dtype, device) for case in cases], "times_ms": {}}
    cases = (*ON_GPU[dtype], LONG)
    compile_together(rehearse([forward_backward(case, "triton", dtype, device) for case in cases]))
    errors = [compare(case, dtype, device) for case in ON_GPU[dtype]]
    errors += compare_long(LONG, dtype, device)
    right = all(row["right"] for row in errors)
    return {"errors": errors, "times_ms": time_both(dtype, device) if right else {}}
