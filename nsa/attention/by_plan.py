"""Who attends over a plan, PyTorch's operations or the kernel in C?

The kernel serves where it can (cpu/planned.py says) and gives what PyTorch's operations give, which
is tried before its first piece, once a process. Shape legend as in plan.py.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nsa.attention import compressed, pieces, selection_rule
from nsa.attention.counters import count
from nsa.attention.cpu import planned
from nsa.attention.pieces import OutputGradient
from nsa.attention.plan import Plan, pack_rows, piece_size, unpacked_view, window_plan
from nsa.attention.selection import selected_plan, stretches

logger = logging.getLogger(__name__)

_CLOSE = 1e-5
"""How far the two may be from each other, as a share of the largest number."""


def prepare() -> None:
    """Compile and try the kernel now, where it could serve: a first step does not wait for it."""
    _kernel()


@dataclass(frozen=True, slots=True)
class Chosen:
    """Who attends in one call.

    Attributes:
        kernel: The kernel in C, or why PyTorch's operations serve.
    """

    kernel: planned.Functions | str

    @property
    def in_c(self) -> bool:
        """Whether the kernel serves: it reads and writes rows where they lie."""
        return not isinstance(self.kernel, str)

    def lay(self, x_BSHX: Tensor, G: int, exact: torch.dtype) -> Tensor:
        """Rows [B, G, S, R, X] in a dtype: packed for PyTorch's operations, else where they lie."""
        if not self.in_c:
            return _by_pair(pack_rows(x_BSHX, G, exact), x_BSHX, G)
        x = x_BSHX.to(exact)
        return unpacked_view(x if x.stride(-1) == 1 else x.contiguous(), G)

    def dots(self, x_BGSRD: Tensor, y_BGSRD: Tensor) -> Tensor:
        """The product of every row with the same row of another tensor: [N, P]."""
        if isinstance(self.kernel, str):
            return torch.linalg.vecdot(_packed(x_BGSRD), _packed(y_BGSRD))
        return planned.dots(self.kernel, x_BGSRD, y_BGSRD)

    def attend(
        self,
        q_BGSRD: Tensor,
        k_NKD: Tensor,
        v_NKD: Tensor,
        plan: Plan,
        out_BGSRD: Tensor,
        *,
        begin: int = 0,
        factor: float = 1.0,
    ) -> Tensor:
        """Softmax attention over the pairs of a plan, as `pieces.attend`."""
        read, kernel = (q_BGSRD, k_NKD, v_NKD, plan), self.kernel
        if isinstance(kernel, str):
            packed = (_packed(q_BGSRD), k_NKD, v_NKD, plan, _to_pack(out_BGSRD))
            return pieces.attend(*packed, begin=begin, factor=factor)
        lengths = self.dots(q_BGSRD, q_BGSRD).sqrt_()
        reference, total = pieces.begin_sums(q_BGSRD, lengths, k_NKD, plan, begin, factor)
        out_BGSRD[:, :, :begin] = 0
        planned.attend(kernel, *read, reference, out_BGSRD, total)
        return pieces.end_sums(out_BGSRD, total, reference)

    def attend_backward(
        self,
        q_BGSRD: Tensor,
        k_NKD: Tensor,
        v_NKD: Tensor,
        plan: Plan,
        output: OutputGradient,
        dq_BGSRD: Tensor,
        *,
        factor: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Gradients as `pieces.attend_backward`."""
        keys = (k_NKD, v_NKD, plan)
        if isinstance(self.kernel, str):
            output = replace(output, grad=_packed(output.grad))
            read = (_packed(q_BGSRD), *keys, output, _to_pack(dq_BGSRD))
            return pieces.attend_backward(*read, factor=factor)
        return planned.attend_backward(self.kernel, q_BGSRD, *keys, output, dq_BGSRD)

    def compressed_attend(
        self,
        q_BGSRD: Tensor,
        k_NCD: Tensor,
        v_NCD: Tensor,
        out_BGSRD: Tensor,
        *,
        l: int,  # noqa: E741
        d: int,
        l_sel: int,
        start: int,
        factor: float,
        choose: Callable[[Tensor, int], Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Attention over the visible compressed blocks, and what is chosen by the block scores.

        Args:
            q_BGSRD, k_NCD, v_NCD, out_BGSRD, l, d, l_sel, start, factor: As of
                `compressed.compressed_attend`, of all queries.
            choose: Takes block scores [N, T, J] and the first of their T neighbouring queries; of
                a long sequence they are never all in memory.

        Returns:
            Base-2 log-sum-exp [N, P] (0 where nothing is visible), and what `choose` gave of all
            queries from `start` on, [N, max(0, S - start), ...].
        """
        N, (S, R), chosen = len(k_NCD), q_BGSRD.shape[2:4], []
        lse = q_BGSRD.new_zeros(N, S * R)
        sizes: dict[str, Any] = {"l": l, "d": d, "l_sel": l_sel, "start": start, "factor": factor}
        if isinstance(self.kernel, str):
            read = (_packed(q_BGSRD), k_NCD, v_NCD, S, _to_pack(out_BGSRD), lse)
            attend = functools.partial(compressed.compressed_attend, *read, **sizes)
        else:
            read_c = (self.kernel, q_BGSRD, k_NCD, v_NCD, out_BGSRD, lse)
            attend = functools.partial(planned.compressed_attend, *read_c, **sizes)
        length = piece_size(q_BGSRD.device).span_queries
        for stretch in stretches(S, start, N * -(-S // l_sel), length):
            chosen.append(choose(attend(stretch=stretch), max(start, stretch[0])))
        return lse, chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=1)

    def compressed_backward(
        self,
        q_BGSRD: Tensor,
        k_NCD: Tensor,
        v_NCD: Tensor,
        output: OutputGradient,
        dq_BGSRD: Tensor,
        *,
        l: int,  # noqa: E741
        d: int,
        start: int,
    ) -> tuple[Tensor, Tensor]:
        """Gradients as `compressed.compressed_backward`."""
        if isinstance(self.kernel, str):
            output = replace(output, grad=_packed(output.grad))
            read = (_packed(q_BGSRD), k_NCD, v_NCD, q_BGSRD.shape[2], output, _to_pack(dq_BGSRD))
            return compressed.compressed_backward(*read, l=l, d=d, start=start)
        return planned.compressed_backward(
            self.kernel, q_BGSRD, k_NCD, v_NCD, output, dq_BGSRD, l=l, d=d
        )


def choose(q_BSHD: Tensor, G: int, exact: torch.dtype) -> Chosen:
    """Who attends for these queries of G groups, computing in a dtype."""
    kernel = planned.call_reason(q_BSHD, G, exact) or _kernel()
    if not isinstance(kernel, str):
        count("pieces", "c")
    elif q_BSHD.device.type == "cpu":
        count("pieces", "torch", kernel)
    return Chosen(kernel)


def _by_pair(x_NPX: Tensor, like_BSHX: Tensor, G: int) -> Tensor:
    B, S, H, _ = like_BSHX.shape
    return x_NPX.view(B, G, S, H // G, x_NPX.shape[-1])


def _packed(x_BGSRX: Tensor) -> Tensor:
    """Packed rows [N, P, X] to read: the same memory where `lay` has packed them."""
    B, G, S, R, X = x_BGSRX.shape
    return x_BGSRX.reshape(B * G, S * R, X).contiguous()


def _to_pack(x_BGSRX: Tensor) -> Tensor:
    """Packed rows [N, P, X] to write to."""
    B, G, S, R, X = x_BGSRX.shape
    return x_BGSRX.view(B * G, S * R, X)


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

    q, grad = (numbers(1, S, N * R, D) for _ in range(2))
    k, v = (numbers(N, S, D) for _ in range(2))
    start, rule = n_sel * l_sel, selection_rule.RULE
    own = torch.arange(start, S, device="cpu")[:, None] // l_sel
    free = rule.first + torch.arange(rule.free(n_sel), device="cpu").expand(len(own), -1)
    free = torch.minimum(free, own - rule.recent).expand(1, N, -1, -1)
    plans = (selected_plan(free, S, l_sel), window_plan(S, 40, 64))
    C = (S - 8) // 4 + 1
    read = (q, k, v, grad)
    of_blocks = (q, k[:, :C].contiguous(), v[:, :C].contiguous(), grad)
    by_torch, by_c = (
        [
            *_branch(each, *read, plans[0], whole_rows=False),
            *_branch(each, *read, plans[1], whole_rows=True),
            *_compressed(each, *of_blocks, l_sel, start),
        ]
        for each in (Chosen("it is being tried"), Chosen(functions))
    )
    pairs = zip(by_torch, by_c, strict=True)
    return all(float((a - b).abs().max()) <= _CLOSE * float(a.abs().max()) for a, b in pairs)


def _compressed(
    chosen: Chosen,
    q_BSHD: Tensor,
    k_NCD: Tensor,
    v_NCD: Tensor,
    grad_BSHD: Tensor,
    l_sel: int,
    start: int,
) -> list[Tensor]:
    """As `_branch`, of the compressed branch with l 8 and d 4; and the scores of its blocks."""
    q, grad = (chosen.lay(x, len(k_NCD), x.dtype) for x in (q_BSHD, grad_BSHD))
    out, dq = torch.zeros_like(q), torch.zeros_like(q)
    read = (q, k_NCD, v_NCD)
    lse, scores = chosen.compressed_attend(
        *read, out, l=8, d=4, l_sel=l_sel, start=start, factor=1.0, choose=lambda scores, _: scores
    )
    output = _output(q, grad, lse, torch.zeros_like(lse), whole_rows=True)
    keys_values = chosen.compressed_backward(*read, output, dq, l=8, d=4, start=start)
    return [out, lse, scores, output.dot_NP1, dq, *keys_values]


def _branch(
    chosen: Chosen,
    q_BSHD: Tensor,
    k_NKD: Tensor,
    v_NKD: Tensor,
    grad_BSHD: Tensor,
    plan: Plan,
    *,
    whole_rows: bool,
) -> list[Tensor]:
    """Output, statistics and gradients."""
    q, grad = (chosen.lay(x, len(k_NKD), x.dtype) for x in (q_BSHD, grad_BSHD))
    out, dq = torch.zeros_like(q), torch.zeros_like(q)
    lse = chosen.attend(q, k_NKD, v_NKD, plan, out)
    output = _output(q, grad, lse, chosen.dots(grad, out), whole_rows=whole_rows)
    keys_values = chosen.attend_backward(q, k_NKD, v_NKD, plan, output, dq)
    return [out, lse, output.dot_NP1, dq, *keys_values]


def _output(
    q_BGSRD: Tensor, grad_BGSRD: Tensor, lse_NP: Tensor, dot_NP: Tensor, *, whole_rows: bool
) -> OutputGradient:
    return OutputGradient(
        grad=grad_BGSRD,
        gate_NP1=_packed(q_BGSRD)[..., :1],
        minus_lse_NP1=-lse_NP[..., None],
        dot_NP1=dot_NP[..., None],
        whole_rows=whole_rows,
    )
