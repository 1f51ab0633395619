"""Compare the Triton kernels with what is believed: cases, inputs, errors and their limits.

Output and all gradients against the fp32 `reference`, from equally rounded inputs, over shapes that
reach every kernel; a long sequence against the torch backend. A query between two blocks of nearly
equal score may choose either one: such queries must be few, and are left out. New memory is filled
with NaN meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d

from nsa.attention.compression import compress_tokens
from nsa.attention.gpu.function import nsa_attention_triton
from nsa.attention.kernels import Kernels
from nsa.attention.precision import exact_products
from nsa.attention.reference import nsa_attention_reference
from nsa.attention.tensors import Call, Tensors
from nsa.attention.torch_backend import nsa_attention_torch

# Largest relative error of the output and of gradients.
TOLERANCES = {
    torch.float32: (1e-5, 1e-4),
    torch.float16: (3e-3, 5e-3),
    torch.bfloat16: (1.5e-2, 2e-2),
}
WORST_ROW_X = 2.5
"""Times these for a single row: a few wrong rows of many vanish in the norm of all."""
FEWEST_SAME = 0.99
"""Share of queries that choose the same blocks; one wrong query of each block is more."""
_NEAR = 8
"""Rows up to so many positions away are of about one size: few queries see the last keys."""
_WARM_UP, _REPEATS = 5, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Shapes and sizes of one comparison; the paper's sizes and the trainer's heads by default."""

    S: int
    B: int = 1
    H: int = 12
    G: int = 2
    D: int = 64
    l: int = 32  # noqa: E741
    d: int = 16
    l_sel: int = 64
    n_sel: int = 16
    w: int = 512

    def call(self, *, want_ids: bool = True) -> Call:
        """What a backend is given besides tensors."""
        return Call(
            l=self.l, d=self.d, l_sel=self.l_sel, n_sel=self.n_sel, w=self.w,
            scale=self.D**-0.5, want_ids=want_ids,
        )  # fmt: skip


_ODD: dict[str, Any] = {"H": 3, "G": 1, "D": 40, "l": 8, "d": 4, "l_sel": 12, "n_sel": 4, "w": 7}
# Beyond 32 blocks the selected branch takes its other form.
ON_GPU: dict[torch.dtype, tuple[Case, ...]] = {
    torch.bfloat16: (
        *(Case(S=S, B=2) for S in (1, 33, 1025, 1500, 2048, 2500)),
        Case(S=2500, H=6, G=1),
        Case(S=1500, H=4, G=4),
        Case(S=1500, H=16, G=1),
    ),
    torch.float32: (
        *(Case(S=S) for S in (31, 1500, 2048)),
        Case(S=2500, B=2),
        Case(S=300, **_ODD),
        Case(S=900, **_ODD),
    ),
    torch.float16: (Case(S=1500), Case(S=2500, B=2)),
}


def draw_inputs(case: Case, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """q, six keys and values, gates, compressed keys and values, in a dtype."""
    generator = torch.Generator(device=device).manual_seed(case.S)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, generator=generator).to(dtype)

    q = draw(case.B, case.S, case.H, case.D)
    keys_values = [draw(case.B, case.S, case.G, case.D) for _ in range(6)]
    gates = draw(case.B, case.S, case.H, 3).sigmoid()
    # Rounded before either backend starts: else the rounding would decide near ties.
    blocks = [compress_tokens(x, case.l, case.d).to(dtype) for x in keys_values[:2]]
    return [q, *keys_values, gates, *blocks]


def attend(
    backend: str, tensors: Sequence[Tensor], call: Call, blocks: Sequence[Tensor] | None = None
) -> tuple[Tensor, Tensor | None]:
    """Output and block ids of a backend, called directly."""
    own, given = Tensors(*tensors), None if blocks is None else (blocks[0], blocks[1])
    if backend == "triton":
        return nsa_attention_triton(own, call, given)
    if backend == "torch":
        return nsa_attention_torch(own, call, given, Kernels())
    return nsa_attention_reference(own, call, given)


def forward_backward(
    case: Case, backend: str, dtype: torch.dtype, device: torch.device, *, backward: bool = True
) -> Callable[[], object]:
    """A whole call of one backend, compression included, with or without its gradients."""
    leaves = [x.requires_grad_(backward) for x in draw_inputs(case, dtype, device)[:-2]]
    grad = torch.randn(case.B, case.S, case.H, case.D, device=device).to(dtype)
    call = case.call(want_ids=backend != "triton")

    def step() -> object:
        with torch.set_grad_enabled(backward):
            out, _ = attend(backend, leaves, call)
        return torch.autograd.grad(out, leaves, grad) if backward else out

    return step


def relative_error(got: Tensor, wanted: Tensor) -> float:
    """Norm of the difference over the norm of `wanted`; small where both are nearly zero."""
    least = 1e-3 * wanted.numel() ** 0.5
    return float((got.float() - wanted.float()).norm() / wanted.float().norm().clamp_min(least))


def worst_row_error(got: Tensor, wanted: Tensor) -> float:
    """Largest difference of one row [B, S, H, :], over its own norm and that of rows near it."""
    wanted = wanted.float()
    norms = wanted.norm(dim=-1)
    squares = norms.square().mean((0, 2))[None, None]
    near: Any = {"stride": 1, "padding": _NEAR, "count_include_pad": False}
    usual = avg_pool1d(squares, 2 * _NEAR + 1, **near)[0, 0, :, None].sqrt()
    usual = usual + 1e-3 * wanted.shape[-1] ** 0.5
    return float(((got.float() - wanted).norm(dim=-1) / (norms + usual)).max())  # NaN where one is


def compare(
    case: Case,
    dtype: torch.dtype,
    device: torch.device,
    *,
    ours: str = "triton",
    against: str = "reference",
) -> dict[str, Any]:
    """Errors of one case, and whether they are small.

    Args:
        case: Shapes and sizes.
        dtype: Of the inputs.
        device: Where both compute.
        ours: The backend that is checked.
        against: The one that is believed, from the same numbers: `reference` in fp32, or `torch`.
    """
    inputs, call = draw_inputs(case, dtype, device), case.call()
    believed_in = torch.float32 if against == "reference" else dtype
    leaves = [x.clone().requires_grad_() for x in inputs]
    believed = [x.to(believed_in, copy=True).requires_grad_() for x in inputs]
    with _spoilt_memory():
        out, ids = attend(ours, leaves[:-2], call, leaves[-2:])
    expected, expected_ids = attend(against, believed[:-2], call, believed[-2:])
    assert ids is not None
    assert expected_ids is not None
    same = (ids == expected_ids).all(-1)
    share = int(same.sum()) / same.numel()
    kept = same.repeat_interleave(case.H // case.G, dim=2)[..., None]
    generator = torch.Generator(device=device).manual_seed(1)
    grad = torch.randn(out.shape, device=device, generator=generator).to(dtype) * kept
    with exact_products(device):
        with _spoilt_memory():
            out.backward(grad.to(out.dtype))
        expected.backward(grad.to(expected.dtype))
    outs = (out.detach() * kept, expected.detach() * kept)
    read = [(x, y) for x, y in zip(leaves, believed, strict=True) if x.numel()]
    grads = [(x.grad, y.grad) for x, y in read if x.grad is not None and y.grad is not None]
    whole = len(grads) == len(read) - 2  # k_cmp and v_cmp are not read
    found = {
        "out": relative_error(*outs),
        "gradients": _largest([relative_error(x, y) for x, y in grads]),
        "worst_row": worst_row_error(*outs),
        "worst_gradient": _largest([worst_row_error(x, y) for x, y in grads]),
    }
    of_out, of_gradients = TOLERANCES[dtype]
    limits = (of_out, of_gradients, WORST_ROW_X * of_out, WORST_ROW_X * of_gradients)
    untouched = all(torch.equal(x, y) for x, y in zip(leaves, inputs, strict=True))
    small = all(error < limit for error, limit in zip(found.values(), limits, strict=True))
    return {
        **asdict(case), "against": against, "dtype": str(dtype).removeprefix("torch."),
        "same_selection": share, **found,
        "right": whole and untouched and small and share >= FEWEST_SAME,
    }  # fmt: skip


def _largest(errors: list[float]) -> float:
    return max(errors, key=lambda error: (error != error, error))  # NaN above all


@contextmanager
def _spoilt_memory() -> Iterator[None]:
    """Fill what `empty` returns with NaN or the largest integer, meanwhile."""
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
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for begin, end in marks:
        begin.record()
        step()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in marks]
