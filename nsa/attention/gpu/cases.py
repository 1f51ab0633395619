"""The shapes that a trial of the kernels takes, and calls of the backends with them.

The backends are called directly: whoever chooses between them asks for the trial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nsa.attention.compression import MeanCompression, compress_tokens, compressed_length
from nsa.attention.gpu.function import attend_packed, nsa_attention_triton
from nsa.attention.kernels import Kernels
from nsa.attention.packing import attend_sequences
from nsa.attention.reference import nsa_attention_reference
from nsa.attention.sequences import compress_sequences
from nsa.attention.tensors import Tensors
from nsa.attention.torch_backend import nsa_attention_torch

HEADS, GROUPS, HEAD_DIM = 12, 2, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Shapes and sizes of one comparison; the paper's sizes and the trainer's heads by default.

    With `lengths`, sequences that lie end to end in the S tokens of B = 1 (`packed`).
    """

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
    lengths: tuple[int, ...] = ()

    def options(self) -> dict[str, Any]:
        """What every backend is told besides tensors."""
        names = ("l", "d", "l_sel", "n_sel", "w")
        return {name: getattr(self, name) for name in names} | {"scale": self.D**-0.5}


def packed(*lengths: int, **sizes: Any) -> Case:
    """Sequences of some lengths end to end."""
    return replace(Case(S=sum(lengths), **sizes), lengths=lengths)


_SMALL: dict[str, Any] = {"l": 8, "d": 4, "l_sel": 16, "n_sel": 4, "w": 20}
_ODD: dict[str, Any] = {"H": 3, "G": 1, "D": 40, "l": 8, "d": 4, "l_sel": 12, "n_sel": 4, "w": 7}
# Beyond 32 blocks the selected branch takes its other form.
ON_GPU: dict[torch.dtype, tuple[Case, ...]] = {
    torch.bfloat16: (
        *(Case(S=S, B=2) for S in (1, 33, 1025, 1500, 2048, 2500)),
        Case(S=2500, H=6, G=1),
        Case(S=1500, H=4, G=4),
        Case(S=1500, H=16, G=1),
        packed(1500, 1, 33, 1025, 700, 64),
        packed(700, 2500, 7, 1500),
    ),
    torch.float32: (*(Case(S=S) for S in (31, 1500, 2048)), Case(S=2500, B=2),
                    Case(S=300, **_ODD), Case(S=900, **_ODD), packed(300, 7, 100, **_ODD),
                    packed(900, 7, 300, **_ODD)),
    torch.float16: (Case(S=1500), Case(S=2500, B=2), packed(1500, 33), packed(2500, 33)),
}  # fmt: skip
LONG = Case(S=8192)
INTERPRETED: dict[torch.dtype, tuple[Case, ...]] = {
    torch.float32: (
        Case(S=100, H=6, G=1, D=8, **_SMALL),
        Case(S=7, H=2, G=1, D=8, **_SMALL),
        packed(70, 1, 30, H=2, G=1, D=8, **_SMALL),
    ),
    torch.float16: (Case(S=70, H=2, G=1, D=8, **_SMALL),),
}
TIMED: dict[torch.dtype, tuple[Case, ...]] = {
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
    blocks = [
        torch.cat([compress_tokens(part, case.l, case.d) for part in _each(x, case)], 1).to(dtype)
        for x in keys_values[:2]
    ]
    return [q, *keys_values, gates, *blocks]


def _each(x: Tensor, case: Case) -> tuple[Tensor, ...]:
    """The sequences that lie end to end in [1, S, ...]; of one length all of it."""
    return x.split(list(case.lengths or (case.S,)), 1)


def attend(
    case: Case, leaves: Sequence[Tensor], backend: str, **options: Any
) -> tuple[Tensor, Tensor]:
    """Output and block ids of one backend, from what `draw_inputs` gives.

    Args:
        case: Shapes and sizes.
        leaves: Inputs.
        backend: Who attends.
        options: `rows` and `selected` of the reference, positions in all S tokens.
    """
    *tensors, k_blocks, v_blocks = leaves
    if case.lengths:
        return _attend_lengths(case, tensors, (k_blocks, v_blocks), backend, **options)
    given = {**case.options(), "compressed": (k_blocks, v_blocks), **options}
    return BACKENDS[backend](Tensors(*tensors), **given)


def _attend_lengths(
    case: Case,
    tensors: Sequence[Tensor],
    blocks: tuple[Tensor, Tensor],
    backend: str,
    rows: Tensor | None = None,
    selected: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Triton takes all sequences in one pass; what it is compared with attends each alone."""
    if backend == "triton":
        k_blocks, v_blocks = (x[0] for x in blocks)
        flat = Tensors(*(x[0] for x in tensors))
        out, ids = attend_packed(flat, (k_blocks, v_blocks), case.lengths, **case.options())
        assert ids is not None
        return out[None], ids[None]
    counts = [compressed_length(length, case.l, case.d) for length in case.lengths]
    compressed = zip(*(x.split(counts, 1) for x in blocks), strict=True)
    each = zip(*(_each(x, case) for x in tensors), strict=True)
    found, begin = [], 0
    for parts, pair, length in zip(each, compressed, case.lengths, strict=True):
        options = case.options() | {"compressed": pair}
        if rows is not None:
            here = (rows >= begin) & (rows < begin + length)
            options |= {"rows": rows[here] - begin}
            options |= {} if selected is None else {"selected": selected[:, here]}
        found.append(BACKENDS[backend](Tensors(*parts), **options))
        begin += length
    outs, ids_of_each = zip(*found, strict=True)
    return torch.cat(outs, 1), torch.cat(ids_of_each, 1)


def forward_backward(
    case: Case, backend: str, dtype: torch.dtype, device: torch.device, *, backward: bool = True,
    several_passes: bool = False,
) -> Callable[[], object]:  # fmt: skip
    """A whole call of one backend, compression included, with its gradients or without any.

    Args:
        case: Shapes and sizes.
        backend: Who attends.
        dtype: Of the inputs.
        device: Where.
        backward: Whether gradients are computed.
        several_passes: Of packed sequences: those of about one length together, as backends do
            that do not take all at once, also where this one does.
    """
    one_pass = backend == "triton" and not several_passes
    leaves = [x.requires_grad_(backward) for x in draw_inputs(case, dtype, device)[:-2]]
    grad = torch.randn(case.B, case.S, case.H, case.D, device=device).to(dtype)
    options = case.options() | ({"want_ids": False} if backend == "triton" else {})

    def attend_all() -> Tensor:
        if case.lengths and one_pass:
            return _attend_once(case, leaves)
        if case.lengths:
            flat = [x[0] for x in leaves]
            return attend_sequences(attend_some, flat, case.lengths)[0][None]
        return attend_some(*leaves)[0]

    def attend_some(*each: Tensor) -> tuple[Tensor, ...]:
        return BACKENDS[backend](Tensors(*each), **options)[:1]

    def step() -> object:
        with torch.set_grad_enabled(backward):
            out = attend_all()
        return torch.autograd.grad(out, leaves, grad) if backward else out

    return step


def _attend_once(case: Case, leaves: Sequence[Tensor]) -> Tensor:
    """All sequences by the Triton kernels, compression included."""
    tensors = Tensors(*(x[0] for x in leaves))
    k_blocks, v_blocks = compress_sequences(
        MeanCompression(case.l, case.d), tensors.k_cmp, tensors.v_cmp, case.lengths, case.l, case.d
    )
    blocks = (k_blocks.to(tensors.q.dtype), v_blocks.to(tensors.q.dtype))
    out, _ = attend_packed(tensors, blocks, case.lengths, **case.options(), want_ids=False)
    return out[None]
