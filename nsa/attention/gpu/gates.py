# mypy: allow-untyped-defs
"""Mix three branches into one output, and one gradient into three.

Rows are (batch item, query, head); branch outputs [rows, D], gates and dots [rows, 3].
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def mix(
    cmp_ptr, sel_ptr, win_ptr, gate_ptr, out_ptr, rows,
    D: tl.constexpr, DP: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """out = gate_0 cmp + gate_1 sel + gate_2 win, summed in fp32."""
    row_M = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    x_D = tl.arange(0, DP)
    live_M = row_M < rows
    at_MD = row_M[:, None] * D + x_D[None, :]
    live_MD = live_M[:, None] & (x_D < D)[None, :]
    gate = gate_ptr + row_M * 3
    out_MD = tl.load(gate, mask=live_M, other=0.0).to(tl.float32)[:, None] * tl.load(
        cmp_ptr + at_MD, mask=live_MD, other=0.0
    ).to(tl.float32)
    out_MD += tl.load(gate + 1, mask=live_M, other=0.0).to(tl.float32)[:, None] * tl.load(
        sel_ptr + at_MD, mask=live_MD, other=0.0
    ).to(tl.float32)
    out_MD += tl.load(gate + 2, mask=live_M, other=0.0).to(tl.float32)[:, None] * tl.load(
        win_ptr + at_MD, mask=live_MD, other=0.0
    ).to(tl.float32)
    tl.store(out_ptr + at_MD, out_MD.to(out_ptr.dtype.element_ty), mask=live_MD)


@triton.jit(do_not_specialize=["rows"])
def dots(
    cmp_ptr, sel_ptr, win_ptr, grad_ptr, dot_ptr, rows,
    D: tl.constexpr, DP: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """<grad, branch output> of every row and branch, fp32: the gradient of the gate."""
    row_M = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    x_D = tl.arange(0, DP)
    live_M = row_M < rows
    at_MD = row_M[:, None] * D + x_D[None, :]
    live_MD = live_M[:, None] & (x_D < D)[None, :]
    grad_MD = tl.load(grad_ptr + at_MD, mask=live_MD, other=0.0).to(tl.float32)
    cmp_MD = tl.load(cmp_ptr + at_MD, mask=live_MD, other=0.0).to(tl.float32)
    tl.store(dot_ptr + row_M * 3, tl.sum(grad_MD * cmp_MD, 1), mask=live_M)
    sel_MD = tl.load(sel_ptr + at_MD, mask=live_MD, other=0.0).to(tl.float32)
    tl.store(dot_ptr + row_M * 3 + 1, tl.sum(grad_MD * sel_MD, 1), mask=live_M)
    win_MD = tl.load(win_ptr + at_MD, mask=live_MD, other=0.0).to(tl.float32)
    tl.store(dot_ptr + row_M * 3 + 2, tl.sum(grad_MD * win_MD, 1), mask=live_M)
