"""Who attends over a plan, PyTorch's operations or the kernel in C?

The kernel serves where it can (cpu/planned.py says) and gives what PyTorch's operations give, which
is tried before its first piece, once a process. Shape legend as in plan.py.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nsa.attention import compressed, pieces, selection_rule
from nsa.attention.counters import count
from nsa.attention.cpu import planned
from nsa.attention.pieces import OutputGradient
from nsa.attention.plan import Plan, window_plan
from nsa.attention.selection import selected_plan

logger = logging.getLogger(__name__)

_CLOSE = 1e-5
"""How far the two may be from each other, as a share of the largest number."""


def prepare() -> None:
    """Compile and try the kernel now, where it could serve: a first step does not wait for it."""
    _kernel()


def _serving(q_NPD: Tensor, R: int, factor: float) -> planned.Functions | str:
    return planned.call_reason(q_NPD, R, factor) or _kernel()


def serves(q_NPD: Tensor, S: int) -> bool:
    """Whether the kernel takes the pieces of these rows, of S tokens a pair."""
    return not isinstance(_serving(q_NPD, q_NPD.shape[1] // S, 1.0), str)


def attend(
    q_NPD: Tensor,
    k_NKD: Tensor,
    v_NKD: Tensor,
    plan: Plan,
    out_NPD: Tensor,
    *,
    begin: int = 0,
    factor: float = 1.0,
) -> Tensor:
    """Softmax attention over the pairs of a plan, as `pieces.attend`; all are contiguous."""
    kernel = _serving(q_NPD, q_NPD.shape[1] // max(1, k_NKD.shape[1]), factor)
    if isinstance(kernel, str):
        if q_NPD.device.type == "cpu":
            count("pieces", "torch", kernel)
        return pieces.attend(q_NPD, k_NKD, v_NKD, plan, out_NPD, begin=begin, factor=factor)
    count("pieces", "c")
    lengths = functools.partial(planned.lengths, kernel)
    reference, total = pieces.begin_sums(q_NPD, k_NKD, plan, out_NPD, begin, factor, lengths)
    planned.attend(kernel, q_NPD, k_NKD, v_NKD, plan, reference, out_NPD, total)
    return pieces.end_sums(out_NPD, total, reference)


def attend_backward(
    q_NPD: Tensor,
    k_NKD: Tensor,
    v_NKD: Tensor,
    plan: Plan,
    output: OutputGradient,
    dq_NPD: Tensor,
    *,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Gradients as `pieces.attend_backward`; all are contiguous."""
    kernel = _serving(q_NPD, q_NPD.shape[1] // max(1, k_NKD.shape[1]), factor)
    read = (q_NPD, k_NKD, v_NKD, plan, output, dq_NPD)
    if isinstance(kernel, str):
        return pieces.attend_backward(*read, factor=factor)
    return planned.attend_backward(kernel, *read)


def compressed_attend(
    q_NPD: Tensor,
    k_NCD: Tensor,
    v_NCD: Tensor,
    S: int,
    out_NPD: Tensor,
    *,
    l: int,  # noqa: E741
    d: int,
    l_sel: int,
    start: int,
    factor: float,
) -> tuple[Tensor, Tensor]:
    """Statistics and scores as `compressed.compressed_attend`; all are contiguous."""
    kernel = _serving(q_NPD, q_NPD.shape[1] // S, 1.0)
    read = (q_NPD, k_NCD, v_NCD, S, out_NPD)
    if isinstance(kernel, str):
        return compressed.compressed_attend(
            *read, l=l, d=d, l_sel=l_sel, start=start, factor=factor
        )
    return planned.compressed_attend(
        kernel, *read, l=l, d=d, l_sel=l_sel, start=start, factor=factor
    )


def compressed_backward(
    q_NPD: Tensor,
    k_NCD: Tensor,
    v_NCD: Tensor,
    S: int,
    output: OutputGradient,
    dq_NPD: Tensor,
    *,
    l: int,  # noqa: E741
    d: int,
    start: int,
) -> tuple[Tensor, Tensor]:
    """Gradients as `compressed.compressed_backward`; all are contiguous."""
    kernel = _serving(q_NPD, q_NPD.shape[1] // S, 1.0)
    read = (q_NPD, k_NCD, v_NCD, S, output, dq_NPD)
    if isinstance(kernel, str):
        return compressed.compressed_backward(*read, l=l, d=d, start=start)
    return planned.compressed_backward(kernel, *read, l=l, d=d)


@functools.cache
def _kernel() -> planned.Functions | str:
    """The kernel in C where it gives what PyTorch's operations give, or why it does not serve."""
    functions = planned.load_functions()
    if not isinstance(functions, str) and not _agrees(functions):
        reason = "it does not give what PyTorch's operations give here"
        logger.warning("the CPU kernel %s: %s", planned.KERNEL.source.stem, reason)
        return reason
    return functions


@torch.no_grad()
def _agrees(functions: planned.Functions) -> bool:
    """Try forward and backward of a selected and of a window branch, and a compressed one."""
    R, D, l_sel, n_sel, N = 3, 32, 8, selection_rule.RULE.least + 2, 2
    S = n_sel * l_sel + 110
    made = torch.Generator("cpu").manual_seed(S)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=made, dtype=torch.float32, device="cpu")

    q, grad, k, v = (numbers(N, rows, D) for rows in (S * R, S * R, S, S))
    start, rule = n_sel * l_sel, selection_rule.RULE
    own = torch.arange(start, S, device="cpu")[:, None] // l_sel
    free = rule.first + torch.arange(rule.free(n_sel), device="cpu").expand(len(own), -1)
    free = torch.minimum(free, own - rule.recent).expand(1, N, -1, -1)
    plans = (selected_plan(free, S, l_sel), window_plan(S, 40, 64))
    for whole_rows, plan in enumerate(plans):
        told = (_branch(each, q, k, v, grad, plan, bool(whole_rows)) for each in (None, functions))
        if not _are_close(*told):
            return False
    C = (S - 8) // 4 + 1
    read = (q, k[:, :C].contiguous(), v[:, :C].contiguous(), grad)
    told = (_compressed(each, *read, S, l_sel, start) for each in (None, functions))
    return _are_close(*told)


def _compressed(
    functions: planned.Functions | None,
    q_NPD: Tensor,
    k_NCD: Tensor,
    v_NCD: Tensor,
    grad_NPD: Tensor,
    S: int,
    l_sel: int,
    start: int,
) -> tuple[Tensor, ...]:
    """As `_branch`, of the compressed branch with l 8 and d 4; and the scores of its blocks."""
    out, dq, dot = torch.zeros_like(q_NPD), torch.zeros_like(q_NPD), torch.zeros_like(q_NPD[..., 0])
    attend: Any = compressed.compressed_attend
    backward: Any = functools.partial(compressed.compressed_backward, start=start)
    if functions is not None:
        attend = functools.partial(planned.compressed_attend, functions)
        backward = functools.partial(planned.compressed_backward, functions)
    read = (q_NPD, k_NCD, v_NCD, S)
    lse, scores = attend(*read, out, l=8, d=4, l_sel=l_sel, start=start, factor=1.0)
    output = OutputGradient(
        grad_NPD=grad_NPD,
        gate_NP1=q_NPD[..., :1],
        minus_lse_NP1=-lse[..., None],
        dot_NP1=dot[..., None],
        whole_rows=True,
    )
    keys_values = backward(*read, output, dq, l=8, d=4)
    return (out, lse, scores, dot, dq, *keys_values)


def _branch(
    functions: planned.Functions | None,
    q_NPD: Tensor,
    k_NKD: Tensor,
    v_NKD: Tensor,
    grad_NPD: Tensor,
    plan: Plan,
    whole_rows: bool,
) -> tuple[Tensor, ...]:
    """Output, statistics and gradients by the kernel, or by PyTorch's operations."""
    out, dq = torch.zeros_like(q_NPD), torch.zeros_like(q_NPD)
    if functions is None:
        lse = pieces.attend(q_NPD, k_NKD, v_NKD, plan, out)
    else:
        reference, total = pieces.begin_sums(q_NPD, k_NKD, plan, out, 0, 1.0)
        planned.attend(functions, q_NPD, k_NKD, v_NKD, plan, reference, out, total)
        lse = pieces.end_sums(out, total, reference)
    output = OutputGradient(
        grad_NPD=grad_NPD,
        gate_NP1=q_NPD[..., :1],
        minus_lse_NP1=-lse[..., None],
        dot_NP1=torch.linalg.vecdot(grad_NPD, out)[..., None].clone(),
        whole_rows=whole_rows,
    )
    read = (q_NPD, k_NKD, v_NKD, plan, output, dq)
    if functions is None:
        keys_values = pieces.attend_backward(*read)
    else:
        keys_values = planned.attend_backward(functions, *read)
    return (out, lse, output.dot_NP1, dq, *keys_values)


def _are_close(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    pairs = zip(some, others, strict=True)
    return all(float((a - b).abs().max()) <= _CLOSE * float(a.abs().max()) for a, b in pairs)
