"""Attend over a plan by PyTorch's operations or by the kernel in C.

Shape legend as in plan.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nsa.attention import compressed, pieces
from nsa.attention.cpu import planned
from nsa.attention.pieces import OutputGradient
from nsa.attention.plan import Plan, pack_rows, piece_size, unpacked_view
from nsa.attention.selection import stretches
from nsa.attention.tensors import Sizes


@dataclass(frozen=True, slots=True)
class Chosen:
    """The kernel in C that attends in one call, or why PyTorch's operations serve."""

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
    ) -> Tensor:
        """Softmax attention over the pairs of a plan, as `pieces.attend`."""
        read, kernel = (q_BGSRD, k_NKD, v_NKD, plan), self.kernel
        if isinstance(kernel, str):
            packed = (_packed(q_BGSRD), k_NKD, v_NKD, plan, _to_pack(out_BGSRD))
            return pieces.attend(*packed, begin=begin)
        lengths = self.dots(q_BGSRD, q_BGSRD).sqrt_()
        reference, total = pieces.begin_sums(q_BGSRD, lengths, k_NKD, plan, begin)
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
    ) -> tuple[Tensor, Tensor]:
        """Gradients as `pieces.attend_backward`."""
        keys = (k_NKD, v_NKD, plan)
        if isinstance(self.kernel, str):
            output = replace(output, grad=_packed(output.grad))
            read = (_packed(q_BGSRD), *keys, output, _to_pack(dq_BGSRD))
            return pieces.attend_backward(*read)
        return planned.attend_backward(self.kernel, q_BGSRD, *keys, output, dq_BGSRD)

    def compressed_attend(
        self,
        q_BGSRD: Tensor,
        k_NCD: Tensor,
        v_NCD: Tensor,
        out_BGSRD: Tensor,
        sizes: Sizes,
        *,
        start: int,
        factor: float,
        choose: Callable[[Tensor, int], Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Attention over the visible compressed blocks, and what is chosen by the block scores.

        `choose` takes block scores [N, T, J] and the first of their T neighbouring queries; of a
        long sequence they are never all in memory.

        Returns:
            Base-2 log-sum-exp [N, P] (0 where nothing is visible), and what `choose` gave of all
            queries from `start` on, [N, max(0, S - start), ...].
        """
        N, (S, R), chosen = len(k_NCD), q_BGSRD.shape[2:4], []
        lse = q_BGSRD.new_zeros(N, S * R)
        attend: Callable[..., Tensor]
        if isinstance(self.kernel, str):
            read = (_packed(q_BGSRD), k_NCD, v_NCD, S, _to_pack(out_BGSRD), lse, sizes)
            attend = functools.partial(compressed.compressed_attend, *read)
        else:
            read_c = (self.kernel, q_BGSRD, k_NCD, v_NCD, out_BGSRD, lse, sizes)
            attend = functools.partial(planned.compressed_attend, *read_c)
        length = piece_size(q_BGSRD.device).span_queries
        for stretch in stretches(S, start, N * -(-S // sizes.l_sel), length):
            scores = attend(start=start, stretch=stretch, factor=factor)
            chosen.append(choose(scores, max(start, stretch[0])))
        return lse, chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=1)

    def compressed_backward(
        self,
        q_BGSRD: Tensor,
        k_NCD: Tensor,
        v_NCD: Tensor,
        output: OutputGradient,
        dq_BGSRD: Tensor,
        sizes: Sizes,
        start: int,
    ) -> tuple[Tensor, Tensor]:
        """Gradients as `compressed.compressed_backward`."""
        if isinstance(self.kernel, str):
            output = replace(output, grad=_packed(output.grad))
            read = (_packed(q_BGSRD), k_NCD, v_NCD, q_BGSRD.shape[2], output, _to_pack(dq_BGSRD))
            return compressed.compressed_backward(*read, sizes, start)
        read_c = (self.kernel, q_BGSRD, k_NCD, v_NCD, output, dq_BGSRD)
        return planned.compressed_backward(*read_c, sizes)


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
