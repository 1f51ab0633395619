# mypy: allow-untyped-defs
"""Attention of the chosen blocks, block by block: the queries come to the keys.

A tile is one block against up to M of the rows (entry, head) that chose it. So tiles are full for
any number of heads in a group (launch.py defines entries and portions). Each entry has its own
buffers for a normalised output, its log-sum-exp and later its share of dq. `merge` and `add_dq`
fold the slots of a query together in their order. Nothing is added atomically: several programs sum
dk and dv of a hot block into parts, and the parts are added in their order.

Chosen blocks lie wholly in the past of the queries that chose them, so there is no mask in time.
Numbers of entries are divided within their pair, in 32 bits: a 64-bit division costs a GPU as much
as a row's products.
"""

import triton
import triton.language as tl

_SIZES = ["S", "G", "J", "T", "start", "blocks", "rows"]


@triton.jit
def _rows_of(
    portion_row, count, first, entry_ptr, pair, T, F: tl.constexpr, R: tl.constexpr, start
):
    """Entry, query and head of each row, and which rows exist."""
    live = portion_row < count * R
    of_pair = (pair * T * F).to(tl.int32)
    entry = tl.load(entry_ptr + first + portion_row // R, mask=live, other=of_pair)
    return entry.to(tl.int64), start + (entry - of_pair) // F, portion_row % R, live


@triton.jit
def _rows_of_pair(
    S, G, T, start, rows, M: tl.constexpr, R: tl.constexpr, F: tl.constexpr
):  # fmt: skip
    """Place, first choice and existence of M rows of a pair's queries from `start` on."""
    row_M = tl.program_id(0) * M + tl.arange(0, M)
    pair = tl.program_id(1).to(tl.int64)
    query_M, r_M = row_M // R, row_M % R
    at_M = (pair // G * S + start + query_M) * G * R + pair % G * R + r_M
    return at_M, (pair * T + query_M) * F * R + r_M, row_M < rows


@triton.jit(do_not_specialize=_SIZES)
def gathered_forward(
    q_ptr, k_ptr, v_ptr, part_ptr, part_lse_ptr, entry_ptr, entry_first_ptr, portion_block_ptr,
    portion_first_ptr, S, G, J, T, start, blocks, log2_scale,
    R: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    F: tl.constexpr, L_SEL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One block against one portion of its rows."""
    portion = tl.program_id(0)
    block = tl.load(portion_block_ptr + portion)
    if block < blocks:
        pair = (block // J).to(tl.int64)
        b, g = pair // G, pair % G
        first = tl.load(entry_first_ptr + block)
        count = tl.load(entry_first_ptr + block + 1) - first
        portion_row_M = (portion - tl.load(portion_first_ptr + block)) * M + tl.arange(0, M)
        entry_M, t_M, r_M, live_M = _rows_of(
            portion_row_M, count, first, entry_ptr, pair, T, F, R, start
        )
        x_D = tl.arange(0, DP)
        wide_D = (x_D < D)[None, :]
        at_M = (b * S + t_M) * G * R + g * R + r_M
        q_MD = tl.load(
            q_ptr + at_M[:, None] * D + x_D[None, :], mask=live_M[:, None] & wide_D, other=0.0
        )
        n_N = tl.arange(0, N)
        key_at_N = b * S + block % J * L_SEL + n_N
        key_at_N = key_at_N * G + g
        here_ND = (n_N < L_SEL)[:, None] & wide_D
        k_ND = tl.load(k_ptr + key_at_N[:, None] * D + x_D[None, :], mask=here_ND, other=0.0)
        v_ND = tl.load(v_ptr + key_at_N[:, None] * D + x_D[None, :], mask=here_ND, other=0.0)
        score_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION) * log2_scale
        if N > L_SEL:
            score_MN = tl.where((n_N < L_SEL)[None, :], score_MN, float("-inf"))
        top_M = tl.max(score_MN, 1)
        p_MN = tl.exp2(score_MN - top_M[:, None])
        total_M = tl.sum(p_MN, 1)
        out_MD = tl.dot(p_MN.to(v_ND.dtype), v_ND, input_precision=PRECISION) / total_M[:, None]
        to_M = entry_M * R + r_M
        tl.store(part_lse_ptr + to_M, top_M + tl.log2(total_M), mask=live_M)
        tl.store(
            part_ptr + to_M[:, None] * D + x_D[None, :],
            out_MD.to(part_ptr.dtype.element_ty),
            mask=live_M[:, None] & wide_D,
        )


@triton.jit(do_not_specialize=_SIZES)
def merge(
    part_ptr, part_lse_ptr, out_ptr, lse_ptr, S, G, T, start, rows,
    R: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, M: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """Fold the F chosen blocks of each row into the output and log-sum-exp of its own blocks."""
    at_M, choice_M, live_M = _rows_of_pair(S, G, T, start, rows, M, R, F)
    x_D = tl.arange(0, DP)
    live_MD = live_M[:, None] & (x_D < D)[None, :]
    own_M = tl.load(lse_ptr + at_M, mask=live_M, other=0.0)
    top_M = own_M
    for slot in range(F):
        part_M = choice_M + slot * R
        top_M = tl.maximum(top_M, tl.load(part_lse_ptr + part_M, mask=live_M, other=0.0))
    weight_M = tl.exp2(own_M - top_M)
    total_M = weight_M
    to_MD = out_ptr + at_M[:, None] * D + x_D[None, :]
    sum_MD = weight_M[:, None] * tl.load(to_MD, mask=live_MD, other=0.0).to(tl.float32)
    for slot in range(F):
        part_M = choice_M + slot * R
        weight_M = tl.exp2(tl.load(part_lse_ptr + part_M, mask=live_M, other=0.0) - top_M)
        total_M += weight_M
        out_MD = tl.load(part_ptr + part_M[:, None] * D + x_D[None, :], mask=live_MD, other=0.0)
        sum_MD += weight_M[:, None] * out_MD.to(tl.float32)
    # Several warps may hold a row: none may store before all have loaded.
    tl.debug_barrier()
    tl.store(lse_ptr + at_M, top_M + tl.log2(total_M), mask=live_M)
    tl.store(to_MD, (sum_MD / total_M[:, None]).to(out_ptr.dtype.element_ty), mask=live_MD)


@triton.jit(do_not_specialize=_SIZES)
def gathered_backward(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, gate_ptr, dot_ptr, part_ptr, dk_ptr, dv_ptr, entry_ptr,
    entry_first_ptr, portion_block_ptr, portion_first_ptr, S, G, J, T, start, blocks,
    log2_scale, scale,
    R: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    F: tl.constexpr, L_SEL: tl.constexpr, TILES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Parts of dk and dv from one portion (TILES tiles) of a block's rows, and each row's dq."""
    portion = tl.program_id(0)
    block = tl.load(portion_block_ptr + portion)
    if block < blocks:
        pair = (block // J).to(tl.int64)
        b, g = pair // G, pair % G
        first = tl.load(entry_first_ptr + block)
        count = tl.load(entry_first_ptr + block + 1) - first
        row0 = (portion - tl.load(portion_first_ptr + block)) * (M * TILES)
        n_N = tl.arange(0, N)
        x_D = tl.arange(0, DP)
        wide_D = (x_D < D)[None, :]
        key_at_N = b * S + block % J * L_SEL + n_N
        key_at_N = key_at_N * G + g
        here_ND = (n_N < L_SEL)[:, None] & wide_D
        k_ND = tl.load(k_ptr + key_at_N[:, None] * D + x_D[None, :], mask=here_ND, other=0.0)
        v_ND = tl.load(v_ptr + key_at_N[:, None] * D + x_D[None, :], mask=here_ND, other=0.0)
        dk_ND = tl.zeros((N, DP), tl.float32)
        dv_ND = tl.zeros((N, DP), tl.float32)
        for tile_row in range(row0, tl.minimum(row0 + M * TILES, count * R), M):
            portion_row_M = tile_row + tl.arange(0, M)
            entry_M, t_M, r_M, live_M = _rows_of(
                portion_row_M, count, first, entry_ptr, pair, T, F, R, start
            )
            at_M = (b * S + t_M) * G * R + g * R + r_M
            row_at_MD = at_M[:, None] * D + x_D[None, :]
            live_MD = live_M[:, None] & wide_D
            q_MD = tl.load(q_ptr + row_at_MD, mask=live_MD, other=0.0)
            grad_MD = tl.load(grad_ptr + row_at_MD, mask=live_MD, other=0.0)
            lse_M = tl.load(lse_ptr + at_M, mask=live_M, other=0.0)
            gate_M = tl.load(gate_ptr + at_M * 3 + 1, mask=live_M, other=0.0)
            dot_M = tl.load(dot_ptr + at_M * 3 + 1, mask=live_M, other=0.0)
            score_NM = tl.dot(k_ND, tl.trans(q_MD), input_precision=PRECISION) * log2_scale
            score_NM -= lse_M[None, :]
            if tile_row + M > count * R:
                score_NM = tl.where(live_M[None, :], score_NM, float("-inf"))
            if N > L_SEL:
                score_NM = tl.where((n_N < L_SEL)[:, None], score_NM, float("-inf"))
            p_NM = tl.exp2(score_NM) * gate_M[None, :]
            dv_ND += tl.dot(p_NM.to(grad_MD.dtype), grad_MD, input_precision=PRECISION)
            dp_NM = tl.dot(v_ND, tl.trans(grad_MD), input_precision=PRECISION)
            ds_NM = (p_NM * (dp_NM - dot_M[None, :])).to(q_MD.dtype)
            dk_ND += tl.dot(ds_NM, q_MD, input_precision=PRECISION)
            dq_MD = tl.dot(tl.trans(ds_NM), k_ND, input_precision=PRECISION)
            to_M = entry_M * R + r_M
            tl.store(
                part_ptr + to_M[:, None] * D + x_D[None, :],
                (dq_MD * scale).to(part_ptr.dtype.element_ty),
                mask=live_MD,
            )
        to_ND = (portion.to(tl.int64) * L_SEL + n_N)[:, None] * D + x_D[None, :]
        tl.store(dk_ptr + to_ND, dk_ND * scale, mask=here_ND)
        tl.store(dv_ptr + to_ND, dv_ND, mask=here_ND)


@triton.jit(do_not_specialize=_SIZES)
def add_dq(
    part_ptr, dq_ptr, S, G, T, start, rows,
    R: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, M: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """Add the F chosen blocks' shares to the gradient of each query."""
    at_M, choice_M, live_M = _rows_of_pair(S, G, T, start, rows, M, R, F)
    x_D = tl.arange(0, DP)
    live_MD = live_M[:, None] & (x_D < D)[None, :]
    to_MD = dq_ptr + at_M[:, None] * D + x_D[None, :]
    sum_MD = tl.load(to_MD, mask=live_MD, other=0.0)
    for slot in range(F):
        part_M = choice_M + slot * R
        share_MD = tl.load(part_ptr + part_M[:, None] * D + x_D[None, :], mask=live_MD, other=0.0)
        sum_MD += share_MD.to(tl.float32)
    tl.store(to_MD, sum_MD, mask=live_MD)


@triton.jit(do_not_specialize=_SIZES)
def add_dkdv(
    part_dk_ptr, part_dv_ptr, dk_ptr, dv_ptr, portion_first_ptr, S, G, J,
    D: tl.constexpr, DP: tl.constexpr, N: tl.constexpr, L_SEL: tl.constexpr,
):  # fmt: skip
    """Add the parts of one block to the gradients of its keys and values."""
    block = tl.program_id(0)
    pair = (block // J).to(tl.int64)
    n_N = tl.arange(0, N).to(tl.int64)
    s_N = block % J * L_SEL + n_N
    x_D = tl.arange(0, DP)
    # The last block may be cut off by the end of the sequence; nobody has chosen it then.
    here_ND = ((n_N < L_SEL) & (s_N < S))[:, None] & (x_D < D)[None, :]
    at_N = (pair // G * S + s_N) * G + pair % G
    to_ND = at_N[:, None] * D + x_D[None, :]
    dk_ND = tl.load(dk_ptr + to_ND, mask=here_ND, other=0.0)
    dv_ND = tl.load(dv_ptr + to_ND, mask=here_ND, other=0.0)
    for portion in range(
        tl.load(portion_first_ptr + block), tl.load(portion_first_ptr + block + 1)
    ):
        from_ND = (portion * L_SEL + n_N)[:, None] * D + x_D[None, :]
        dk_ND += tl.load(part_dk_ptr + from_ND, mask=here_ND, other=0.0)
        dv_ND += tl.load(part_dv_ptr + from_ND, mask=here_ND, other=0.0)
    tl.store(dk_ptr + to_ND, dk_ND, mask=here_ND)
    tl.store(dv_ptr + to_ND, dv_ND, mask=here_ND)
